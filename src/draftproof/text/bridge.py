"""Two vocabularies, joined by the bytes of their tokens.

A target writes ids; a drafter of another vocabulary reads and writes other ids. What is
the same in both is the text. Everything here works on bytes, so that half a character or
a text that is no UTF-8 finds its way too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from draftproof.core.protocols import Tokenizer
from draftproof.core.vocabulary_map import VocabularyMap
from draftproof.errors import IncompatibleModelsError
from draftproof.text.vocabulary import HasVocabulary

__all__ = ["InnerEncoder", "TextBridge"]

#: Stands before a text that shall not look like the first of a document.
_ANCHOR: Final = "\n"
#: Most bytes of a character of UTF-8.
_WIDEST: Final = 4


class InnerEncoder:
    """Encodes bytes that stand inside a text, to tokens that are those bytes.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer. Some of them begin each text with a space, compose characters, or
        drop bytes; what they return is used only where it spells the bytes that were given.

    Notes
    -----
    Where the tokenizer cannot be used, the longest token that fits is taken, again and
    again. That is not how a tokenizer cuts a text, but it spells it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        #: One token for each spelling.
        self.ids = spelling_ids(tokenizer)
        self._longest = max(map(len, self.ids), default=0)

    def encode(self, data: bytes, *, whole: bool = True) -> list[int]:
        """Return ids whose bytes, joined, are the given ones.

        Parameters
        ----------
        data : bytes
            The bytes; half a character at the end is allowed.
        whole : bool, default True
            Whether all bytes must be spelled. Otherwise the ids end before a byte that
            no token can spell.

        Returns
        -------
        list of int
            The ids.

        Raises
        ------
        IncompatibleModelsError
            If all bytes must be spelled and one cannot be.
        """
        end = complete_length(data)
        ids = self._encode_text(data[:end])
        if ids is None:
            return self._spell(data, whole=whole)
        return ids + self._spell(data[end:], whole=whole)

    def _encode_text(self, data: bytes) -> list[int] | None:
        """Return what the tokenizer makes of a text; None where it says something else."""
        if not data:
            return []
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        tokenizer = self._tokenizer
        for shown in (text, text[1:]) if text[0] == " " else (text,):
            ids = tokenizer.encode(shown, add_special=False)
            if self._joined(ids) == data:
                return ids
        ids = tokenizer.encode(_ANCHOR + text, add_special=False)
        joined = self._joined(ids)
        if not joined.endswith(data):
            return None
        return behind(ids, tokenizer, joined[: len(joined) - len(data)])

    def _joined(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._tokenizer.token_bytes, ids))

    def _spell(self, data: bytes, *, whole: bool) -> list[int]:
        """Return the longest tokens that fit, first to last."""
        ids: list[int] = []
        begin = 0
        while begin < len(data):
            for width in range(min(self._longest, len(data) - begin), 0, -1):
                token = self.ids.get(data[begin : begin + width])
                if token is not None:
                    break
            else:
                if not whole:
                    break
                raise IncompatibleModelsError(
                    f"the drafter's vocabulary cannot spell the byte 0x{data[begin]:02x}"
                )
            ids.append(token)
            begin += width
        return ids


