"""Logits to weights: the only exponential, and laws that put it off.

The weight of a token is ``exp((logit - peak) / T)`` in float32, entry by entry, so
that it does not matter which entries are asked for together.

Most questions need no exponential of a row. Whether a coin lies below a ratio of
probabilities is nearly always clear from bounds of the total, and bounds come from the
bits of the logits: written into the exponent and the mantissa of a float32, a base-two
logarithm ``i + f`` becomes the number ``2**i * (1 + f)`` (Schraudolph, Neural
Computation 11, 1999), which is never below ``2**(i + f)`` and at most 6.15 % above it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from draftproof.core.lanes import lane_peaks
from draftproof.core.noise import PositionNoise
from draftproof.core.scratch import Scratch
from draftproof.core.weights import BLOCK, block_sums

__all__ = ["Softmax", "soften"]

#: Entries that are worked on at a time: they stay in the second-level cache.
_TILE = 256 * BLOCK
#: float32 bits per octave, and the bits of 1.0 and of the smallest normal number.
_OCTAVE, _ONE, _LEAST = 2.0**23, np.float32(127 * 2**23), np.float32(2**23)
#: Most that ``1 + f`` exceeds ``2**f`` for f in [0, 1]; reached where f = 1 / ln 2 - 1.
_EXCESS = 1.0615
#: Covers every rounding in a bound: of logits times a factor (below 2e-4 within
#: `_RANGE`), of float32 sums, and of the float32 exponential that is bounded.
_SLACK = 2.0**-10
#: Largest peak, in temperatures, for which those roundings were counted.
_RANGE = 512.0
#: Weights below ``exp(_SMALL)`` may be denormal and have no relative bound; those below
#: ``exp(_ZERO)`` are 0 in float32.
_SMALL, _ZERO = -80.0, -110.0


# Differences may overflow to -inf for logits near the float32 limits: weight 0.
@np.errstate(over="ignore", under="ignore")
def soften(
    logits: NDArray[np.float32],
    peak: float,
    temperature: float,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return the weights of some logits.

    Parameters
    ----------
    logits : ndarray of float32, shape (N,)
        Finite or -inf, at most ``peak``.
    peak : float
        Largest logit of the row, finite.
    temperature : float
        Divisor, above 0.
    out : ndarray of float32, shape (N,), optional
        Where to write; may be ``logits``.

    Returns
    -------
    ndarray of float32, shape (N,)
        In [0, 1].
    """
    weights = np.subtract(logits, np.float32(peak), out=out)
    if temperature != 1.0:
        weights *= np.float32(1.0 / temperature)
    np.exp(weights, out=weights)
    return weights


class Softmax:
    """The weights of a row of logits, made when they are needed.

    Parameters
    ----------
    logits : ndarray of float32, shape (V,)
        Logits; they must not change while the law is used.
    peak : float
        Their maximum, finite.
    temperature : float
        Divisor, above 0.
    is_owned : bool
        Whether the logits may be overwritten by the weights.
    scratch : Scratch
        Where to work.
    """

    __slots__ = ("_logits", "_peak", "_scratch", "_temperature", "_totals", "is_owned")

    def __init__(
        self,
        logits: NDArray[np.float32],
        peak: float,
        temperature: float,
        *,
        is_owned: bool,
        scratch: Scratch,
    ) -> None:
        self.is_owned = is_owned
        self._logits = logits
        self._peak = peak
        self._temperature = temperature
        self._scratch = scratch
        self._totals: tuple[float, float] | None = None

    def __len__(self) -> int:
        """Return V."""
        return len(self._logits)

    def block_weights(self) -> NDArray[np.float32]:
        """Return the weight of the largest logit of every block of lanes; not after `settle`."""
        return soften(lane_peaks(self._logits), self._peak, self._temperature)

    def at(self, ids: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the weights of some tokens; not after `settle`."""
        return soften(self._logits[ids], self._peak, self._temperature)

    def part(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the weights from one token up to another; not after `settle`."""
        return soften(self._logits[start:stop], self._peak, self._temperature)

    def about(self, token: int) -> float:
        """Return a token's weight but for a thousandth, 0 where it may be denormal."""
        shifted = (self._logits.item(token) - self._peak) / self._temperature
        return math.exp(shifted) if shifted > _SMALL else 0.0

    def prob_range(self, token: int) -> tuple[float, float] | None:
        """Return bounds of a token's probability, None where they are not known cheaply.

        Parameters
        ----------
        token : int
            A token of the row; not after `settle`.

        Returns
        -------
        low, high : float
            The probability that `settle` or `sums` would give lies within. ``low`` is
            positive unless both are 0.
        """
        shifted = (self._logits.item(token) - self._peak) / self._temperature
        if shifted < _ZERO:
            return 0.0, 0.0
        totals = self.totals() if shifted >= _SMALL else None
        if totals is None:
            return None
        low, high = totals
        weight = math.exp(shifted)
        return weight / high, min(weight / low, 1.0)

    def race(self, noise: PositionNoise, guess: int | None) -> int:
        """Return the winner of the race of all tokens; not after `settle`.

        Parameters
        ----------
        noise : PositionNoise
            The noise, of more than a few tokens.
        guess : int, optional
            A token of the row that may well win; it changes no winner.

        Returns
        -------
        int
            The argmin of noise / weight.
        """
        weighed = None if guess is None else (guess, self.about(guess))
        return noise.winner(self.block_weights(), self.at, len(self), weighed)

    def totals(self) -> tuple[float, float] | None:
        """Return bounds of the total, for weights that `about` gives; None where unknown."""
        if not abs(self._peak) <= _RANGE * self._temperature:
            return None
        if self._totals is None:
            self._totals = self._bound_total()
        return self._totals

    def _bound_total(self) -> tuple[float, float]:
        """Return bounds of the total, with room for the roundings of a weight."""
        factor = _OCTAVE / (math.log(2.0) * self._temperature)
        offset = np.float32(float(_ONE) - factor * self._peak)
        total = 0.0
        for start in range(0, len(self), _TILE):
            tile = self._logits[start : start + _TILE]
            bits, powers = self._scratch.floats(len(tile)), self._scratch.ints(len(tile))
            with np.errstate(over="ignore"):  # a logit near the float32 limits: no weight
                np.multiply(tile, np.float32(factor), out=bits)
            bits += offset
            if np.minimum.reduce(bits) < _LEAST:
                np.maximum(bits, _LEAST, out=bits)
            np.copyto(powers, bits, casting="unsafe")
            total += float(np.add.reduce(powers.view(np.float32)))
        return total * ((1.0 - _SLACK) / _EXCESS), total * (1.0 + _SLACK)

    def sums(self) -> NDArray[np.float64]:
        """Return the sums of blocks of `BLOCK` weights, holding few weights at a time."""
        return self._summed(self._scratch.floats(min(len(self), _TILE)))

    def settle(self) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Turn the logits into weights, in place, and sum them while they are near.

        Returns
        -------
        weights : ndarray of float32, shape (V,)
            The array that held the logits.
        sums : ndarray of float64
            Sums of blocks of `BLOCK` weights.
        """
        return self._logits, self._summed(None)

    def _summed(self, scratch: NDArray[np.float32] | None) -> NDArray[np.float64]:
        sums = np.empty(-(-len(self) // BLOCK))
        for start in range(0, len(self), _TILE):
            tile = self._logits[start : start + _TILE]
            out = tile if scratch is None else scratch[: len(tile)]
            soften(tile, self._peak, self._temperature, out=out)
            sums[start // BLOCK :][: _TILE // BLOCK] = block_sums(out)
        return sums
