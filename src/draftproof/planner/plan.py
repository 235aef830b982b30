"""From costs and acceptance to a decision: speculate or not, how far, up to which batch.

Pure functions; "do not speculate" is an answer with a reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.errors import ConfigError
from draftproof.planner.acceptance import iid_break_even
from draftproof.planner.estimate import SurvivalEstimate
from draftproof.planner.rounds import RoundCost
from draftproof.planner.search import (
    MIN_GAIN,
    RoundTimes,
    batch_schedule,
    best_kappa,
    crossing_batch,
)

__all__ = ["BatchPlan", "Crossing", "KappaPoint", "Plan", "make_plan"]


@dataclass(frozen=True, slots=True)
class KappaPoint:
    """One kappa at one batch.

    Parameters
    ----------
    kappa : int
        Drafts per row.
    tokens : float
        Expected committed tokens per row and round.
    round_s : float
        Seconds per round.
    tokens_per_s : float
        Committed tokens per second of the whole batch.
    speedup, speedup_low, speedup_high : float
        Over plain decoding, and at the ends of the acceptance interval.
    break_even_tokens : float
        Tokens per round at which the speedup is 1.
    break_even_alpha : float or None
        Constant acceptance rate at which it is; None where no rate reaches it.
    """

    kappa: int
    tokens: float
    round_s: float
    tokens_per_s: float
    speedup: float
    speedup_low: float
    speedup_high: float
    break_even_tokens: float
    break_even_alpha: float | None


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """All kappas at one batch.

    Parameters
    ----------
    batch : int
        Rows.
    plain_s : float
        Seconds of a plain step.
    points : tuple of KappaPoint
        From kappa 0 on.
    best : int
        The kappa to run with; 0 is plain decoding.
    """

    batch: int
    plain_s: float
    points: tuple[KappaPoint, ...]
    best: int

    @property
    def best_point(self) -> KappaPoint:
        """The point of the best kappa."""
        return self.points[self.best]


@dataclass(frozen=True, slots=True)
class Crossing:
    """The batch from which plain decoding is at least as fast.

    Parameters
    ----------
    kappa : int or None
        For this kappa; None for the best kappa of each batch.
    batch, low, high : int or None
        Smallest batch without a gain, at the estimate and at the ends of the
        acceptance interval. 1 says never a gain; None says a gain at every batch
        that was searched.
    """

    kappa: int | None
    batch: int | None
    low: int | None
    high: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision and what it rests on.

    Parameters
    ----------
    speculate : bool
        Whether any planned batch gains.
    reason : str
        Why, in one sentence.
    certain : bool
        Whether the answer is the same over the whole acceptance interval.
    batches : tuple of BatchPlan
        The planned batches.
    crossing : Crossing
        For the best kappa of each batch.
    fixed_crossing : Crossing
        For the best kappa of the smallest batch, kept at all batches.
    schedule : tuple of (int, int, int)
        Ranges of batches and their kappa.
    survival : SurvivalEstimate
        The acceptance.
    context : float
        Cached tokens per row.
    """

    speculate: bool
    reason: str
    certain: bool
    batches: tuple[BatchPlan, ...]
    crossing: Crossing
    fixed_crossing: Crossing
    schedule: tuple[tuple[int, int, int], ...]
    survival: SurvivalEstimate
    context: float