class TextBridge:
    """Between the ids of a target and those of a drafter.

    Parameters
    ----------
    target, draft : Tokenizer
        The two tokenizers. Neither is changed.

    Attributes
    ----------
    start_ids : tuple of int
        What begins a text of the drafter, usually a begin-of-text token or nothing.
    target_start_ids : tuple of int
        What begins a prompt of the target.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target = target
        self._draft = draft
        self._to_target = InnerEncoder(target)
        self._to_draft = InnerEncoder(draft)
        self._control = _control_pieces(target, draft)
        self.start_ids = _start_ids(draft)
        self.target_start_ids = _start_ids(target)

    def shared(self, target_size: int, draft_size: int) -> VocabularyMap:
        """Return the tokens that both have, by their bytes.

        Parameters
        ----------
        target_size, draft_size : int
            Lengths of the two logits rows, padding included.

        Returns
        -------
        VocabularyMap
            Of several tokens with the same bytes one counts on each side: a piece of
            text before a raw byte, then the lowest id. Control tokens are shared where
            they are spelled alike, if both tell how. Where no end of a text is, and each
            side has exactly one, these are.

        Raises
        ------
        IncompatibleModelsError
            If a logits row is shorter than its vocabulary.
        """
        target, draft = self._target, self._draft
        for role, tokenizer, size in (
            ("target", target, target_size),
            ("draft", draft, draft_size),
        ):
            if tokenizer.vocab_size > size:
                raise IncompatibleModelsError(
                    f"the {role} has {tokenizer.vocab_size} tokens but scores only {size} ids"
                )
        draft_of = np.full(target_size, -1, dtype=np.int32)
        for data, target_id in self._to_target.ids.items():
            draft_of[target_id] = self._to_draft.ids.get(data, -1)
        for target_id, piece in self._control.items():
            if isinstance(piece, int):
                draft_of[target_id] = piece
        ends, their_ends = sorted(target.eos_token_ids), sorted(draft.eos_token_ids)
        is_open = len(ends) == len(their_ends) == 1 and draft_of[ends[0]] < 0
        if is_open and their_ends[0] not in draft_of:
            draft_of[ends[0]] = their_ends[0]
        return VocabularyMap(draft_of)

    def piece(self, target_id: int) -> bytes | int:
        """Return what a token of the target is to the drafter.

        Parameters
        ----------
        target_id : int
            The token.

        Returns
        -------
        bytes or int
            Bytes of text, or the drafter's own id of a control token that is spelled
            alike in both. Other control tokens are text to the drafter, as they are
            spelled.
        """
        return self._control.get(target_id, self._target.token_bytes(target_id))

    def target_bytes(self, target_id: int) -> bytes:
        """Return the bytes that a token of the target adds; empty for control tokens."""
        return self._target.token_bytes(target_id)

    def draft_bytes(self, draft_id: int) -> bytes:
        """Return the bytes that a token of the drafter adds; empty for control tokens."""
        return self._draft.token_bytes(draft_id)

    def to_draft(self, data: bytes) -> list[int]:
        """Return the drafter's ids of bytes inside a text; see `InnerEncoder.encode`."""
        return self._to_draft.encode(data)

    def to_target(self, before: bytes, data: bytes) -> list[int]:
        """Return the target's ids of bytes that go on where a text of its own ends.

        Parameters
        ----------
        before : bytes
            The end of the text, from the beginning of a token on. It stands: its tokens
            are written already.
        data : bytes
            What follows it. Half a character at its end is left out, and so is what
            comes after a byte that the target cannot spell.

        Returns
        -------
        list of int
            The ids of what follows alone. Both are encoded together, as the target would
            write them; where that makes one token of the end and what follows, the latter
            is encoded by itself.
        """
        joined = before + data
        joined = joined[: max(complete_length(joined), len(before))]
        after = behind(self._to_target.encode(joined, whole=False), self._target, before)
        if after is None:
            return self._to_target.encode(joined[len(before) :], whole=False)
        return after


def spelling_ids(tokenizer: Tokenizer) -> Mapping[bytes, int]:
    """Return one token for each spelling: a piece of text before a raw byte, the lowest id.

    Parameters
    ----------
    tokenizer : Tokenizer
        The tokenizer.

    Returns
    -------
    mapping of bytes to int
        Without tokens that add no bytes.
    """
    size = tokenizer.vocab_size
    spelled = [tokenizer.token_bytes(index) for index in range(size)]
    raw = set()
    if isinstance(tokenizer, HasVocabulary):
        tokens = tuple(tokenizer.vocabulary.tokens)
        raw = {index for index, token in enumerate(tokens) if token.kind == "byte"}
    ids: dict[bytes, int] = {}
    for index in [*(i for i in range(size) if i not in raw), *sorted(raw)]:
        if spelled[index]:
            ids.setdefault(spelled[index], index)
    return ids


def complete_length(data: bytes) -> int:
    """Return the length without half a character at the end.

    Parameters
    ----------
    data : bytes
        UTF-8, perhaps cut inside a character.

    Returns
    -------
    int
        At most three less than the length. The length itself where the end is no
        beginning of a character.
    """
    for back in range(1, min(_WIDEST, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            width = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return len(data) - back if width > back else len(data)
    return len(data)


def behind(ids: Sequence[int], tokenizer: Tokenizer, before: bytes) -> list[int] | None:
    """Return the tokens behind the first bytes; None where a token spans their end.

    Parameters
    ----------
    ids : sequence of int
        Tokens whose bytes begin with ``before``.
    tokenizer : Tokenizer
        Tells the bytes.
    before : bytes
        The bytes to leave out.

    Returns
    -------
    list of int or None
        The tokens after them.
    """
    length = 0
    for index, token in enumerate(ids):
        if length >= len(before):
            return list(ids[index:]) if length == len(before) else None
        length += len(tokenizer.token_bytes(token))
    return [] if length == len(before) else None


def _control_pieces(target: Tokenizer, draft: Tokenizer) -> dict[int, bytes | int]:
    """Return what the target's control tokens are to the drafter."""
    if not isinstance(target, HasVocabulary):
        return {}
    theirs = draft.vocabulary.control_ids if isinstance(draft, HasVocabulary) else {}
    return {
        index: theirs[text] if text in theirs else text.encode()
        for text, index in target.vocabulary.control_ids.items()
    }


def _start_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return what a tokenizer puts before a text."""
    inside = tokenizer.encode("a", add_special=False)
    whole = tokenizer.encode("a")
    if not inside:
        return tuple(whole)
    for start in range(len(whole) - len(inside) + 1):
        if whole[start : start + len(inside)] == inside:
            return tuple(whole[:start])
    return ()
