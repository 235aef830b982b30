"""Which entries of a row survive top-k, top-p and min-p, without sorting the row.

All functions return rising slots, or None when everything survives, and break
ties towards the lowest slot.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["at_least", "largest", "nucleus"]

#: Entries per block when a lower bound of the k-th largest entry is looked for.
_BLOCK = 64
#: At most this many entries are sorted at once.
_SORT_LIMIT = 4096
#: Bits dropped from a float32 to name its bucket, coarse to fine. After the first
#: step all bits above the next one's range agree, so buckets stay few.
_BUCKET_SHIFTS = (17, 6, 0)


def largest(values: NDArray[Any], count: int) -> NDArray[np.intp] | None:
    """Return the slots of the largest entries.

    Parameters
    ----------
    values : ndarray of float, shape (N,)
        No NaN.
    count : int
        How many to keep, at least 1.

    Returns
    -------
    ndarray of int, shape (count,), or None
        Rising slots; None if ``count`` is at least N.
    """
    if count >= len(values):
        return None
    slots = _candidates(values, count)
    held = values if slots is None else values[slots]
    cut = np.partition(held, len(held) - count)[len(held) - count]
    above = np.flatnonzero(held > cut)
    ties = np.flatnonzero(held == cut)[: count - len(above)]
    kept = np.sort(np.concatenate([above, ties]))
    return kept if slots is None else slots[kept]


def _candidates(values: NDArray[Any], count: int) -> NDArray[np.intp] | None:
    """Return rising slots that include the ``count`` largest, None for all.

    The count-th largest block maximum is reached by at least that many entries.
    """
    blocks = len(values) // _BLOCK
    if 2 * count > blocks:
        return None
    peaks = values[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
    return np.flatnonzero(values >= np.partition(peaks, blocks - count)[blocks - count])


def at_least(weights: NDArray[Any], fraction: float) -> NDArray[np.intp]:
    """Return the slots of weights that reach a fraction of the largest one.

    Parameters
    ----------
    weights : ndarray of float, shape (N,)
        Not negative.
    fraction : float
        In (0, 1].

    Returns
    -------
    ndarray of int
        Rising slots, at least one.
    """
    return np.flatnonzero(weights >= weights.max() * weights.dtype.type(fraction))


def nucleus(weights: NDArray[np.float32], mass: float) -> NDArray[np.intp]:
    """Return the smallest set of heaviest entries that reaches a share of the total.

    Parameters
    ----------
    weights : ndarray of float32, shape (N,)
        Not negative, with a positive total.
    mass : float
        Share of the total, in (0, 1).

    Returns
    -------
    ndarray of int
        Rising slots, at least one: the shortest prefix in the order of falling
        weight and rising slot whose float64 sum reaches ``mass * total``.

    Notes
    -----
    Linear in N whatever the law: light entries that cannot be needed go first, a
    histogram over the leading bits finds where the boundary falls, and only that
    bucket is looked at again.
    """
    total = float(weights.sum(dtype=np.float64))
    goal = mass * total
    # All entries below this together weigh less than what may be left out. Half of
    # it leaves room for the rounding of the sum.
    floor = np.float32(0.5 * (1.0 - mass) * total / len(weights))
    slots = np.flatnonzero(weights >= floor)
    held = weights[slots]
    kept: list[NDArray[np.intp]] = []
    for shift in _BUCKET_SHIFTS:
        if len(held) <= _SORT_LIMIT:
            break
        # Bits of positive floats are ordered like the floats.
        buckets = held.view(np.int32) >> shift
        buckets -= buckets.min()
        above = np.bincount(buckets, weights=held)[::-1].cumsum()
        rank = min(int(above.searchsorted(goal)), len(above) - 1)
        boundary = len(above) - 1 - rank
        if rank:
            goal -= float(above[rank - 1])
            kept.append(slots[buckets > boundary])
        inside = buckets == boundary
        slots, held = slots[inside], held[inside]
    order = _falling(held)
    sums = np.cumsum(held[order], dtype=np.float64)
    count = min(int(sums.searchsorted(goal)) + 1, len(sums))
    kept.append(slots[order[:count]])
    is_kept = np.zeros(len(weights), dtype=bool)
    for part in kept:
        is_kept[part] = True
    return np.flatnonzero(is_kept)


def _falling(weights: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the order of falling weight and rising slot.

    One integer per entry, weight bits above slot, sorts several times faster than
    a stable argsort.
    """
    keys = (np.int64(0x7FFFFFFF) - weights.view(np.int32)) << 32
    keys |= np.arange(len(weights))
    keys.sort()
    order: NDArray[np.intp] = keys & 0xFFFFFFFF
    return order
