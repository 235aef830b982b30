"""A law that holds a weight for every token, and puts off whatever it can.

Two things may be pending. The exponential: a race needs it only for the tokens that
can win. And what is left after a few tokens lost weight: the block sums are made at
once, the entries only for the block that a draw falls into.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.core.base_law import Law
from draftproof.core.lanes import lane_peaks
from draftproof.core.noise import PositionNoise
from draftproof.core.softmax import Softmax
from draftproof.core.sparse_law import OneHotLaw, SparseLaw
from draftproof.core.weights import (
    BLOCK,
    as_weights,
    block_sums,
    check_law,
    first_above,
    plain_race,
)

__all__ = ["DenseLaw"]

#: Entries that are summed at a time.
_TILE = 256 * BLOCK

#: Returns the entries from one index up to another.
_Part = Callable[[int, int], NDArray[Any]]


class DenseLaw(Law):
    """A law that holds a weight for every token.

    Parameters
    ----------
    weights : array_like of float32 or float64, shape (V,)
        Weights, finite and not negative, with a positive total. The array is held,
        not copied: the caller must not write to it any more.

    Raises
    ------
    InvariantError
        If the weights are no law.

    Notes
    -----
    To whoever asks, a law never changes; but the first question may fill in what is
    pending, so two threads must not ask the same law at once.
    """

    __slots__ = ("_array", "_known_sums", "_known_total", "_part", "_softmax")

    def __init__(self, weights: ArrayLike) -> None:
        weight_array = as_weights(weights)
        self._hold(weight_array, block_sums(weight_array))
        check_law(weight_array, self._total)

    @classmethod
    def _trusted(cls, weights: NDArray[Any], sums: NDArray[np.float64] | None = None) -> DenseLaw:
        law = cls.__new__(cls)
        law._hold(weights, block_sums(weights) if sums is None else sums)
        return law

    @classmethod
    def _of_softmax(cls, softmax: Softmax) -> DenseLaw:
        law = cls.__new__(cls)
        law._vocab_size = len(softmax)
        law._array = law._part = None
        law._softmax = softmax
        return law

    @classmethod
    def _of_parts(cls, part: _Part, sums: NDArray[np.float64], vocab_size: int) -> DenseLaw:
        law = cls.__new__(cls)
        law._vocab_size = vocab_size
        law._array = law._softmax = None
        law._part = part
        law._known_sums = sums
        law._known_total = float(sums.sum())
        return law

    def _hold(self, weights: NDArray[Any], sums: NDArray[np.float64]) -> None:
        self._vocab_size = len(weights)
        self._softmax: Softmax | None = None
        self._part: _Part | None = None
        self._array: NDArray[Any] | None = weights
        self._known_sums = sums
        self._known_total = float(sums.sum()) if len(sums) > 1 else float(sums.item())

    def _settle(self) -> None:
        """Take the exponential, if that is pending; keep weights only where there is room."""
        if self._part is not None or self._softmax is None:
            return
        if self._softmax.is_owned:
            self._hold(*self._softmax.settle())
        else:
            self._part = self._softmax.part
            self._known_sums = self._softmax.sums()
            self._known_total = float(self._known_sums.sum())

    @property
    def _weights(self) -> NDArray[Any]:
        self._settle()
        if self._array is None:
            assert self._part is not None
            self._array = self._part(0, self._vocab_size)
        return self._array

    def _at(self, ids: NDArray[np.intp]) -> NDArray[Any]:
        if self._array is None and self._softmax is not None:
            return self._softmax.at(ids)
        return self._weights[ids]

    def _range(self) -> _Part:
        """Return the way to a range of weights, by tiles where no array is held."""
        if self._array is None and self._softmax is not None and not self._softmax.is_owned:
            return self._softmax.part
        weights = self._weights
        return lambda start, stop: weights[start:stop]

    @property
    def _block_sums(self) -> NDArray[np.float64]:
        self._settle()
        return self._known_sums

    @property
    def _total(self) -> float:
        self._settle()
        return self._known_total

    def __repr__(self) -> str:
        """Return a short description."""
        return f"DenseLaw(<{self._vocab_size} tokens, {self._weights.dtype}>)"

    def prob(self, token: int) -> float:
        """Return the probability of a token; 0 for an id outside the vocabulary."""
        if not 0 <= token < self._vocab_size:
            return 0.0
        total = self._total  # first: it may fill in the weights
        if self._array is not None:
            return float(self._array.item(token)) / total
        return float(self._at(np.array([token]))[0]) / total

    def prob_range(self, token: int) -> tuple[float, float]:
        """Return bounds of a probability; without the exponential if that is pending."""
        pending = self._softmax if self._array is None and self._part is None else None
        if pending is not None and 0 <= token < self._vocab_size:
            found = pending.prob_range(token)
            if found is not None:
                return found
        prob = self.prob(token)
        return prob, prob

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids."""
        total = self._total
        probs: NDArray[np.float64] = self._at(token_ids).astype(np.float64)
        probs /= total
        return probs

    def draw(self, u: float) -> int:
        """Return the first token whose cumulative probability exceeds ``u``."""
        point = u * self._total
        if self._array is not None and self._vocab_size < BLOCK:
            return first_above(_cumulative(self._array), self._array, point)
        cumulative = self._block_sums.cumsum()
        block = first_above(cumulative, self._block_sums, point)
        start, stop = block * BLOCK, min((block + 1) * BLOCK, self._vocab_size)
        if self._array is None and self._part is not None:
            inside = self._part(start, stop)
        else:
            inside = self._weights[start:stop]
        before = float(cumulative[block - 1]) if block else 0.0
        return start + first_above(_cumulative(inside), inside, point - before)

    def race(self, noise: NDArray[np.float64] | PositionNoise) -> int:
        """Return the argmin of noise / prob."""
        if not isinstance(noise, PositionNoise):
            return plain_race(noise, self._weights)
        if noise.is_small:
            return plain_race(noise[: self._vocab_size], self._weights)
        if self._softmax is not None and self._array is None:
            return self._softmax.race(noise, None)
        weights = self._weights
        return noise.winner(lane_peaks(weights), weights.__getitem__, self._vocab_size)

    def race_beside(self, noise: NDArray[np.float64] | PositionNoise, guess: int) -> int:
        """Return the argmin of noise / prob, sooner where the guess is right."""
        pending = self._softmax if self._array is None else None
        if pending is None or not isinstance(noise, PositionNoise) or noise.is_small:
            return self.race(noise)
        return pending.race(noise, guess if guess < self._vocab_size else None)

    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, shape (V,)."""
        probs: NDArray[np.float64] = np.divide(self._weights, self._total, dtype=np.float64)
        return probs

    def _excess(self, other: Law, scale: float) -> tuple[float, Law | None]:
        if isinstance(other, OneHotLaw) and self._array is not None:
            law = self._without(other.token)
            return scale * (law._total / self._total), law
        # In units of this law's weights, in float64 whatever they are held in.
        unit = self._total / scale
        if isinstance(other, DenseLaw):
            excess = np.multiply(other._weights, unit / other._total, dtype=np.float64)
            np.subtract(self._weights, excess, out=excess)
            np.maximum(excess, 0.0, out=excess)
            law = DenseLaw._trusted(excess)
        elif isinstance(other, SparseLaw):
            law = self._less(other._ids, unit * other.probs_at(other._ids))
        elif isinstance(other, OneHotLaw):
            law = self._less(np.array([other.token]), np.array([np.inf]))
        else:
            law = DenseLaw._trusted(np.maximum(self._weights - unit * other.dense(), 0.0))
        return scale * (law._total / self._total), law

    def _less(self, ids: NDArray[np.intp], amounts: NDArray[np.float64]) -> DenseLaw:
        """Take amounts from a few weights, none below 0."""
        weights, size = self._range(), self._vocab_size
        left = np.maximum(self._at(ids) - amounts, 0.0)  # float64

        def part(start: int, stop: int) -> NDArray[np.float64]:
            first, last = ids.searchsorted((start, stop))
            values = weights(start, stop).astype(np.float64)
            values[ids[first:last] - start] = left[first:last]
            return values

        if 4 * len(ids) > len(self._block_sums):
            return DenseLaw._of_parts(part, _sums_of(part, size), size)
        touched = np.unique(ids // BLOCK)
        places = touched[:, None] * BLOCK + np.arange(BLOCK)
        values = self._at(np.minimum(places, size - 1)).astype(np.float64)
        values[places >= size] = 0.0
        values[touched.searchsorted(ids // BLOCK), ids % BLOCK] = left
        sums = self._block_sums.copy()
        sums[touched] = values.sum(axis=1)
        return DenseLaw._of_parts(part, sums, size)

    def _without(self, token: int) -> DenseLaw:
        weights = self._weights.copy()
        weights[token] = 0.0
        block = token // BLOCK
        sums = self._block_sums.copy()
        sums[block] = weights[block * BLOCK : (block + 1) * BLOCK].sum(dtype=np.float64)
        return DenseLaw._trusted(weights, sums)


def _cumulative(weights: NDArray[Any]) -> NDArray[np.float64]:
    # What np.cumsum does, at a third of its cost where the weights are few.
    sums: NDArray[np.float64] = np.add.accumulate(weights, dtype=np.float64)
    return sums


def _sums_of(part: _Part, size: int) -> NDArray[np.float64]:
    sums = np.empty(-(-size // BLOCK))
    for start in range(0, size, _TILE):
        tile = block_sums(part(start, min(start + _TILE, size)))
        sums[start // BLOCK :][: len(tile)] = tile
    return sums
