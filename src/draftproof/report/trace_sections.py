"""A trace as sections of a report."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.bench.trace_record import Trace
from draftproof.core.trace import RoundTrace
from draftproof.planner.acceptance import iid_survival
from draftproof.planner.counts import AcceptanceCounts
from draftproof.planner.estimate import estimate_survival
from draftproof.planner.rounds import RoundCost
from draftproof.report.content import Column, Figure, Report, Section, Series, Table
from draftproof.report.environment import environment_section
from draftproof.report.time_sections import forecast_section, time_section
from draftproof.report.trace_counts import (
    accepted_lengths,
    count_sources,
    counts_of,
    expected_lengths,
    fitted_alpha,
    mean,
    rates_by_request,
    wilson,
)
from draftproof.report.trace_times import steps_of

__all__ = ["trace_report"]

_INTERVAL = "Intervals are Wilson's, 95 %"


def trace_report(
    trace: Trace, *, title: str, cost: RoundCost | None = None, profile: str = ""
) -> Report:
    """Describe a trace.

    Parameters
    ----------
    trace : Trace
        The file.
    title : str
        Heading.
    cost : RoundCost, optional
        Costs of a calibrated profile, to compare the steps with.
    profile : str, default ""
        Name of the profile.

    Returns
    -------
    Report
        Acceptance by position, by drafter and by request; times; the environment.
    """
    by_request = list(trace.by_request())
    rounds = [each for _, held in by_request for each in held]
    counts = counts_of(rounds)
    steps = steps_of(trace)
    warnings = []
    if trace.is_torn:
        warnings.append("the file broke off in the middle of a line; what came before is here")
    num_open = len(by_request) - sum(len(run.requests) for run in trace.runs)
    if num_open > 0:
        warnings.append(
            f"requests that had not ended when the trace did: {num_open}; they count too"
        )
    sections = [_summary(trace, by_request, rounds)]
    if counts.drafted:
        per_request = {
            str(place): held
            for place, (_, mine) in enumerate(by_request)
            if (held := counts_of(mine)).drafted
        }
        estimate = estimate_survival(counts, per_request)
        warnings += estimate.warnings
        sections.append(_positions(counts, estimate.curve.rates, estimate.low.rates,
                                   estimate.high.rates, estimate.effective_drafts))  # fmt: skip
        sections.append(_lengths(rounds, counts))
        sections.append(_sources(rounds))
    sections.append(time_section(steps, len(trace.runs)))
    if cost is not None:
        sections.append(forecast_section(steps, cost, profile))
    sections.append(_requests(trace))
    sections.append(environment_section([run.header for run in trace.runs]))
    return Report(title, _answer(rounds, counts), None, tuple(warnings), tuple(sections))


def _answer(rounds: Sequence[RoundTrace], counts: AcceptanceCounts) -> tuple[str, ...]:
    tokens = sum(len(each.committed) for each in rounds)
    if not counts.drafted:
        return (f"{tokens} tokens in {len(rounds)} rounds; nothing was drafted.",)
    drafts, accepted = counts.drafted[0], sum(counts.accepted)
    return (
        f"{tokens} tokens in {len(rounds)} rounds, {drafts} of them with drafts. Such a round "
        f"kept {accepted / drafts:.2f} drafted tokens on average: mean acceptance length "
        f"{1 + accepted / drafts:.2f}, the added token included.",
    )


def _summary(
    trace: Trace,
    by_request: Sequence[tuple[str, tuple[RoundTrace, ...]]],
    rounds: Sequence[RoundTrace],
) -> Section:
    drafting = [each for each in rounds if each.draft_ids]
    drafted = sum(len(each.draft_ids) for each in drafting)
    accepted = sum(each.num_accepted for each in drafting)
    tokens = sum(len(each.committed) for each in rounds)
    each_rate = rates_by_request(trace)
    rows: list[tuple[str, float | int | None, str]] = [
        ("requests", len(by_request), ""),
        ("rounds", len(rounds), ""),
        ("rounds with drafts", len(drafting), ""),
        ("drafted tokens", drafted, "all nodes where drafts branch"),
        ("accepted tokens", accepted, ""),
        ("committed tokens", tokens, "after stops"),
        ("acceptance rate", _ratio(accepted, drafted), f"pooled: {accepted} of {drafted}"),
        ("acceptance rate by request", mean(each_rate) if each_rate else None,
         f"mean over {len(each_rate)} request{'s' * (len(each_rate) != 1)} that drafted"),
        ("mean acceptance length", 1 + accepted / len(drafting) if drafting else None,
         "pooled: 1 + accepted / rounds with drafts"),
        ("committed tokens per round", _ratio(tokens, len(rounds)), "pooled, all rounds"),
        ("drafted per committed token", _ratio(drafted, tokens), "pooled: the volume"),
    ]  # fmt: skip
    columns = (Column("figure", "text"), Column("value", "text"), Column("how", "text"))
    cells = tuple(
        (name, f"{value:,}".replace(",", " ") if isinstance(value, int) else _rate(value), how)
        for name, value, how in rows
    )
    return Section("Summary", tables=(Table("summary", "Totals", columns, cells),))


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None


def _rate(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _positions(
    counts: AcceptanceCounts,
    survival: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    effective: float,
) -> Section:
    alpha = fitted_alpha(counts)
    assert alpha is not None  # narrows the type: something was drafted
    places = tuple(float(place) for place in range(1, len(counts) + 1))
    known = places[: len(survival)]
    model = iid_survival(alpha, len(counts)).rates
    trials = list(zip(counts.accepted, counts.reached, strict=True))
    rates = tuple(_ratio(accepted, reached) for accepted, reached in trials)
    ends = [wilson(accepted, reached) for accepted, reached in trials]
    rows = tuple(
        (
            place + 1,
            counts.drafted[place],
            counts.reached[place],
            counts.accepted[place],
            rates[place],
            *ends[place],
            survival[place] if place < len(survival) else None,
            low[place] if place < len(survival) else None,
            high[place] if place < len(survival) else None,
            model[place],
        )
        for place in range(len(counts))
    )
    columns = (
        Column("position", "int"), Column("drafted", "int"), Column("reached", "int"),
        Column("accepted", "int"), Column("conditional rate"), Column("low"), Column("high"),
        Column("survival"), Column("survival low"), Column("survival high"), Column("alpha^i"),
    )  # fmt: skip
    notes = (
        "Survival: how often the first i drafts were all kept. The conditional rate looks only "
        "at rounds that got to position i: accepted over reached.",
        f"One constant rate, fitted to all positions, is alpha = {alpha:.3f} (accepted over "
        "reached, summed over positions). Where the measured curve bends away from alpha^i, one "
        "number does not describe this drafter.",
    )
    figures = (
        Figure(
            "survival",
            "Survival by position",
            "Share of drafts of which the first i tokens were all kept, with intervals, beside "
            "the curve of the fitted constant rate.",
            "position in the draft",
            "survival",
            (
                Series("measured", known, tuple(survival), tuple(low), tuple(high), style="points"),
                Series(f"alpha^i, alpha = {alpha:.3f}", places, tuple(model), style="dashed"),
            ),
            y_limits=(0.0, 1.04),
        ),
        Figure(
            "conditional",
            "Conditional rate by position",
            "Accepted over reached at each position, with intervals, beside the fitted constant.",
            "position in the draft",
            "accepted / reached",
            (
                Series(
                    "measured",
                    places,
                    rates,
                    tuple(end[0] for end in ends),
                    tuple(end[1] for end in ends),
                    style="points",
                ),
                Series(f"alpha = {alpha:.3f}", places, (alpha,) * len(places), style="dashed"),
            ),
            y_limits=(0.0, 1.04),
        ),
    )
    note = (
        f"{_INTERVAL}. Those of survival count {effective:.0f} independent rounds at the first "
        f"position, of {counts.drafted[0]}: rounds of one request resemble each other. Those of "
        "conditional rates take rounds as independent."
    )
    table = Table("positions", "Acceptance by position", columns, rows, note)
    return Section("Acceptance by position", notes, figures, (table,))


def _lengths(rounds: Sequence[RoundTrace], counts: AcceptanceCounts) -> Section:
    alpha = fitted_alpha(counts) or 0.0
    held = accepted_lengths(rounds)
    expected = expected_lengths(rounds, alpha)
    kept = range(max([*held, *expected]) + 1)
    total = sum(held.values())
    rows = tuple(
        (length, held[length], _ratio(held[length], total), round(expected.get(length, 0.0), 1))
        for length in kept
    )
    columns = (
        Column("accepted drafts", "int"), Column("rounds", "int"), Column("share"),
        Column("rounds at constant alpha", "number"),
    )  # fmt: skip
    at = tuple(float(length) for length in kept)
    figure = Figure(
        "lengths",
        "Accepted drafts per round",
        "How many rounds kept how many drafts, beside what a constant rate would give for drafts "
        "of the same lengths.",
        "accepted drafts",
        "rounds",
        (
            Series("measured", at, tuple(float(held[length]) for length in kept), style="bars"),
            Series(
                f"constant alpha = {alpha:.3f}",
                at,
                tuple(expected.get(length, 0.0) for length in kept),
                style="points",
            ),
        ),
    )
    return Section(
        "Accepted drafts per round",
        figures=(figure,),
        tables=(Table("lengths", "Rounds by accepted drafts", columns, rows),),
    )


def _sources(rounds: Sequence[RoundTrace]) -> Section:
    rows = []
    for (drafter, source), counts in count_sources(rounds).items():
        rows.append(
            (
                drafter,
                source,
                counts.rounds,
                counts.drafted,
                counts.reached,
                counts.accepted,
                _ratio(counts.accepted, counts.reached),
                *wilson(counts.accepted, counts.reached),
                counts.target_mass / counts.known if counts.known else None,
                counts.overlap / counts.known if counts.known else None,
            )
        )
    columns = (
        Column("drafter", "text"), Column("source", "text"), Column("rounds", "int"),
        Column("drafted", "int"), Column("reached", "int"), Column("accepted", "int"),
        Column("accepted / reached"), Column("low"), Column("high"), Column("mean p"),
        Column("mean min(1, p/q)"),
    )  # fmt: skip
    note = (
        f"Pooled. {_INTERVAL}. A draft is reached where all drafts above it were kept. min(1, p/q) "
        "is the chance that token-by-token verification keeps a draft: under that rule it and the "
        "measured rate agree up to chance, and block verification may keep more."
    )
    table = Table("sources", "Drafters and their parts", columns, tuple(rows), note)
    return Section("By drafter and source", tables=(table,))


def _requests(trace: Trace) -> Section:
    rows = []
    for run in trace.runs:
        ended = {each.request: each for each in run.requests}
        for name, rounds in Trace((run,)).by_request():
            drafts = [each for each in rounds if each.draft_ids]
            drafted = sum(len(each.draft_ids) for each in drafts)
            accepted = sum(each.num_accepted for each in drafts)
            rows.append(
                (
                    name,
                    sum(len(each.committed) for each in rounds),
                    len(rounds),
                    drafted,
                    accepted,
                    _ratio(accepted, drafted),
                    1 + accepted / len(drafts) if drafts else None,
                    ended[name].finish_reason if name in ended else "not ended",
                )
            )
    columns = (
        Column("request", "text"), Column("tokens", "int"), Column("rounds", "int"),
        Column("drafted", "int"), Column("accepted", "int"), Column("accepted / drafted"),
        Column("mean acceptance length"), Column("ended by", "text"),
    )  # fmt: skip
    return Section("By request", tables=(Table("requests", "Requests", columns, tuple(rows)),))
