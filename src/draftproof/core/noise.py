"""Exponential noise of one position, asked for token by token or block by block.

A race over V tokens is decided by a few of them, so the noise is built from the top:
the smallest of the ``DEPTH`` exponentials of a block and its place are drawn first,
and the others on demand. For independent unit-rate exponentials

* the minimum of n is exponential with rate n,
* where it stands is uniform and independent of it,
* the others exceed it by independent unit-rate exponentials (no memory),

so the noise of token ``t`` of block ``b`` is ``minimum(b)`` where ``t`` is the place
of the minimum, else ``minimum(b) + exponential(t)``: exact in law, one value whoever
asks, in whatever order, for dense and sparse laws alike. The tokens of the last
block need not all exist; a part of independent variables is independent.

Words come from the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) over
a Weyl sequence whose offset and order two 64-bit keys choose. Uniforms are midpoints
of 2**52 cells: the law of a race is off by less than ``V * 2**-52`` in total
variation from that of ideal noise, below the float32 rounding of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.core.lanes import DEPTH, block_count, block_of, depth_of, members, place_of

__all__ = ["PositionNoise"]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
#: Bounds may err by roundings of weights and of the exponential; this covers them.
_SLACK = 1.0 + 2.0**-16
#: Cells of a uniform.
_CELLS = 2.0**52
#: How many blocks, and how many tokens, are looked at first. The winner is nearly
#: always among them; a later look is right whatever these are.
_FIRST_BLOCKS, _FIRST_TOKENS = 32, 64
#: So few tokens are compared number by number.
_FEW = 24
#: For vocabularies up to this size all noise is made: fewer calls, each of them short.
_SMALL = 1024

Weigh = Callable[[NDArray[np.intp]], NDArray[Any]]


class PositionNoise:
    """Independent unit-rate exponentials, one per token id; read only.

    Parameters
    ----------
    keys : tuple of int
        Two words that name the position, in [0, 2**64).
    vocab_size : int
        Number of entries V. A shorter vocabulary has a prefix of the same noise.
    """

    __slots__ = ("_blocks", "_dense", "_keys", "_size")

    def __init__(self, keys: tuple[int, int], vocab_size: int) -> None:
        self._keys = (np.uint64(keys[0]), np.uint64(keys[1]))
        self._size = vocab_size
        self._blocks: tuple[NDArray[np.float64], NDArray[np.intp]] | None = None
        self._dense: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        """Return V."""
        return self._size

    @property
    def is_small(self) -> bool:
        """Whether making all of the noise costs less than looking for what can win."""
        return self._size <= _SMALL

    def __getitem__(self, index: Any) -> Any:
        """Return entries by index, list of indices or slice."""
        return self.__array__()[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return all V values as float64; the slow way."""
        if self._dense is None:
            self._dense = self.at(np.arange(self._size))
            self._dense.flags.writeable = False
        return np.array(self._dense, dtype=dtype, copy=copy)

    def at(self, ids: ArrayLike) -> NDArray[np.float64]:
        """Return the noise of some tokens.

        Parameters
        ----------
        ids : array_like of int, shape (N,)
            Token ids, 0 or more.

        Returns
        -------
        ndarray of float64, shape (N,)
            Positive and finite.
        """
        ids = np.asarray(ids, dtype=np.intp)
        return self._at(ids, *self._at_blocks(block_of(ids)))

    def _at(
        self, ids: NDArray[np.intp], cells: NDArray[np.float64], places: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        noise = _exponentials(cells)
        noise *= 1.0 / DEPTH
        above = _exponentials(_cells(self._words(2 * ids)))
        above *= depth_of(ids) != places
        noise += above
        return noise

    def winner(
        self, peaks: NDArray[Any], weigh: Weigh, size: int, guess: tuple[int, float] | None = None
    ) -> int:
        """Return the argmin of noise / weight over a whole row.

        Parameters
        ----------
        peaks : ndarray of float, shape (block_count(size),)
            Largest weight of every block of the row, with a positive maximum.
        weigh : callable
            Weights of given token ids, not negative.
        size : int
            Number of entries of the row, at most V.
        guess : tuple of (int, float), optional
            A token below ``size`` that may well win, and its weight but for a thousandth.
            It saves work and changes no winner.

        Returns
        -------
        int
            A token of positive weight, the lowest id on ties.

        Notes
        -----
        Noise ``-log(1 - u) / DEPTH`` of a block's minimum is at least ``u / DEPTH``,
        which bounds every arrival in the block from below without a logarithm. Blocks
        whose bound is later than an arrival that is known stay closed. On average at
        most ``DEPTH`` blocks have an earlier one than the winner's, whatever the law.
        """
        if self._blocks is None:
            self._blocks = self._make(np.arange(block_count(self._size)))
        bounds = _divided(self._blocks[0][: len(peaks)], peaks)
        if guess is not None:
            token = self._winner_before(self._latest(*guess), bounds, weigh, size)
            if token is not None:
                return token
        opened, next_bound = _earliest(bounds, _FIRST_BLOCKS)
        ids = members(opened, size)
        token, limit = self._first(ids, weigh(ids))
        if next_bound <= limit:
            ids = members(np.flatnonzero(bounds <= limit), size)
            token, _ = self._first(ids, weigh(ids))
        return token

    def _winner_before(
        self, limit: float, bounds: NDArray[np.float64], weigh: Weigh, size: int
    ) -> int | None:
        """Return the winner if few blocks may hold an arrival before a bound, else None."""
        opened = np.flatnonzero(bounds <= limit)
        if not 0 < len(opened) <= _FIRST_BLOCKS:
            return None
        ids = members(opened, size)
        weights, (cells, places) = weigh(ids), self._at_blocks(block_of(ids))
        tried = np.flatnonzero(_divided(cells, weights) <= limit)
        ids, weights, cells, places = ids[tried], weights[tried], cells[tried], places[tried]
        token = self._clear_winner(ids, weights, cells, places) if len(ids) <= _FEW else None
        return self._compared(ids, weights, cells, places)[0] if token is None else token

    def _clear_winner(
        self,
        ids: NDArray[np.intp],
        weights: NDArray[Any],
        cells: NDArray[np.float64],
        places: NDArray[np.intp],
    ) -> int | None:
        """Return the winner unless the runner-up is so close that a logarithm's rounding counts.

        Number by number, which for few tokens takes less than one call per operation.
        """
        winner, first, second = None, math.inf, math.inf
        entries = zip(ids.tolist(), weights.tolist(), cells.tolist(), places.tolist(), strict=True)
        for token, weight, cell, place in entries:
            if not weight > 0.0:
                continue
            arrival = self._exponential(token, cell, place) / weight
            if arrival < first:
                winner, first, second = token, arrival, first
            elif arrival < second:
                second = arrival
        return winner if first < second * (1.0 - 2.0**-40) else None

    def _latest(self, token: int, weight: float) -> float:
        """Return a bound that no arrival before this token's exceeds, without an array."""
        assert self._blocks is not None  # narrows the type
        if not weight > 0.0:
            return math.inf
        block, _ = place_of(token)
        cells, places = self._blocks
        arrival = self._exponential(token, cells.item(block), places.item(block)) / weight
        return arrival * ((1.0 + 2.0**-9) * _CELLS * DEPTH)

    def _exponential(self, token: int, cell: float, place: int) -> float:
        """Return the noise of one token, up to the rounding of a logarithm."""
        noise = -math.log1p(cell / -_CELLS) / DEPTH
        if place_of(token)[1] != place:
            noise -= math.log1p(((self._word(2 * token) >> 12) + 0.5) / -_CELLS)
        return noise

    def _word(self, counter: int) -> int:
        """Return one of `_words`."""
        word = ((counter ^ int(self._keys[1])) * int(_GAMMA) + int(self._keys[0])) & _MASK
        word = ((word ^ (word >> 30)) * int(_FIRST)) & _MASK
        word = ((word ^ (word >> 27)) * int(_SECOND)) & _MASK
        return word ^ (word >> 31)

    def winner_among(self, ids: NDArray[np.intp], weights: NDArray[Any]) -> int:
        """Return the argmin of noise / weight over some tokens.

        Parameters
        ----------
        ids : ndarray of int, shape (N,)
            Distinct token ids.
        weights : ndarray of float, shape (N,)
            Not negative, with a positive maximum.

        Returns
        -------
        int
            The id of a token of positive weight, the lowest on ties.
        """
        return self._first(ids, weights)[0]

    def _first(self, ids: NDArray[np.intp], weights: NDArray[Any]) -> tuple[int, float]:
        """Return the winner among some tokens and the latest bound that may beat it."""
        cells, places = self._at_blocks(block_of(ids))
        if len(ids) <= 2 * _FIRST_TOKENS:
            return self._compared(ids, weights, cells, places)
        bounds = _divided(cells, weights)
        tried, next_bound = _earliest(bounds, _FIRST_TOKENS)
        found = self._compared(ids[tried], weights[tried], cells[tried], places[tried])
        if next_bound <= found[1]:
            tried = np.flatnonzero(bounds <= found[1])
            found = self._compared(ids[tried], weights[tried], cells[tried], places[tried])
        return found

    def _compared(
        self,
        ids: NDArray[np.intp],
        weights: NDArray[Any],
        cells: NDArray[np.float64],
        places: NDArray[np.intp],
    ) -> tuple[int, float]:
        """Compare true arrivals; without any positive weight nothing wins, at infinity."""
        arrivals = _divided(self._at(ids, cells, places), weights)
        earliest = arrivals.min()
        if earliest == np.inf:  # no weight, or weights too small for a finite time
            possible = ids[weights > 0.0]
            return (int(possible.min()) if len(possible) else -1), np.inf
        token = int(ids[arrivals == earliest].min())
        return token, float(earliest) * (_SLACK * _CELLS * DEPTH)

    def _at_blocks(self, blocks: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        if self._blocks is None:
            return self._make(blocks)
        cells, places = self._blocks
        return cells[blocks], places[blocks]

    def _make(self, blocks: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
        """Return the uniform of each block's minimum, in cells, and the minimum's place."""
        words = self._words(2 * blocks + 1)
        # The uniform takes the upper 52 bits, the place the lowest: never the same.
        return _cells(words), (words & np.uint64(DEPTH - 1)).view(np.intp)

    def _words(self, counters: NDArray[np.intp]) -> NDArray[np.uint64]:
        words: NDArray[np.uint64] = counters.view(np.uint64)
        words ^= self._keys[1]
        words *= _GAMMA
        words += self._keys[0]
        words ^= words >> np.uint64(30)
        words *= _FIRST
        words ^= words >> np.uint64(27)
        words *= _SECOND
        words ^= words >> np.uint64(31)
        return words


def _cells(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return the midpoints of the cells of uniforms, in (0, 2**52): exact in float64."""
    cells: NDArray[np.float64] = (words >> np.uint64(12)).astype(np.float64)
    cells += 0.5
    return cells


def _exponentials(cells: NDArray[np.float64]) -> NDArray[np.float64]:
    noise: NDArray[np.float64] = cells * (-1.0 / _CELLS)
    np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    return noise


def _divided(times: NDArray[np.float64], weights: NDArray[Any]) -> NDArray[np.float64]:
    """Return arrivals or their bounds: infinite where the weight is 0."""
    with np.errstate(divide="ignore", over="ignore"):
        arrivals: NDArray[np.float64] = times / weights
    return arrivals


def _earliest(bounds: NDArray[np.float64], count: int) -> tuple[NDArray[np.intp], float]:
    """Return the places of the lowest bounds, and the lowest of the others."""
    if len(bounds) <= count:
        return np.arange(len(bounds)), np.inf
    order = bounds.argpartition(count)
    return order[:count], float(bounds[order[count]])