def make_plan(
    cost: RoundCost,
    survival: SurvivalEstimate,
    batches: Sequence[int],
    *,
    max_kappa: int,
    context: float = 0.0,
) -> Plan:
    """Plan for some batches.

    Parameters
    ----------
    cost : RoundCost
        Costs.
    survival : SurvivalEstimate
        Acceptance with its interval; ``max_kappa`` must be within it.
    batches : sequence of int
        Rising batch sizes; the schedule covers every size up to the last.
    max_kappa : int
        Most drafts, at least 1.
    context : float
        Cached tokens per row.

    Returns
    -------
    Plan
        The decision; "do not speculate" is one.

    Raises
    ------
    ConfigError
        If there is no batch, or acceptance is not known up to ``max_kappa``.
    """
    if not batches or list(batches) != sorted(set(batches)) or batches[0] < 1:
        raise ConfigError(f"batches {list(batches)}: expected rising sizes from 1")
    times = RoundTimes(cost, max_kappa, context)
    survival.curve.accepted(max_kappa)  # refuses what is not known
    plans = tuple(_batch_plan(times, survival, batch) for batch in batches)
    speculate = any(plan.best for plan in plans)
    first = next((plan for plan in plans if plan.best), plans[0])
    kappa = first.best or max(first.points[1:], key=lambda point: point.speedup).kappa
    return Plan(
        speculate=speculate,
        reason=_reason(plans, survival),
        certain=_is_certain(plans, speculate),
        batches=plans,
        crossing=_crossing(times, survival, None),
        fixed_crossing=_crossing(times, survival, kappa),
        schedule=batch_schedule(times, survival.curve, batches[-1]),
        survival=survival,
        context=context,
    )


def _batch_plan(times: RoundTimes, survival: SurvivalEstimate, batch: int) -> BatchPlan:
    seconds = times.seconds(batch)
    points = []
    for kappa, round_s in enumerate(seconds.tolist()):
        needed = float(round_s / seconds[0])
        tokens, low, high = (
            curve.tokens(kappa) for curve in (survival.curve, survival.low, survival.high)
        )
        points.append(
            KappaPoint(
                kappa=kappa,
                tokens=tokens,
                round_s=round_s,
                tokens_per_s=batch * tokens / round_s,
                speedup=tokens / needed,
                speedup_low=low / needed,
                speedup_high=high / needed,
                break_even_tokens=needed,
                break_even_alpha=iid_break_even(needed, kappa) if kappa else 0.0,
            )
        )
    best = best_kappa(times, survival.curve, batch)
    return BatchPlan(batch, float(seconds[0]), tuple(points), best)


def _is_certain(plans: Sequence[BatchPlan], speculate: bool) -> bool:
    if speculate:
        return any(plan.best and plan.best_point.speedup_low > 1.0 for plan in plans)
    return all(point.speedup_high <= 1.0 for plan in plans for point in plan.points[1:])


def _crossing(times: RoundTimes, survival: SurvivalEstimate, kappa: int | None) -> Crossing:
    middle, low, high = (
        crossing_batch(times, curve, kappa=kappa)
        for curve in (survival.curve, survival.low, survival.high)
    )
    return Crossing(kappa, middle, low, high)


def _reason(plans: Sequence[BatchPlan], survival: SurvivalEstimate) -> str:
    gaining = [plan for plan in plans if plan.best]
    if gaining:
        best = max(gaining, key=lambda plan: plan.best_point.speedup)
        point = best.best_point
        return (
            f"{_drafts(point.kappa)} per row {_verb(point.kappa)} {point.tokens:.2f} tokens for "
            f"{point.break_even_tokens:.2f} times the cost of a plain step at batch {best.batch}"
        )
    plan = plans[0]
    point = max(plan.points[1:], key=lambda each: each.speedup)
    if point.break_even_alpha is None:
        return (
            f"even full acceptance does not pay: at batch {plan.batch} a round of "
            f"{_drafts(point.kappa)} costs {point.break_even_tokens:.2f} plain steps and commits "
            f"at most {point.kappa + 1} tokens"
        )
    if point.tokens < point.break_even_tokens:
        first = survival.curve.rates[0]
        return (
            f"acceptance is too low: {_drafts(point.kappa)} per row "
            f"{_verb(point.kappa)} {point.tokens:.2f} tokens for "
            f"{point.break_even_tokens:.2f} plain steps at batch {plan.batch} "
            f"(first position {first:.2f}; a constant rate of {point.break_even_alpha:.2f} would "
            "break even)"
        )
    return f"the gain of {_drafts(point.kappa)} is below {MIN_GAIN:.1%}"


def _drafts(kappa: int) -> str:
    return "1 draft" if kappa == 1 else f"{kappa} drafts"


def _verb(kappa: int) -> str:
    return "commits" if kappa == 1 else "commit"
