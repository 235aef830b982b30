"""The best draft length of a batch, and the batch where drafting stops paying.

The speedup of kappa drafts at batch B is
``S = E[N] * T_plain(B) / T_round(B, kappa)``: committed tokens per second over those
of plain decoding at the same batch.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from draftproof.planner.acceptance import SurvivalCurve
from draftproof.planner.rounds import RoundCost

__all__ = ["MIN_GAIN", "batch_schedule", "best_kappa", "crossing_batch", "speedup"]

#: A longer draft must gain this much more before it is preferred to a shorter one.
MIN_GAIN = 0.005
#: Where the search for a crossing ends.
LARGEST_BATCH = 65_536


def speedup(
    cost: RoundCost, curve: SurvivalCurve, batch: int, kappa: int, context: float = 0.0
) -> float:
    """Return committed tokens per second relative to plain decoding.

    Parameters
    ----------
    cost : RoundCost
        Costs.
    curve : SurvivalCurve
        Acceptance, at least kappa long.
    batch : int
        Rows, at least 1.
    kappa : int
        Drafts per row.
    context : float
        Cached tokens per row.

    Returns
    -------
    float
        1 for kappa 0.
    """
    if not kappa:
        return 1.0
    plain, round_s = cost.plain_s(batch, context), cost.round_s(batch, kappa, context)
    return curve.tokens(kappa) * plain / round_s


def best_kappa(
    cost: RoundCost,
    curve: SurvivalCurve,
    batch: int,
    max_kappa: int,
    context: float = 0.0,
    *,
    min_gain: float = MIN_GAIN,
) -> int:
    """Return the number of drafts that commits most tokens per second.

    Parameters
    ----------
    cost : RoundCost
        Costs.
    curve : SurvivalCurve
        Acceptance, at least ``max_kappa`` long.
    batch, max_kappa : int
        Rows, and the most drafts to consider.
    context : float
        Cached tokens per row.
    min_gain : float
        A longer draft must be this much faster, relatively, to be preferred: its cost
        is certain and its gain is an estimate.

    Returns
    -------
    int
        0 where no draft gains.
    """
    best, best_speedup = 0, 1.0
    for kappa in range(1, max_kappa + 1):
        found = speedup(cost, curve, batch, kappa, context)
        if found > best_speedup * (1 + min_gain):
            best, best_speedup = kappa, found
    return best


def crossing_batch(
    cost: RoundCost,
    curve: SurvivalCurve,
    max_kappa: int,
    context: float = 0.0,
    *,
    kappa: int | None = None,
    largest: int = LARGEST_BATCH,
) -> int | None:
    """Return the smallest batch from which speculation gains nothing any more.

    Parameters
    ----------
    cost : RoundCost
        Costs.
    curve : SurvivalCurve
        Acceptance.
    max_kappa : int
        Most drafts to consider when ``kappa`` is None.
    context : float
        Cached tokens per row.
    kappa : int, optional
        A fixed number of drafts; the best of each batch when None.
    largest : int
        Where the search ends.

    Returns
    -------
    int or None
        1 where it never gains, None where it still gains at ``largest``. Batches are
        tried by doubling and then bisected between the last gain and the first loss
        after it, so that an early dip from a step in the costs is not taken for the end.
    """
    kappas = range(1, max_kappa + 1) if kappa is None else (kappa,)

    def gains(batch: int) -> bool:
        return any(speedup(cost, curve, batch, each, context) > 1.0 for each in kappas)

    tried = [1]
    while tried[-1] < largest:
        # Four points per doubling: steps in measured tables are narrow.
        tried.append(min(largest, max(tried[-1] + 1, round(tried[-1] * 2**0.25))))
    found = [gains(batch) for batch in tried]
    if not any(found):
        return 1
    if found[-1]:
        return None
    last = max(place for place, gain in enumerate(found) if gain)
    low, high = tried[last], tried[last + 1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gains(middle) else (low, middle)
    return high


def batch_schedule(
    cost: RoundCost, curve: SurvivalCurve, largest: int, max_kappa: int, context: float
) -> tuple[tuple[int, int, int], ...]:
    """Return ranges of batches and their best kappa, from 1 to the largest batch.

    Parameters
    ----------
    cost : RoundCost
        Costs.
    curve : SurvivalCurve
        Acceptance, at least ``max_kappa`` long.
    largest, max_kappa : int
        Last batch, and the most drafts to consider.
    context : float
        Cached tokens per row.

    Returns
    -------
    tuple of (int, int, int)
        First batch, last batch, drafts. Every size up to 64 is tried, then 64 per
        doubling; boundaries are bisected.
    """

    @cache
    def best(batch: int) -> int:
        return best_kappa(cost, curve, batch, max_kappa, context)

    starts = [1]
    while starts[-1] < largest:
        starts.append(min(largest, starts[-1] + max(1, starts[-1] // 64)))
    ranges = [(1, 1, best(1))]
    for start, end in pairwise(starts):
        if best(end) == best(start):
            ranges[-1] = (ranges[-1][0], end, best(start))
            continue
        low, high = start, end
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if best(middle) == best(start) else (low, middle)
        ranges[-1] = (ranges[-1][0], low, best(start))
        ranges.append((high, end, best(end)))
    return tuple(ranges)
