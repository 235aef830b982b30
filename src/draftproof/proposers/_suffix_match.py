"""An incremental index that finds where the end of a text occurred before.

The index keeps, for every position, a rolling 64-bit hash of the prefix. The hash
of any n-gram then costs two look-ups, for every n, so that no table per n-gram
length exists. A query scans the hashes of the shortest n-grams once (one
vectorised comparison over the context) and narrows the few hits down by a binary
search over the length. Hashes only propose: the winner is compared token by token,
and a collision falls back to a search that uses no hash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["SuffixMatch", "SuffixMatchIndex"]

Scalar = TypeVar("Scalar", bound=np.generic)
#: One id, or an array of them.
Wide = TypeVar("Wide", int, NDArray[np.uint64])

#: Odd multiplier of the rolling hash modulo 2**64: 2**64 divided by the golden ratio.
_MULTIPLIER = 0x9E3779B97F4A7C15

#: Size of the first block of hits, newest first; each further block is 16 times larger.
#: A text that repeats itself is decided within the first, however long it is.
_NEWEST = 256

#: Up to so many new tokens are hashed one by one, which a dozen calls on arrays cost more than.
_FEW = 8
_WRAP = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SuffixMatch:
    """An earlier occurrence of the end of the text.

    Parameters
    ----------
    end : int
        Index of the token that followed the earlier occurrence.
    length : int
        Number of matching tokens before it.
    """

    end: int
    length: int


class SuffixMatchIndex:
    """Longest earlier occurrence of a text's own suffix, kept up token by token.

    Parameters
    ----------
    min_n : int
        Shortest match that counts, in tokens; at least 1.
    max_n : int
        Longest match that is looked for, in tokens.
    multiplier : int
        Odd base of the rolling hash; tests pass a bad one to force collisions.

    Notes
    -----
    Appending costs a fixed number of vectorised operations per call and O(1) memory
    per token (28 bytes). ``longest`` is one pass over the context plus
    O(hits * log(max_n - min_n)).
    """

    def __init__(self, min_n: int, max_n: int, *, multiplier: int = _MULTIPLIER) -> None:
        self._min_n = min_n
        self._max_n = max_n
        self._multiplier = multiplier
        self._inverse = pow(multiplier, -1, 2**64)
        self._size = 0
        self._power = 1  # multiplier**size
        self._tokens = np.empty(64, dtype=np.int32)
        # prefix[i] hashes tokens[:i]; scale[i] is multiplier**-i, which makes the hashes of
        # equal n-grams at different places equal; keys[i] hashes tokens[i - min_n:i].
        self._prefix = np.zeros(65, dtype=np.uint64)
        self._scale = np.ones(65, dtype=np.uint64)
        self._keys = np.zeros(65, dtype=np.uint64)

    def __len__(self) -> int:
        """Return the number of tokens held."""
        return self._size

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens held, shape (T,); a view that the next ``extend`` outdates."""
        return self._tokens[: self._size]

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append tokens.

        Parameters
        ----------
        token_ids : sequence of int
            The tokens that follow those already held.
        """
        count = len(token_ids)
        if count == 0:
            return
        begin, end = self._size, self._size + count
        self._make_room(end)
        if count <= _FEW:
            for token in token_ids:
                self._append(int(token))
            return
        self._tokens[begin:end] = token_ids
        # Products and sums run in place over arrays: uint64 arrays wrap silently, scalars warn.
        scale = self._scale[begin : end + 1]
        scale[1:] = self._inverse
        np.multiply.accumulate(scale, out=scale)
        powers = np.full(count, self._multiplier, dtype=np.uint64)
        powers[0] = self._power
        np.multiply.accumulate(powers, out=powers)
        prefix = self._prefix[begin : end + 1]
        prefix[1:] = _mix(self._tokens[begin:end].astype(np.uint64)) * powers
        np.add.accumulate(prefix, out=prefix)
        self._size = end
        self._power = int(powers[-1]) * self._multiplier & _WRAP
        first = max(begin + 1, self._min_n)
        if first <= end:
            self._keys[first : end + 1] = self._hashes(slice(first, end + 1), self._min_n)

    def _append(self, token: int) -> None:
        """Hash one token as `extend` does, with integers that wrap by hand."""
        size, least = self._size, self._min_n
        self._tokens[size] = token
        scale = int(self._scale[size]) * self._inverse & _WRAP
        prefix = int(self._prefix[size]) + _mix(token) * self._power & _WRAP
        self._power = self._power * self._multiplier & _WRAP
        self._size = size = size + 1
        self._scale[size], self._prefix[size] = scale, prefix
        if size >= least:
            self._keys[size] = (prefix - int(self._prefix[size - least])) * scale & _WRAP

    def longest(self) -> SuffixMatch | None:
        """Find the longest suffix that also ends earlier; the newest of equals.

        Returns
        -------
        SuffixMatch or None
            None when no suffix of at least ``min_n`` tokens occurred before. The
            earlier occurrence may overlap the suffix but never is the suffix itself.
        """
        size = self._size
        if size <= self._min_n:
            return None
        window = self._keys[self._min_n : size]
        hits = np.flatnonzero(window == self._keys[size]) + self._min_n
        if len(hits) == 0:
            return None
        found = self._narrow(hits)
        if self._is_match(found.end, found.length):
            return found
        return self._longest_without_hashes()

    def matches(self, limit: int) -> list[SuffixMatch]:
        """Find earlier occurrences of the text's end, longest first, newest of equals first.

        Parameters
        ----------
        limit : int
            How many of the newest occurrences of the shortest match are looked at.

        Returns
        -------
        list of SuffixMatch
            Each with the length to which it agrees, ``min_n`` to ``max_n``.
        """
        size, tokens = self._size, self.tokens
        if size <= self._min_n:
            return []
        window = self._keys[self._min_n : size]
        ends = np.flatnonzero(window == self._keys[size])[-limit:] + self._min_n
        found: list[SuffixMatch] = []
        for length in range(1, min(self._max_n, size - 1) + 1):
            # Token by token, so that a collision of hashes is no match.
            agrees = (ends >= length) & (tokens[ends - length] == tokens[size - length])
            if length > self._min_n:
                found += [SuffixMatch(int(end), length - 1) for end in ends[~agrees]]
            ends = ends[agrees]
        found += [SuffixMatch(int(end), min(self._max_n, size - 1)) for end in ends]
        return sorted(found, key=lambda match: (-match.length, -match.end))

    def _narrow(self, hits: NDArray[np.intp]) -> SuffixMatch:
        """Find the longest match among hits by hashes, newest hits first.

        Older hits only matter where they match longer than the newer ones, so that one
        filter disposes of nearly all of them, in ordinary and in repetitive text alike.
        """
        greatest = min(self._max_n, self._size - 1)
        best = SuffixMatch(int(hits[-1]), self._min_n)
        end, block = len(hits), _NEWEST
        while end > 0 and best.length < greatest:
            kept = self._survivors(hits[max(0, end - block) : end], best.length + 1)
            if len(kept):
                best = self._bisect(kept, best.length + 1, greatest)
            end, block = end - block, 16 * block
        return best

    def _bisect(self, hits: NDArray[np.intp], low: int, greatest: int) -> SuffixMatch:
        """Find the longest match among hits that all match ``low`` tokens.

        A match of n tokens is a match of n - 1 too, so the lengths bisect. The steps
        double at first: ordinary text loses nearly all hits within a token or two.
        """
        whole = self._survivors(hits, greatest)
        if len(whole):
            return SuffixMatch(int(whole[-1]), greatest)
        high, step = greatest, 1
        while high - low > 1:
            middle = min(low + step, (low + high) // 2)
            kept = self._survivors(hits, middle)
            if len(kept):
                hits, low, step = kept, middle, 2 * step
            else:
                high = middle
        return SuffixMatch(int(hits[-1]), low)

    def _survivors(self, ends: NDArray[np.intp], length: int) -> NDArray[np.intp]:
        """Keep the ends whose last ``length`` tokens hash like the suffix."""
        ends = ends[np.searchsorted(ends, length) :]
        wanted = self._hashes(slice(self._size, self._size + 1), length)
        found = (self._prefix[ends] - self._prefix[ends - length]) * self._scale[ends]
        kept: NDArray[np.intp] = ends[found == wanted]
        return kept

    def _hashes(self, ends: slice, length: int) -> NDArray[np.uint64]:
        """Hash the ``length`` tokens before each end of a contiguous range."""
        before = self._prefix[ends.start - length : ends.stop - length]
        return (self._prefix[ends] - before) * self._scale[ends]

    def _is_match(self, end: int, length: int) -> bool:
        size = self._size
        return np.array_equal(self._tokens[end - length : end], self._tokens[size - length : size])

    def _longest_without_hashes(self) -> SuffixMatch | None:
        """Grow matches token by token; linear per length, used after a collision only."""
        tokens, size = self.tokens, self._size
        ends = np.arange(1, size)
        best: SuffixMatch | None = None
        for length in range(1, min(self._max_n, size - 1) + 1):
            ends = ends[ends >= length]
            ends = ends[tokens[ends - length] == tokens[size - length]]
            if len(ends) == 0:
                break
            if length >= self._min_n:
                best = SuffixMatch(int(ends[-1]), length)
        return best

    def _make_room(self, size: int) -> None:
        if size <= len(self._tokens):
            return
        capacity = max(size, 2 * len(self._tokens))
        self._tokens = _grown(self._tokens, capacity)
        self._prefix = _grown(self._prefix, capacity + 1)
        self._scale = _grown(self._scale, capacity + 1)
        self._keys = _grown(self._keys, capacity + 1)


def _grown(values: NDArray[Scalar], size: int) -> NDArray[Scalar]:
    grown = np.zeros(size, dtype=values.dtype)
    grown[: len(values)] = values
    return grown


#: An offset and two odd factors that spread small ids over 64 bits.
_OFFSET, _FIRST, _SECOND = 0x632BE59BD9B4E019, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _mix(ids: Wide) -> Wide:
    """Spread small ids over 64 bits, so that sums of near ids do not collide.

    Arrays wrap by themselves, where the cut changes nothing; integers are cut.
    """
    mixed: Any = (ids + _OFFSET) * _FIRST & _WRAP
    mixed = (mixed ^ mixed >> 29) * _SECOND & _WRAP
    found: Wide = mixed ^ mixed >> 32
    return found
