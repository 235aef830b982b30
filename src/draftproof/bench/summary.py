"""From measurements to estimates, crossings and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from draftproof.bench.crossing import crossings
from draftproof.bench.estimated import CellSummary, CrossingRecord, Estimate, Verdict
from draftproof.bench.figures import Figure, by_round, decode_sums, figure, ratios
from draftproof.bench.intervals import estimate, is_look, is_narrow, spent_error
from draftproof.bench.measured import Measurement
from draftproof.bench.run_record import Arm, Settings

__all__ = ["arm_estimate", "is_settled", "summarise"]


def arm_estimate(
    settings: Settings, measurements: Sequence[Measurement], condition: int, arm: Arm
) -> Estimate:
    """Return what decides when an arm is done: its speedup, or its pace without a plain arm.

    Parameters
    ----------
    settings : Settings
        Of the run.
    measurements : sequence of Measurement
        So far.
    condition : int
        Index of the condition.
    arm : Arm
        The arm.

    Returns
    -------
    Estimate
        Median over rounds.
    """
    if any(each.is_plain for each in settings.arms):
        values = ratios(settings, measurements, condition, arm.name)
    else:
        held = by_round(measurements, condition, arm.name).values()
        asked = settings.conditions[condition]
        values = [v for each in held if (v := figure("tpot_s", each, asked)) is not None]
    return _estimate(settings, values)


def is_settled(
    settings: Settings, measurements: Sequence[Measurement], condition: int, arm: Arm
) -> bool:
    """Say whether an arm has reached the width that was asked for, at one of the looks.

    Parameters
    ----------
    settings : Settings
        Of the run.
    measurements : sequence of Measurement
        So far.
    condition : int
        Index of the condition.
    arm : Arm
        The arm.

    Returns
    -------
    bool
        Whether it needs no more rounds.
    """
    if settings.width is None or arm.is_plain:
        return False
    found = arm_estimate(settings, measurements, condition, arm)
    return is_look(found.n) and is_narrow(found, settings.width) if found.n else False


def summarise(
    settings: Settings, measurements: Sequence[Measurement]
) -> tuple[tuple[CellSummary, ...], tuple[CrossingRecord, ...], tuple[Verdict, ...]]:
    """Estimate everything that a run says.

    Parameters
    ----------
    settings : Settings
        What was asked for.
    measurements : sequence of Measurement
        Whole rounds.

    Returns
    -------
    cells : tuple of CellSummary
        By condition and arm.
    crossings : tuple of CrossingRecord
        By workload, temperature and arm, and for the best arm of each load.
    verdicts : tuple of Verdict
        By condition.
    """
    held: dict[int, list[Measurement]] = {}
    for each in measurements:
        held.setdefault(each.condition, []).append(each)
    cells = tuple(
        _cell(settings, held[index], index, arm)
        for index in sorted(held)
        for arm in settings.arms
        if by_round(held[index], index, arm.name)
    )
    verdicts = tuple(
        _verdict(settings, index, [cell for cell in cells if cell.condition == index])
        for index in range(len(settings.conditions))
    )
    return cells, crossings(settings, cells), verdicts


def _cell(
    settings: Settings, measurements: Sequence[Measurement], condition: int, arm: Arm
) -> CellSummary:
    held = list(by_round(measurements, condition, arm.name).values())
    asked = settings.conditions[condition]

    def over_rounds(value: Callable[[Measurement], float | None]) -> list[float]:
        return [found for each in held if (found := value(each)) is not None]

    def figures(what: Figure) -> Estimate:
        return _estimate(settings, over_rounds(lambda each: figure(what, each, asked)))

    speedups = [] if arm.is_plain else ratios(settings, measurements, condition, arm.name)
    per_token = (
        []
        if arm.is_plain
        else ratios(settings, measurements, condition, arm.name, "latency_per_token_s")
    )
    requests = [request for each in held for request in each.requests]
    own_rates = [each.acceptance_rate for each in requests if each.acceptance_rate is not None]
    tokens = sum(each.num_tokens for each in requests)
    chunks = sum(each.num_chunks for each in requests)
    drafts, drafted, accepted, per_pos = _acceptance(held)
    knows = any(each.acceptance is not None for each in held)
    return CellSummary(
        condition=condition,
        arm=arm.name,
        tokens_per_s=figures("tokens_per_s"),
        tpot_s=figures("tpot_s"),
        ttft_s=figures("ttft_s"),
        latency_s=figures("latency_s"),
        speedup=_estimate(settings, speedups),
        speedup_pooled=_pooled(settings, measurements, condition, arm),
        latency_ratio=_estimate(settings, per_token),
        acceptance_rate=accepted / drafted if drafted else None,
        mean_acceptance_length=1.0 + accepted / drafts if drafts else None,
        acceptance_rate_per_pos=per_pos,
        acceptance_rate_per_request=statistics.fmean(own_rates) if own_rates else None,
        drafted_per_token=drafted / tokens if knows and tokens else None,
        tokens_per_chunk=tokens / chunks if chunks else None,
        gap_p50_s=_median(over_rounds(lambda each: each.gaps.p50_s)),
        gap_p99_s=_median(over_rounds(lambda each: each.gaps.p99_s)),
        num_requests=len(requests),
        num_failed=sum(bool(each.error) for each in requests),
        is_settled=is_settled(settings, measurements, condition, arm),
    )


def _estimate(settings: Settings, values: Sequence[float]) -> Estimate:
    if not values:
        return Estimate(None, None, None, 0)
    error = spent_error(len(values), settings.confidence, may_stop=settings.width is not None)
    return estimate(values, error)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _pooled(
    settings: Settings, measurements: Sequence[Measurement], condition: int, arm: Arm
) -> float | None:
    """Return the speedup from sums over the rounds that have both arms."""
    plain = next((each.name for each in settings.arms if each.is_plain), None)
    if plain is None or arm.is_plain:
        return None
    base, own = (by_round(measurements, condition, name) for name in (plain, arm.name))
    shared = [number for number in own if number in base]
    sums = []
    for side in (base, own):
        parts = [decode_sums(side[number]) for number in shared]
        seconds, tokens = sum(part[0] for part in parts), sum(part[1] for part in parts)
        sums.append(seconds / tokens if tokens else 0.0)
    return sums[0] / sums[1] if sums[0] and sums[1] else None


def _acceptance(
    held: Sequence[Measurement],
) -> tuple[int, int, int, tuple[float | None, ...]]:
    """Return drafts, drafted and accepted tokens, and the rates by offset, pooled."""
    found = [each.acceptance for each in held if each.acceptance is not None]
    places = max((len(each.num_accepted_tokens_per_pos) for each in found), default=0)
    places = max(places, max((len(each.num_drafted_per_pos) for each in found), default=0))
    rates: list[float | None] = []
    for place in range(places):
        kept = sum(_at(each.num_accepted_tokens_per_pos, place) for each in found)
        # Engines that do not tell how many drafts were that long count short ones in.
        tried = sum(
            _at(each.num_drafted_per_pos, place) if each.num_drafted_per_pos else each.num_drafts
            for each in found
        )
        rates.append(kept / tried if tried else None)
    return (
        sum(each.num_drafts for each in found),
        sum(each.num_draft_tokens for each in found),
        sum(each.num_accepted_tokens for each in found),
        tuple(rates),
    )


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0


def _verdict(settings: Settings, condition: int, cells: Sequence[CellSummary]) -> Verdict:
    plain = {arm.name for arm in settings.arms if arm.is_plain}
    others = [cell for cell in cells if cell.arm not in plain and cell.speedup.low is not None]
    if not plain:
        return Verdict(condition, "unknown", None, "there was no plain decoding to compare with")
    if not others:
        most = max((cell.speedup.n for cell in cells), default=0)
        return Verdict(condition, "unknown", None, f"too few rounds for an interval: {most}")
    best = max(others, key=lambda cell: cell.speedup.value or 0.0)
    found = (
        f"{best.arm}: {best.speedup.value:.2f} times plain "
        f"[{best.speedup.low:.2f}, {best.speedup.high:.2f}]"
    )
    gains = [cell for cell in others if (cell.speedup.low or 0.0) > 1.0]
    if gains:
        pick = max(gains, key=lambda cell: cell.speedup.value or 0.0)
        found = (
            f"{pick.arm}: {pick.speedup.value:.2f} times plain "
            f"[{pick.speedup.low:.2f}, {pick.speedup.high:.2f}]"
        )
        if len(others) > 1:
            found += f"; the best of {len(others)} looks a little better than it is"
        return Verdict(condition, "speculate", pick.arm, found)
    if all((cell.speedup.high or 0.0) < 1.0 for cell in others):
        return Verdict(condition, "do not speculate", None, f"plain is faster; {found}")
    return Verdict(condition, "undecided", None, f"no gain is shown; {found}")
