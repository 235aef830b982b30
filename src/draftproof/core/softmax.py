"""Logits to weights: the only exponential, and laws that put it off.

The weight of a token is ``exp((logit - peak) / T)`` in float32, entry by entry, so
that it does not matter which entries are asked for together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftproof.core.weights import BLOCK, block_sums

__all__ = ["Softmax", "soften"]

#: Entries that are worked on at a time: they stay in the second-level cache.
_TILE = 256 * BLOCK


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
    # Differences may overflow to -inf for logits near the float32 limits: weight 0.
    with np.errstate(over="ignore", under="ignore"):
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
    lane_peaks : ndarray of float32
        What `draftproof.core.lanes.lane_peaks` gives for them.
    peak : float
        Their maximum, finite.
    temperature : float
        Divisor, above 0.
    is_owned : bool
        Whether the logits may be overwritten by the weights.
    """

    __slots__ = ("_lane_peaks", "_logits", "_peak", "_temperature", "is_owned")

    def __init__(
        self,
        logits: NDArray[np.float32],
        lane_peaks: NDArray[np.float32],
        peak: float,
        temperature: float,
        *,
        is_owned: bool,
    ) -> None:
        self.is_owned = is_owned
        self._logits = logits
        self._lane_peaks = lane_peaks
        self._peak = peak
        self._temperature = temperature

    def __len__(self) -> int:
        """Return V."""
        return len(self._logits)

    def block_weights(self) -> NDArray[np.float32]:
        """Return the weight of the largest logit of every block of lanes."""
        return soften(self._lane_peaks, self._peak, self._temperature)

    def at(self, ids: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the weights of some tokens; not after `settle`."""
        return soften(self._logits[ids], self._peak, self._temperature)

    def part(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return the weights from one token up to another; not after `settle`."""
        return soften(self._logits[start:stop], self._peak, self._temperature)

    def sums(self) -> NDArray[np.float64]:
        """Return the sums of blocks of `BLOCK` weights, holding few weights at a time."""
        return self._summed(np.empty(min(len(self), _TILE), dtype=np.float32))

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
