"""What a request's text is in the ids of a drafter with another vocabulary.

The text of each request is read once. When it grows, only its last tokens are encoded
anew together with what was added, because a tokenizer may cut the end of a text otherwise
once more of it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

__all__ = ["Bridge", "Translations", "common_length", "word_start"]

#: Tokens at the end of a text that are encoded again when it grows.
LOOK_BACK: Final = 16
#: How many of the tokens read last are compared with the request's before more are added.
_BOUNDARY: Final = 8


class Bridge(Protocol):
    """Two vocabularies, joined by the bytes of their tokens."""

    start_ids: tuple[int, ...]
    target_start_ids: tuple[int, ...]

    def piece(self, target_id: int) -> bytes | int:
        """Return what a token of the target is to the drafter: text, or an id of its own."""
        ...

    def target_bytes(self, target_id: int) -> bytes:
        """Return the bytes that a token of the target adds; empty for control tokens."""
        ...

    def draft_bytes(self, draft_id: int) -> bytes:
        """Return the bytes that a token of the drafter adds; empty for control tokens."""
        ...

    def to_draft(self, data: bytes) -> list[int]:
        """Return the drafter's ids of bytes inside a text; joined they spell them."""
        ...

    def to_target(self, before: bytes, data: bytes) -> list[int]:
        """Return the target's ids of bytes that go on where a text of its own ends."""
        ...


@dataclass(slots=True)
class _Text:
    """One request as its drafter reads it."""

    #: The target's ids that were read, and the list they came from.
    read: list[int] = field(default_factory=list)
    source: Sequence[int] = ()
    #: The drafter's ids, and how many bytes of text there are up to the end of each.
    ids: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    #: How many of the ids stand for good: a control token is no text.
    fixed: int = 0


class Translations:
    """The texts of all requests of one drafter, in its own ids.

    Parameters
    ----------
    bridge : Bridge
        Between the two vocabularies.

    Notes
    -----
    A call costs time linear in what was added, and in nothing else, while the request
    comes back with the same list; another list is compared in full once.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._texts: dict[str, _Text] = {}

    def __len__(self) -> int:
        """Return how many requests are held."""
        return len(self._texts)

    def read(self, request_id: str, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """Return a request's committed tokens in the drafter's ids.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens, in ids of the target.

        Returns
        -------
        ids : list of int
            The same text for the drafter, beginning with what begins its texts. The list
            is changed by the next call.
        kept : int
            How many of the first are as they were after the call before.
        """
        held = self._texts.get(request_id)
        if held is None or not _continues(held, token_ids):
            held = self._begin(token_ids)
            self._texts[request_id] = held
        held.source = token_ids
        kept = len(held.ids)
        data = bytearray()
        for token in token_ids[len(held.read) :]:
            piece = self._bridge.piece(token)
            held.read.append(token)
            if isinstance(piece, bytes):
                data += piece
                continue
            kept = min(kept, self._append(held, data))
            data.clear()
            held.ids.append(piece)
            held.ends.append(len(held.text))
            held.fixed = len(held.ids)
        return held.ids, min(kept, self._append(held, data))

    def spell(self, token_ids: Sequence[int]) -> list[int]:
        """Return drafted tokens of the target in the drafter's ids.

        Parameters
        ----------
        token_ids : sequence of int
            The tokens; they are not kept.

        Returns
        -------
        list of int
            Encoded without the text before them.
        """
        ids: list[int] = []
        data = bytearray()
        for token in token_ids:
            piece = self._bridge.piece(token)
            if isinstance(piece, bytes):
                data += piece
                continue
            ids += [*self._bridge.to_draft(bytes(data)), piece]
            data.clear()
        return ids + self._bridge.to_draft(bytes(data))

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored.

        Parameters
        ----------
        request_id : str
            The request.
        """
        self._texts.pop(request_id, None)

    def _begin(self, token_ids: Sequence[int]) -> _Text:
        """Start a text. What begins a prompt of the target begins one of the drafter's."""
        start, ours = self._bridge.target_start_ids, self._bridge.start_ids
        is_there = bool(start) and tuple(token_ids[: len(start)]) == start
        read = list(start) if is_there else []
        return _Text(read, (), list(ours), [0] * len(ours), bytearray(), len(ours))

    def _append(self, held: _Text, data: bytes | bytearray) -> int:
        """Add text, and return how many of the first ids stayed as they were."""
        if not data:
            return len(held.ids)
        spelled = [self._bridge.draft_bytes(token) for token in held.ids[-LOOK_BACK:]]
        low = len(held.ids) - len(spelled)
        skipped = held.fixed - low
        begin = held.fixed if skipped >= 0 else low + word_start(spelled)
        offset = held.ends[begin - 1] if begin else 0
        held.text += data
        old, new = held.ids[begin:], self._bridge.to_draft(bytes(held.text[offset:]))
        kept = begin + common_length(old, new)
        del held.ids[kept:], held.ends[kept:]
        end = held.ends[-1] if held.ends else 0
        for token in new[kept - begin :]:
            end += len(self._bridge.draft_bytes(token))
            held.ids.append(token)
            held.ends.append(end)
        return kept


def word_start(spelled: Sequence[bytes]) -> int:
    """Return the first token that begins a word or a line, 0 where none does.

    Parameters
    ----------
    spelled : sequence of bytes
        The bytes of some tokens. Tokenizers cut a text before white space, so that what
        follows is cut as it would be in the whole.

    Returns
    -------
    int
        Its index.
    """
    for index, data in enumerate(spelled):
        if data[:1] in (b" ", b"\n"):
            return index
    return 0


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common beginning of two short sequences."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))


def _continues(held: _Text, token_ids: Sequence[int]) -> bool:
    """Say whether the tokens only add to those that were read.

    The same list object is trusted to have grown at its end, up to a look at the
    boundary; another object is compared in full.
    """
    count = len(held.read)
    if count > len(token_ids):
        return False
    begin = max(0, count - _BOUNDARY) if token_ids is held.source else 0
    return list(token_ids[begin:count]) == held.read[begin:]
