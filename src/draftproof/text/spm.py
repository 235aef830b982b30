"""Byte-pair encoding as SentencePiece does it: by score, with byte fallback.

Kudo and Richardson 2018, "SentencePiece" (arXiv 1808.06226). Merge lists rebuilt from
scores differ from it where two pairs give the same piece, so the rule itself is
carried out here.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from typing import Final

from draftproof.errors import ModelFileError

__all__ = ["SPACE", "SentencePieceEncoder"]

#: Stands for a space inside pieces.
SPACE: Final = "\u2581"
_CACHE_WORDS: Final = 1 << 16


class SentencePieceEncoder:
    """Encodes plain text with the pieces and scores of a SentencePiece BPE model.

    Parameters
    ----------
    pieces : mapping of str to int
        Pieces that merging may produce.
    scores : sequence of float, length V
        Score of each id; pairs with the highest score are merged first.
    byte_ids : mapping of int to int
        Ids of the 256 byte tokens by byte; empty when the model has none.
    literals : mapping of str to int
        User-defined pieces: found in the text before merging, never cut.
    unknown_id : int or None
        Id of characters without piece or bytes.
    space_prefix : bool
        Begin each text with a space.

    Raises
    ------
    ModelFileError
        If the model has neither byte tokens nor an unknown token.

    Notes
    -----
    Merging takes ``O(n log n)`` for a piece of text of n characters. When no piece
    of the vocabulary reaches from one word into the next, as is usual, words are
    merged apart and remembered, which changes nothing but the time.
    """

    __slots__ = (
        "_byte_ids",
        "_cache",
        "_literals",
        "_literals_by_text",
        "_pieces",
        "_scores",
        "_space_prefix",
        "_unknown",
        "_word",
    )

    def __init__(
        self,
        pieces: Mapping[str, int],
        scores: Sequence[float],
        *,
        byte_ids: Mapping[int, int],
        literals: Mapping[str, int],
        unknown_id: int | None,
        space_prefix: bool,
    ) -> None:
        if len(byte_ids) < 256 and unknown_id is None:
            raise ModelFileError(
                f"the vocabulary has {len(byte_ids)} of 256 byte tokens and no unknown token"
            )
        self._pieces = dict(pieces)
        self._scores = scores
        self._byte_ids = dict(byte_ids)
        self._unknown = unknown_id
        self._space_prefix = space_prefix
        self._literals_by_text = {text.replace(" ", SPACE): i for text, i in literals.items()}
        ordered = sorted(self._literals_by_text, key=len, reverse=True)
        self._literals = re.compile(f"({'|'.join(map(re.escape, ordered))})") if ordered else None
        spanning = any(SPACE in piece.lstrip(SPACE) for piece in self._pieces)
        self._word = None if spanning else re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
        self._cache: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain text.

        Parameters
        ----------
        text : str
            The text. Control tokens in it are plain characters.

        Returns
        -------
        list of int
            The ids; empty for an empty text.
        """
        if not text:
            return []
        escaped = (" " + text if self._space_prefix else text).replace(" ", SPACE)
        ids: list[int] = []
        # With a group in the pattern, split keeps the literals at odd places.
        parts = self._literals.split(escaped) if self._literals else [escaped]
        for index, part in enumerate(parts):
            if index % 2:
                ids.append(self._literals_by_text[part])
            elif part:
                self._encode_part(part, ids)
        return ids

    def _encode_part(self, part: str, ids: list[int]) -> None:
        if self._word is None:
            ids.extend(self._merge(part))
            return
        cache = self._cache
        for word in self._word.findall(part):
            known = cache.get(word)
            if known is None:
                known = tuple(self._merge(word))
                if len(cache) >= _CACHE_WORDS:
                    cache.clear()
                cache[word] = known
            ids.extend(known)

    def _merge(self, text: str) -> list[int]:
        """Merge neighbours, highest score first, leftmost first on ties."""
        symbols: list[str] = list(text)
        right = [*range(1, len(symbols)), -1]
        left = list(range(-1, len(symbols) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(a: int, b: int) -> None:
            if a < 0 or b < 0:
                return
            joined = symbols[a] + symbols[b]
            index = self._pieces.get(joined)
            if index is not None:
                heapq.heappush(queue, (-self._scores[index], a, b, joined))

        for index in range(len(symbols) - 1):
            offer(index, index + 1)
        while queue:
            _, a, b, joined = heapq.heappop(queue)
            # Stale when either side has been merged since; a merged-away symbol is empty.
            if not symbols[a] or not symbols[b] or symbols[a] + symbols[b] != joined:
                continue
            symbols[a], symbols[b] = joined, ""
            right[a] = right[b]
            if right[b] >= 0:
                left[right[b]] = a
            offer(left[a], a)
            offer(a, right[a])
        return [index for symbol in symbols if symbol for index in self._ids_of(symbol)]

    def _ids_of(self, symbol: str) -> list[int]:
        index = self._pieces.get(symbol)
        if index is not None:
            return [index]
        data = symbol.encode()
        if all(byte in self._byte_ids for byte in data):
            return [self._byte_ids[byte] for byte in data]
        return [] if self._unknown is None else [self._unknown]
