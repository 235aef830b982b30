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
#: Rows of at most this many entries are sorted at once.
_SORT_LIMIT = 2048


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


def nucleus(weights: NDArray[Any], mass: float) -> NDArray[np.intp]:
    """Return the smallest set of heaviest entries that reaches a share of the total.

    Parameters
    ----------
    weights : ndarray of float, shape (N,)
        Not negative, with a positive total.
    mass : float
        Share of the total, in (0, 1).

    Returns
    -------
    ndarray of int
        Rising slots, at least one: the shortest prefix in the order of falling
        weight and rising slot whose float64 sum is at least ``mass * total``.

    Notes
    -----
    A weighted quickselect: each pass keeps the part that holds the boundary.
    """
    goal = mass * float(weights.sum(dtype=np.float64))
    slots: NDArray[np.intp] | None = None
    open_weights = weights
    kept: list[NDArray[np.intp]] = []
    while len(open_weights) > _SORT_LIMIT:
        pivot = _pivot(open_weights)
        is_above = open_weights >= pivot
        above = np.flatnonzero(is_above)
        if len(above) == len(open_weights):
            break  # ties: sorting is the only way left
        above_weights = open_weights[above]
        above_mass = float(above_weights.sum(dtype=np.float64))
        above_slots = above if slots is None else slots[above]
        if above_mass >= goal:
            slots, open_weights = above_slots, above_weights
        else:
            goal -= above_mass
            kept.append(above_slots)
            below = np.flatnonzero(~is_above)
            slots = below if slots is None else slots[below]
            open_weights = open_weights[below]
    order = np.argsort(-open_weights, kind="stable")
    sums = np.cumsum(open_weights[order], dtype=np.float64)
    count = min(int(sums.searchsorted(goal, side="left")) + 1, len(sums))
    last = order[:count]
    kept.append(last if slots is None else slots[last])
    return np.sort(np.concatenate(kept))


def _pivot(weights: NDArray[Any]) -> Any:
    """Return an entry that splits the row so that few lie above."""
    sample = np.sort(weights[:: max(1, len(weights) // 512)])
    return sample[-max(1, len(sample) // 32)]
