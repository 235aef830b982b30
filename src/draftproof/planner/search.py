"""The best draft length of a batch, and the batch where drafting stops paying.

The speedup of kappa drafts at batch B is
``S = E[N] * T_plain(B) / T_round(B, kappa)``: committed tokens per second over those
of plain decoding at the same batch.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from draftproof.errors import ConfigError
from draftproof.planner.acceptance import SurvivalCurve
from draftproof.planner.cost import Floats
from draftproof.planner.rounds import RoundCost

__all__ = ["MIN_GAIN", "RoundTimes", "batch_schedule", "best_kappa", "crossing_batch", "speedup"]

#: A longer draft must gain this much more before it is preferred to a shorter one.
MIN_GAIN = 0.005
#: Where the search for a crossing ends.
LARGEST_BATCH = 65_536


class RoundTimes:
    """Seconds of rounds by batch and kappa, computed once each.

    Parameters
    ----------
    cost : RoundCost
        Costs.
    max_kappa : int
        Most drafts, at least 1.
    context : float
        Cached tokens per row.

    Raises
    ------
    ConfigError
        If ``max_kappa`` is below 1.
    """

    def __init__(self, cost: RoundCost, max_kappa: int, context: float = 0.0) -> None:
        if max_kappa < 1:
            raise ConfigError(f"most drafts {max_kappa}: expected 1 or more")
        self.cost = cost
        self.max_kappa = max_kappa
        self.context = context
        self._held: dict[int, Floats] = {}

    def seconds(self, batch: int) -> Floats:
        """Return the seconds of rounds of 0 to ``max_kappa`` drafts.

        Parameters
        ----------
        batch : int
            Rows, at least 1.

        Returns
        -------
        ndarray of float64, shape (max_kappa + 1,)
            As `RoundCost.round_s`.
        """
        found = self._held.get(batch)
        if found is None:
            tokens = batch * np.arange(1.0, self.max_kappa + 2.0)
            passes = self.cost.pass_seconds(batch, tokens, self.context)
            found = self._held[batch] = passes + self.drafting_s(batch)
        return found

    def drafting_s(self, batch: int) -> Floats:
        """Return the seconds of drafting alone, of 0 to ``max_kappa`` drafts per row.

        Parameters
        ----------
        batch : int
            Rows, at least 1.

        Returns
        -------
        ndarray of float64, shape (max_kappa + 1,)
            0 first.
        """
        rows = np.asarray([float(batch)])
        depths = range(1, self.max_kappa + 1)
        drafting = [
            float(self.cost.draft.depth_seconds(depth, rows, self.context)[0]) for depth in depths
        ]
        return np.cumsum([0.0, *drafting])

    def speedups(self, curve: SurvivalCurve, batch: int) -> Floats:
        """Return the speedups of 0 to ``max_kappa`` drafts.

        Parameters
        ----------
        curve : SurvivalCurve
            Acceptance, at least ``max_kappa`` long.
        batch : int
            Rows, at least 1.

        Returns
        -------
        ndarray of float64, shape (max_kappa + 1,)
            1 at kappa 0.
        """
        curve.accepted(self.max_kappa)  # refuses what is not known
        seconds = self.seconds(batch)
        tokens = 1.0 + np.cumsum([0.0, *curve.rates[: self.max_kappa]])
        gains: Floats = tokens * seconds[0] / seconds
        return gains


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
    return float(RoundTimes(cost, kappa, context).speedups(curve, batch)[kappa])


def best_kappa(
    times: RoundTimes, curve: SurvivalCurve, batch: int, *, min_gain: float = MIN_GAIN
) -> int:
    """Return the number of drafts that commits most tokens per second.

    Parameters
    ----------
    times : RoundTimes
        Costs, and the most drafts to consider.
    curve : SurvivalCurve
        Acceptance.
    batch : int
        Rows.
    min_gain : float
        A longer draft must be this much faster, relatively, to be preferred: its cost
        is certain and its gain is an estimate.

    Returns
    -------
    int
        0 where no draft gains.
    """
    best, best_gain = 0, 1.0
    for kappa, gain in enumerate(times.speedups(curve, batch).tolist()):
        if kappa and gain > best_gain * (1 + min_gain):
            best, best_gain = kappa, gain
    return best


def crossing_batch(
    times: RoundTimes,
    curve: SurvivalCurve,
    *,
    kappa: int | None = None,
    largest: int = LARGEST_BATCH,
) -> int | None:
    """Return the smallest batch from which speculation gains nothing any more.

    Parameters
    ----------
    times : RoundTimes
        Costs, and the most drafts to consider when ``kappa`` is None.
    curve : SurvivalCurve
        Acceptance.
    kappa : int, optional
        A fixed number of drafts; the best of each batch when None.
    largest : int
        Where the search ends.

    Returns
    -------
    int or None
        1 where it never gains, None where it still gains at ``largest``. Every batch
        up to 8 and then four per doubling are tried, and the place between the last
        gain and the next loss is bisected, so that an early dip from a step in the
        costs is not taken for the end.
    """

    def gains(batch: int) -> bool:
        found = times.speedups(curve, batch)
        return bool((found[1:] if kappa is None else found[[kappa]]).max() > 1.0)

    tried = [1]
    while tried[-1] < largest:
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
    times: RoundTimes, curve: SurvivalCurve, largest: int
) -> tuple[tuple[int, int, int], ...]:
    """Return ranges of batches and their best kappa, from 1 to the largest batch.

    Parameters
    ----------
    times : RoundTimes
        Costs, and the most drafts to consider.
    curve : SurvivalCurve
        Acceptance.
    largest : int
        Last batch.

    Returns
    -------
    tuple of (int, int, int)
        First batch, last batch, drafts. Every size up to 32 is tried, then 32 per
        doubling; boundaries are bisected.
    """
    starts = [1]
    while starts[-1] < largest:
        starts.append(min(largest, starts[-1] + max(1, starts[-1] // 32)))
    ranges = [(1, 1, best_kappa(times, curve, 1))]
    for start, end in pairwise(starts):
        before, after = ranges[-1][2], best_kappa(times, curve, end)
        if after == before:
            ranges[-1] = (ranges[-1][0], end, before)
            continue
        low, high = start, end
        while high - low > 1:
            middle = (low + high) // 2
            same = best_kappa(times, curve, middle) == before
            low, high = (middle, high) if same else (low, middle)
        ranges[-1] = (ranges[-1][0], low, before)
        ranges.append((high, end, after))
    return tuple(ranges)
