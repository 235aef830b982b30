"""Top-k, top-p and min-p over many rows at once, with the definition's sets.

Every function also returns how much mass its set may have too much or too little,
because two weights that differ in the definition's rounding may tie here, or the other
way round. Top-k compares logits, which are the same bits everywhere: its set is certain.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from draftproof.device.precision import WEIGHT_ERROR

__all__ = ["keep_at_least", "keep_largest", "keep_nucleus", "nucleus_cut"]

#: The bits of a float32 that is not negative, as an integer, lie below this.
_BIT_COUNT = 31
#: Rows whose nucleus is within this many tokens need no search over all of them.
_CANDIDATES = 1024


def keep_largest(logits: Tensor, count: Tensor, largest_count: int) -> None:
    """Set all but the largest logits of each row to -inf, in place.

    Parameters
    ----------
    logits : Tensor of float32, shape (N, V)
        Changed in place.
    count : Tensor of int64, shape (N,)
        How many stay, 1 or more; the lowest ids on ties.
    largest_count : int
        The largest count, known on the host.
    """
    values = logits.topk(min(largest_count, logits.shape[1])).values
    cut = values.gather(1, count.clamp(max=values.shape[1])[:, None] - 1)
    below = logits < cut
    if logits.device.type == "cpu" and bool((logits.shape[1] - below.sum(1) == count).all()):
        logits.masked_fill_(below, -torch.inf)
        return
    ties = logits == cut
    spare = count - (logits > cut).sum(1)
    late = ties.cumsum(1, dtype=torch.int32) > spare[:, None]
    logits.masked_fill_(below | (ties & late), -torch.inf)


def keep_at_least(weights: Tensor, fraction: Tensor) -> Tensor:
    """Set weights below a fraction of their row's largest to 0, in place.

    Parameters
    ----------
    weights : Tensor of float32, shape (N, V)
        Changed in place.
    fraction : Tensor of float32, shape (N,)
        In [0, 1]; 0 keeps all.

    Returns
    -------
    Tensor of float64, shape (N,)
        Weight of the tokens that are so near to the threshold that the definition may
        decide otherwise.
    """
    threshold = weights.amax(1, keepdim=True) * fraction[:, None]
    unsure = (weights - threshold).abs() <= 2 * WEIGHT_ERROR * threshold
    slack = torch.where(unsure & (threshold > 0), weights, 0).sum(1, dtype=torch.float64)
    weights.masked_fill_(weights < threshold, 0)
    return slack


def keep_nucleus(
    weights: Tensor, logits: Tensor, mass: Tensor, *, by_sort: bool | None = None
) -> Tensor:
    """Keep the smallest set of heaviest tokens that reaches a mass, in place.

    Parameters
    ----------
    weights : Tensor of float32, shape (N, V)
        Changed in place: what is left out becomes 0.
    logits : Tensor of float32, shape (N, V)
        What the weights were made from: equal logits tie in every executor.
    mass : Tensor of float64, shape (N,)
        Share that stays, in (0, 1].
    by_sort : bool, optional
        Whether a sort of the heavy weights finds the cut; None says so for tensors on
        the host, where searching by bisection would read each row thirty times.

    Returns
    -------
    Tensor of float64, shape (N,)
        Weight of the tokens that may be in the definition's set and not in this one, or
        the other way round.

    Notes
    -----
    The set is all weights above a cut and the lowest ids among those equal to it. The
    cut is the largest weight such that all weights from it up reach the goal.
    """
    total = weights.sum(1, dtype=torch.float64)
    goal = mass * total
    if weights.device.type == "cpu" if by_sort is None else by_sort:
        cut = _sorted_cuts(weights, goal)
    else:
        cut = nucleus_cut(weights, goal)
    held = cut[:, None]
    above = weights > held
    ties = weights == held
    sure = torch.where(above, weights, 0).sum(1, dtype=torch.float64)
    cut64 = cut.double()
    # A row that is bad has NaN here; its result is not used, but must be a number.
    wanted = ((goal - sure) / cut64).ceil().clamp(min=1, max=weights.shape[1]).nan_to_num(1)
    stays = above | (ties & (ties.cumsum(1, dtype=torch.int32) <= wanted[:, None]))
    full = mass[:, None] >= 1

    near = ((weights - held).abs() <= 4 * WEIGHT_ERROR * held) & (held > 0)
    highest = torch.where(near, logits, -torch.inf).amax(1)
    lowest = torch.where(near, logits, torch.inf).amin(1)
    mixed = torch.where(near, weights, 0).sum(1, dtype=torch.float64)
    slack = torch.where(highest != lowest, mixed, 0)
    room = WEIGHT_ERROR * total
    reached = sure + wanted * cut64
    tight = ((reached - goal).abs() <= room) | ((reached - cut64 - goal).abs() <= room)
    slack += torch.where(tight, cut64 + 2 * room, 0)

    weights.masked_fill_(~(stays | full), 0)
    return torch.where(mass >= 1, 0, slack)


def nucleus_cut(weights: Tensor, goal: Tensor) -> Tensor:
    """Return the largest weight such that all weights from it up reach the goal.

    Parameters
    ----------
    weights : Tensor of float32, shape (N, V)
        Not negative.
    goal : Tensor of float64, shape (N,)
        At most the sum of the row.

    Returns
    -------
    Tensor of float32, shape (N,)
        A weight of the row.

    Notes
    -----
    Bisection over the bits of a float32, which are ordered like the numbers: 31 reads,
    whatever the law. It runs over the 1024 heaviest weights alone when they are enough
    for every row.
    """
    if weights.shape[1] > 4 * _CANDIDATES:
        heaviest = weights.topk(_CANDIDATES, sorted=False).values
        if bool((heaviest.sum(1, dtype=torch.float64) >= goal * (1 + WEIGHT_ERROR)).all()):
            weights = heaviest
    bits = weights.contiguous().view(torch.int32)
    low = torch.zeros(len(weights), dtype=torch.int32, device=weights.device)
    high = bits.amax(1) + 1
    for _ in range(_BIT_COUNT):
        middle = low + (high - low) // 2
        reached = torch.where(bits >= middle[:, None], weights, 0).sum(1, dtype=torch.float64)
        enough = reached >= goal
        low = torch.where(enough, middle, low)
        high = torch.where(enough, high, middle)
    return low.view(torch.float32)


def _sorted_cuts(weights: Tensor, goal: Tensor) -> Tensor:
    """Return what `nucleus_cut` returns, by sorting the weights that can matter."""
    cuts = torch.zeros(len(weights), dtype=torch.float32)
    for i, (row, wanted) in enumerate(zip(weights.numpy(), goal.tolist(), strict=True)):
        total = float(row.sum(dtype=np.float64))
        # All weights below the floor weigh less together than what may be left out;
        # half of that leaves room for the rounding of the sums.
        held = np.sort(row[row >= 0.5 * (total - wanted) / len(row)])[::-1]
        if len(held) and wanted < total:
            rank = int(held.cumsum(dtype=np.float64).searchsorted(wanted))
            cuts[i] = float(held[min(rank, len(held) - 1)])
    return cuts
