"""A suffix array that grows at one end and shrinks at the other.

Every token of a text stands after a context: the tokens before it, nearest first. The
index keeps the places of the text sorted by their contexts, as a suffix array of the
reversed text does. The places whose contexts agree longest with a given one are then
its neighbours, so that the longest match costs one binary search, and all places of
one match stand side by side. Unlike a suffix automaton it forgets: a place is removed
as it was put in, so that a window of fixed size slides over a text of any length.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import InvariantError

__all__ = ["SEPARATOR", "ContextIndex", "ContextMatch", "context_bytes"]

#: Stands between two texts of one index; no token has this id, and no context it.
SEPARATOR = 2**32 - 1

#: Bytes of a token. Big-endian, so that comparing bytes compares ids.
_WIDTH = 4
#: Places per block of the sorted order; a block is split at twice this.
_BLOCK = 256
#: More new tokens than this share of the places are sorted at once.
_BULK_SHARE = 8


@dataclass(frozen=True, slots=True)
class ContextMatch:
    """Places whose contexts agree longest with the one that was looked up.

    Parameters
    ----------
    length : int
        Number of agreeing tokens, at most the depth of the index.
    places : tuple of int
        Indices of the tokens that followed, in no order.
    """

    length: int
    places: tuple[int, ...]


class ContextIndex:
    """The places of a text, sorted by what stands before them.

    Parameters
    ----------
    depth : int, default 32
        Tokens of a context that are compared. Contexts that agree in all of them
        count as equal and stand in order of the text.
    window : int, default 131072
        Most places held; the oldest is forgotten for every new one after that.

    Notes
    -----
    Adding, forgetting and looking up a token each cost O(log window) comparisons of
    ``4 * depth`` bytes, whatever the text; no text is hostile. A long piece is sorted at
    once, by O(log depth) sorts of the window. What is held is at most 24 bytes per place
    and a few kilobytes: `num_bytes` counts it.
    """

    def __init__(self, depth: int = 32, window: int = 131_072) -> None:
        self._window = window
        self._span = _WIDTH * depth
        self._size = 0
        self._oldest = 0
        # The text backwards, newest token first, written from the end of the buffer: the
        # context of place p is the slice that begins at _origin - 4 p.
        self._held_from = 0
        self._origin = 0
        self._buffer = bytearray()
        self._blocks: list[array[int]] = []
        self._num_places = 0

    def __len__(self) -> int:
        """Return the number of tokens added so far, forgotten ones included."""
        return self._size

    @property
    def num_places(self) -> int:
        """How many places are held."""
        return self._num_places

    @property
    def num_bytes(self) -> int:
        """Bytes of memory in use."""
        held = sum(block.itemsize * len(block) + 80 for block in self._blocks)
        return held + 8 * len(self._blocks) + len(self._buffer)

    def token(self, place: int) -> int:
        """Return the token at a place that is held."""
        end = self._origin - _WIDTH * place
        return int.from_bytes(self._buffer[end - _WIDTH : end])

    @property
    def end(self) -> bytes:
        """The context at the text's end, as `context_bytes` packs it."""
        return bytes(self._key(self._size))

    def starts(self, tokens: Sequence[int]) -> bool:
        """Say whether a text begins with the tokens held.

        Parameters
        ----------
        tokens : sequence of int
            A text. Tokens that the window has left behind are not compared.

        Returns
        -------
        bool
            False also when the text is shorter.
        """
        if self._size > len(tokens):
            return False
        begin = self._origin - _WIDTH * self._size
        length = _WIDTH * (self._size - self._held_from)
        packed = context_bytes(tokens[self._held_from : self._size])
        return self._buffer[begin : begin + length] == packed

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens, and forget as many of the oldest as the window asks.

        Parameters
        ----------
        tokens : sequence of int
            The tokens that follow those already added; ids from 0 to 2**32 - 1, where
            the last one is a separator.
        """
        depth = self._span // _WIDTH
        if len(tokens) > max(64, self._num_places // _BULK_SHARE):
            self._oldest = max(self._oldest, self._size + len(tokens) - self._window)
            self._write(tokens, max(self._held_from, self._oldest - depth))
            self._sort_anew()
            return
        self._write(tokens, max(self._held_from, self._oldest - depth))
        for place in range(self._size - len(tokens), self._size):
            if self._is_place(place):
                self._insert(place)
        while self._oldest < self._size - self._window:
            if self._is_place(self._oldest):
                self._remove(self._oldest)
            self._oldest += 1

    def longest(self, context: bytes, limit: int = 32) -> ContextMatch | None:
        """Find the places whose contexts agree longest with a context.

        Parameters
        ----------
        context : bytes
            The newest tokens of a text, packed by `context_bytes`; for this text's own
            end it is ``end``. No more than ``depth`` tokens of it count.
        limit : int, default 32
            Most places to return. Of contexts that agree in full depth the newest are
            returned, otherwise those that are nearest in the sorted order.

        Returns
        -------
        ContextMatch or None
            None when no place agrees in one token.
        """
        key = bytearray(context[: self._span])
        if not key or not self._blocks:
            return None
        sides = self._neighbours(key)
        nearest = [next(side, None) for side in sides]
        length = max(0 if p is None else _agreement(key, self._key(p)) for p in nearest)
        if length == 0:
            return None
        wanted = key[: _WIDTH * length]
        places: list[int] = []
        # The nearest of either side in turn; the newer of equal contexts are nearer.
        while len(places) < limit and nearest != [None, None]:
            for side in (0, 1):
                place = nearest[side]
                if place is not None and self._agrees(place, wanted):
                    places.append(place)
                    nearest[side] = next(sides[side], None)
                else:
                    nearest[side] = None
        return ContextMatch(length, tuple(places[:limit]))

    def _key(self, place: int) -> bytearray:
        """Return the context of a place: up to ``depth`` tokens, nearest first."""
        begin = self._origin - _WIDTH * place
        return self._buffer[begin : begin + self._span]

    def _first_key(self, block: array[int]) -> bytearray:
        return self._key(block[0])

    def _agrees(self, place: int, wanted: bytearray) -> bool:
        begin = self._origin - _WIDTH * place
        return self._buffer[begin : begin + len(wanted)] == wanted

    def _is_place(self, place: int) -> bool:
        """Say whether the token of a place can be proposed, and has a context."""
        return place > 0 and self.token(place) != SEPARATOR

    def _write(self, tokens: Sequence[int], keep_from: int) -> None:
        """Write tokens into the buffer, which keeps those from ``keep_from`` on."""
        size = self._size + len(tokens)
        tokens = tokens[max(0, keep_from - self._size) :]
        begin = self._origin - _WIDTH * self._size - _WIDTH * len(tokens)
        if begin < 0 or keep_from > self._size:
            held = max(0, self._size - keep_from)
            end = self._origin - _WIDTH * self._size + _WIDTH * held
            kept = self._buffer[end - _WIDTH * held : end]
            room = held + len(tokens)
            room += max(64, room // 2)
            self._buffer = bytearray(_WIDTH * room)
            self._held_from = size - held - len(tokens)
            self._origin = _WIDTH * (room + self._held_from)
            begin = self._origin - _WIDTH * size
            self._buffer[begin + _WIDTH * len(tokens) :] = kept
        self._buffer[begin : begin + _WIDTH * len(tokens)] = context_bytes(tokens)
        self._size = size

    def _sort_anew(self) -> None:
        """Sort all places of the window, by contexts of 1, 2, 4, ... tokens in turn.

        The rank of a context of 2 k tokens follows from those of its nearer and its
        farther half. What reaches past the beginning of the text ranks first.
        """
        begin = self._origin - _WIDTH * self._size
        count = self._size - self._held_from
        packed = self._buffer[begin : begin + _WIDTH * count]
        tokens = np.frombuffer(packed, dtype=">u4")[::-1].astype(np.int64)
        # ranks[i] belongs to the place _held_from + i; only the first has no context, rank 0.
        ranks = _dense(np.concatenate([[0], tokens[:-1] + 1]))
        depth, length = self._span // _WIDTH, 1
        while length < depth:
            shift = min(length, depth - length)
            farther = np.zeros_like(ranks)
            farther[shift:] = ranks[: max(0, count - shift)]
            ranks = _dense(ranks * count + farther)
            length += shift
        first = max(self._oldest, 1) - self._held_from
        order = np.argsort(ranks[first:], kind="stable") + first
        places = order[tokens[order] != SEPARATOR] + self._held_from
        whole = array("q", places.astype(np.int64).tobytes())
        self._blocks = [whole[i : i + _BLOCK] for i in range(0, len(whole), _BLOCK)]
        self._num_places = len(whole)

    def _insert(self, place: int) -> None:
        """Put a new place in order; it is the newest, so it goes after its equals."""
        self._num_places += 1
        if not self._blocks:
            self._blocks.append(array("q", (place,)))
            return
        number, slot = self._slot_after(self._key(place))
        block = self._blocks[number]
        block.insert(slot, place)
        if len(block) > 2 * _BLOCK:
            self._blocks[number : number + 1] = [block[:_BLOCK], block[_BLOCK:]]

    def _remove(self, place: int) -> None:
        """Take out the oldest place, which is the first of its equals."""
        key = self._key(place)
        number = max(0, bisect_left(self._blocks, key, key=self._first_key) - 1)
        slot = bisect_left(self._blocks[number], key, key=self._key)
        if slot == len(self._blocks[number]):
            number, slot = number + 1, 0
        block = self._blocks[number]
        if block[slot] != place:
            raise InvariantError(f"place {place} is not where its context belongs")
        del block[slot]
        if not block:
            del self._blocks[number]
        self._num_places -= 1

    def _slot_after(self, key: bytearray) -> tuple[int, int]:
        """Return block and slot after all places whose contexts are at most the key."""
        number = max(0, bisect_right(self._blocks, key, key=self._first_key) - 1)
        return number, bisect_right(self._blocks[number], key, key=self._key)

    def _neighbours(self, key: bytearray) -> tuple[Iterator[int], Iterator[int]]:
        """Walk away from where a context belongs, downwards and upwards."""
        number, slot = self._slot_after(key)
        blocks = self._blocks

        def down() -> Iterator[int]:
            yield from reversed(blocks[number][:slot])
            for before in range(number - 1, -1, -1):
                yield from reversed(blocks[before])

        def up() -> Iterator[int]:
            yield from blocks[number][slot:]
            for after in range(number + 1, len(blocks)):
                yield from blocks[after]

        return down(), up()


def context_bytes(tokens: Sequence[int]) -> bytes:
    """Pack tokens, nearest to the end first, so that bytes compare as ids do.

    Parameters
    ----------
    tokens : sequence of int
        Ids from 0 to 2**32 - 1.

    Returns
    -------
    bytes
        Four per token.
    """
    return np.array(tokens, dtype=">u4")[::-1].tobytes()


def _dense(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each value among the distinct ones."""
    ranks: NDArray[np.int64] = np.unique(values, return_inverse=True)[1]
    return ranks


def _agreement(left: bytearray, right: bytearray) -> int:
    """Return how many tokens two contexts share from their nearest on."""
    size = min(len(left), len(right))
    differing = int.from_bytes(left[:size]) ^ int.from_bytes(right[:size])
    return (8 * size - differing.bit_length()) // (8 * _WIDTH)
