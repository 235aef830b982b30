"""Which entries of a row survive top-k, top-p and min-p, without sorting the row.

All functions break ties towards the lowest slot. What is large is looked for in the
maxima of blocks (`draftproof.core.lanes`) first, which the caller may have already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.core.lanes import DEPTH, lane_peaks, members
from draftproof.core.weights import block_sums

__all__ = ["Zeroed", "at_least", "largest", "nucleus"]

#: A bar for maxima of blocks is lowered by this factor, since the float32 exponential
#: may be off by some units in the last place, upwards for the smaller of two logits.
_SLACK = 1.0 - 2.0**-16
#: First bar for the nucleus, as a share of the mass that may be left out: at most this
#: many times ``1 / (1 - top_p)`` tokens stand above it.
_HEAVY = 256
#: A nucleus of at most one in so many entries is found by sorting.
_SORTED_SHARE = 8
#: At most this many are sorted at once.
_FEW = 512
#: Every so many entries one is sampled.
_STRIDE = 32


@dataclass(frozen=True, slots=True)
class Zeroed:
    """Many survivors: gathering them would cost more than keeping the row.

    Parameters
    ----------
    weights : ndarray of float32, shape (N,)
        The weight of what survives, 0 for the rest.
    """

    weights: NDArray[np.float32]


def largest(
    values: NDArray[Any], count: int, peaks: NDArray[Any] | None = None
) -> NDArray[np.intp] | None:
    """Return the slots of the largest entries.

    Parameters
    ----------
    values : ndarray of float, shape (N,)
        No NaN.
    count : int
        How many to keep, at least 1.
    peaks : ndarray of float, optional
        `lane_peaks` of the values, when they are known.

    Returns
    -------
    ndarray of int, shape (count,), or None
        Rising slots; None if ``count`` is at least N.

    Notes
    -----
    The count-th largest maximum of a block is reached by at least ``count`` entries,
    and by none outside the blocks whose maximum reaches it.
    """
    if count >= len(values):
        return None
    slots = None
    if 2 * count <= len(values) // DEPTH:
        peaks = lane_peaks(values) if peaks is None else peaks
        bar = np.partition(peaks, len(peaks) - count)[len(peaks) - count]
        slots = _reaching(values, bar, peaks, bar)
    held = values if slots is None else values[slots]
    kept = _top(held, count)
    return kept if slots is None else slots[kept]


def _top(held: NDArray[Any], count: int) -> NDArray[np.intp]:
    cut = np.partition(held, len(held) - count)[len(held) - count]
    reaching = np.flatnonzero(held >= cut)
    if len(reaching) == count:  # no ties
        return reaching
    above = np.flatnonzero(held > cut)
    ties = np.flatnonzero(held == cut)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def at_least(
    weights: NDArray[Any], fraction: float, peaks: NDArray[Any] | None = None
) -> NDArray[np.intp]:
    """Return the slots of weights that reach a fraction of the largest one.

    Parameters
    ----------
    weights : ndarray of float, shape (N,)
        Not negative.
    fraction : float
        In (0, 1].
    peaks : ndarray of float, optional
        The weight of the largest logit of every block, when it is known.

    Returns
    -------
    ndarray of int
        Rising slots, at least one.
    """
    top = weights.max() if peaks is None else peaks.max()
    bar = top * weights.dtype.type(fraction)
    if peaks is None:
        return np.flatnonzero(weights >= bar)
    return _reaching(weights, bar, peaks, bar * _SLACK)


def _reaching(
    values: NDArray[Any], bar: Any, peaks: NDArray[Any], peak_bar: Any
) -> NDArray[np.intp]:
    """Return the rising slots of values that reach a bar, from few blocks if possible."""
    blocks = np.flatnonzero(peaks >= peak_bar)
    # Opening a block costs about as much as comparing 50 times its entries in order.
    if 50 * DEPTH * len(blocks) > len(values):
        return np.flatnonzero(values >= bar)
    slots = members(blocks, len(values))
    return np.sort(slots[values[slots] >= bar])


def nucleus(
    weights: NDArray[np.float32], mass: float, peaks: NDArray[np.float32] | None = None
) -> NDArray[np.intp] | Zeroed:
    """Return the smallest set of heaviest entries that reaches a share of the total.

    Parameters
    ----------
    weights : ndarray of float32, shape (N,)
        Not negative, with a positive total.
    mass : float
        Share of the total, in (0, 1).
    peaks : ndarray of float32, optional
        The weight of the largest logit of every block, when it is known.

    Returns
    -------
    ndarray of int, or Zeroed
        Rising slots, at least one; or, when they are many, all weights with 0 in place
        of what is left out. The set is the shortest prefix in the order of falling
        weight and rising slot whose float64 sum reaches ``mass * total``.

    Notes
    -----
    On peaked laws a few heavy entries, or the heaviest eighth, hold the mass and are
    sorted. On flat ones, a sample tells between which weights the boundary falls;
    what is above is summed, what is between is sorted, and the claim of the sample is
    checked: where it is wrong, everything is sorted.
    """
    total = float(block_sums(weights).sum())
    goal = mass * total
    if len(weights) <= _FEW:
        return np.sort(_prefix(weights, goal))
    peaks = lane_peaks(weights) if peaks is None else peaks
    sample = np.sort(weights[::_STRIDE])[::-1]
    few, many = np.float32((1.0 - mass) * total / _HEAVY), sample[len(sample) // _SORTED_SHARE]
    bar, above = np.float32(np.inf), 0.0
    for lower in (few, many):
        if not 0.0 < lower < bar:
            continue
        slots = _reaching(weights, lower, peaks, lower * _SLACK)
        if 4 * len(slots) > len(weights):  # many ties
            continue
        held = weights[slots]
        reached = float(held.sum(dtype=np.float64))
        if reached > goal:
            return np.sort(slots[_prefix(held, goal)])
        bar, above = lower, reached
    for reach in (2, 16):
        kept = _between(weights, goal, bar, above, sample[sample < bar], reach)
        if kept is not None:
            return Zeroed(kept)
    return np.sort(_prefix(weights, goal))


def _between(
    weights: NDArray[np.float32],
    goal: float,
    bar: np.float32,
    above: float,
    sample: NDArray[np.float32],
    reach: int,
) -> NDArray[np.float32] | None:
    """Return the weights of the nucleus of a flat law, None if the sample misled.

    Weights from ``bar`` up sum to ``above`` and do not reach the goal, so the sample,
    falling, is that of the weights below, where no single one matters much.
    """
    sums = above + _STRIDE * np.cumsum(sample, dtype=np.float64)
    rank, reach = int(sums.searchsorted(goal)), reach * (math.isqrt(len(sample)) + 1)
    high = sample[rank - reach] if rank >= reach else bar
    low = sample[rank + reach] if rank + reach < len(sample) else np.float32(0.0)
    mask = weights > high
    kept: NDArray[np.float32] = weights * mask
    goal -= float(block_sums(kept).sum())
    slots = np.flatnonzero((weights >= low) != mask)
    held = weights[slots]
    if not 0.0 < goal <= held.sum(dtype=np.float64):
        return None
    chosen = _prefix(held, goal)
    kept[slots[chosen]] = held[chosen]
    return kept


def _prefix(weights: NDArray[np.float32], goal: float) -> NDArray[np.intp]:
    """Return the shortest prefix of falling weight and rising slot that reaches a sum."""
    order = _falling(weights)
    sums = np.cumsum(weights[order], dtype=np.float64)
    return order[: int(sums.searchsorted(goal)) + 1]


def _falling(weights: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the order of falling weight and rising slot.

    One integer per entry, weight bits above slot, sorts several times faster than
    a stable argsort.
    """
    if weights[0] == weights.max() == weights.min():
        return np.arange(len(weights))
    keys = (np.int64(0x7FFFFFFF) - weights.view(np.int32)) << 32
    keys |= np.arange(len(weights))
    keys.sort()
    order: NDArray[np.intp] = keys & 0xFFFFFFFF
    return order
