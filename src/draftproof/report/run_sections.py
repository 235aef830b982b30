"""A benchmark run as sections of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from draftproof.bench.run_record import CellSummary, Condition, Estimate, RunRecord
from draftproof.report.content import Column, Figure, Report, Section, Series, Table
from draftproof.report.environment import run_environment

__all__ = ["run_report"]

#: Conditions that share a figure: what stays the same while the load grows.
_Key = tuple[str, float, str]


def run_report(record: RunRecord, *, title: str) -> Report:
    """Describe a benchmark run.

    Parameters
    ----------
    record : RunRecord
        The run.
    title : str
        Heading.

    Returns
    -------
    Report
        What to do, speedup by load, all cells, the environment.
    """
    decisions = {verdict.decision for verdict in record.verdicts}
    is_good = None
    if decisions and decisions <= {"speculate", "do not speculate"} and len(decisions) == 1:
        is_good = decisions == {"speculate"}
    answer = tuple(
        f"{_shown(record.settings.conditions[verdict.condition])}: {verdict.says}"
        for verdict in record.verdicts
    )
    warnings = list(record.warnings)
    if not record.is_complete:
        warnings.append("the run ended before everything that was asked for was measured")
    sections = (
        _speedups(record),
        _crossings(record),
        _cells(record),
        _positions(record),
        run_environment(record),
    )
    return Report(
        title,
        answer or ("The run holds no verdict.",),
        is_good,
        tuple(warnings),
        tuple(section for section in sections if section.figures or section.tables),
    )


def _shown(condition: Condition) -> str:
    heat = "greedy" if condition.temperature == 0 else f"temperature {condition.temperature:g}"
    if condition.concurrency is not None:
        return f"{condition.workload}, {heat}, {condition.concurrency} in flight"
    return f"{condition.workload}, {heat}, {condition.rate:g} requests per second"


def _load(condition: Condition) -> float | None:
    load = condition.rate if condition.concurrency is None else condition.concurrency
    return None if load is None else float(load)


def _speedups(record: RunRecord) -> Section:
    groups: dict[_Key, dict[str, list[CellSummary]]] = defaultdict(lambda: defaultdict(list))
    conditions = record.settings.conditions
    plain = {arm.name for arm in record.settings.arms if arm.is_plain}
    for cell in record.cells:
        condition = conditions[cell.condition]
        if cell.arm not in plain and _load(condition) is not None:
            by = "rate" if condition.concurrency is None else "concurrency"
            key = (condition.workload, condition.temperature, by)
            groups[key][cell.arm].append(cell)
    figures = tuple(
        _speedup_figure(record, number, key, arms)
        for number, (key, arms) in enumerate(groups.items(), start=1)
    )
    notes = (
        "Speedup: plain seconds per token by those of the arm, as ratios within rounds; medians "
        f"with intervals at {record.settings.confidence:.0%}. Below the line speculation is "
        "slower than plain decoding. A dashed vertical line marks where the medians cross 1.",
    )
    return Section("Speedup by load", notes, figures)


def _speedup_figure(
    record: RunRecord, number: int, key: _Key, arms: dict[str, list[CellSummary]]
) -> Figure:
    workload, temperature, by = key
    conditions = record.settings.conditions
    series = []
    for arm, cells in arms.items():
        held = sorted(cells, key=lambda cell: _load(conditions[cell.condition]) or 0.0)
        series.append(
            Series(
                arm,
                tuple(_load(conditions[cell.condition]) or 0.0 for cell in held),
                tuple(cell.speedup.value for cell in held),
                tuple(cell.speedup.low for cell in held),
                tuple(cell.speedup.high for cell in held),
            )
        )
    marks = tuple(
        crossing.estimate
        for crossing in record.crossings
        if (crossing.workload, crossing.temperature, crossing.by) == key
        and crossing.arm is None
        and crossing.estimate is not None
    )
    if marks:
        series.append(Series("crossing of the best arm", marks, style="mark"))
    heat = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    return Figure(
        f"speedup-{number}",
        f"{workload}, {heat}",
        f"Speedup over plain decoding of {', '.join(arms)} as the load grows.",
        "requests in flight" if by == "concurrency" else "requests per second",
        "speedup",
        tuple(series),
        is_log_x=True,
        level=1.0,
    )


def _crossings(record: RunRecord) -> Section:
    columns = (
        Column("workload", "text"), Column("temperature", "number"), Column("arm", "text"),
        Column("by", "text"), Column("pays up to", "number"), Column("loses from", "number"),
        Column("medians cross at", "number"), Column("in words", "text"),
    )  # fmt: skip
    rows = tuple(
        (
            each.workload,
            each.temperature,
            each.arm or "best",
            each.by,
            each.pays_up_to,
            each.loses_from,
            each.estimate,
            each.says,
        )
        for each in record.crossings
    )
    if not rows:
        return Section("Where it stops paying")
    return Section(
        "Where it stops paying", tables=(Table("crossings", "Crossings", columns, rows),)
    )


def _cells(record: RunRecord) -> Section:
    columns = (
        Column("workload", "text"), Column("temperature", "number"), Column("load", "number"),
        Column("arm", "text"),
        Column("tokens per s", "number"), Column("low", "number"), Column("high", "number"),
        Column("speedup"), Column("speedup low"), Column("speedup high"),
        Column("speedup, pooled"), Column("rounds", "int"),
        Column("to first token, ms", "ms"), Column("per token, ms", "ms"),
        Column("acceptance, pooled"), Column("acceptance, mean of requests"),
        Column("mean acceptance length, pooled"), Column("drafted per token, pooled"),
        Column("requests", "int"), Column("failed", "int"),
    )  # fmt: skip
    rows = tuple(_cell(record.settings.conditions[cell.condition], cell) for cell in record.cells)
    note = (
        "Medians over rounds, except where a column says pooled (sums over all rounds) or mean "
        "of requests (short requests weigh as much as long ones). n/a: nothing was drafted, the "
        "subject does not tell, or rounds were too few for an interval."
    )
    if not rows:
        return Section("All cells")
    return Section("All cells", tables=(Table("cells", "All cells", columns, rows, note),))


def _ends(estimate: Estimate) -> tuple[float | None, float | None, float | None]:
    return estimate.value, estimate.low, estimate.high


def _cell(condition: Condition, cell: CellSummary) -> tuple[str | int | float | None, ...]:
    return (
        condition.workload,
        condition.temperature,
        _load(condition),
        cell.arm,
        *_ends(cell.tokens_per_s),
        *_ends(cell.speedup),
        cell.speedup_pooled,
        cell.speedup.n or cell.tokens_per_s.n,
        cell.ttft_s.value,
        cell.tpot_s.value,
        cell.acceptance_rate,
        cell.acceptance_rate_per_request,
        cell.mean_acceptance_length,
        cell.drafted_per_token,
        cell.num_requests,
        cell.num_failed,
    )


def _positions(record: RunRecord) -> Section:
    drafting = [cell for cell in record.cells if cell.acceptance_rate_per_pos]
    if not drafting:
        return Section("Acceptance by position")
    longest = max(len(cell.acceptance_rate_per_pos) for cell in drafting)
    columns = (
        Column("workload", "text"), Column("temperature", "number"), Column("load", "number"),
        Column("arm", "text"),
        *(Column(f"position {place}") for place in range(1, longest + 1)),
    )  # fmt: skip
    rows = tuple(_position_row(record, cell, longest) for cell in drafting)
    note = "Kept over drafted at each position, pooled over all rounds; earlier rejections count."
    table = Table("positions", "Acceptance by position", columns, rows, note)
    return Section("Acceptance by position", tables=(table,))


def _position_row(
    record: RunRecord, cell: CellSummary, longest: int
) -> tuple[str | int | float | None, ...]:
    condition = record.settings.conditions[cell.condition]
    rates: Sequence[float | None] = cell.acceptance_rate_per_pos
    missing = (None,) * (longest - len(rates))
    return condition.workload, condition.temperature, _load(condition), cell.arm, *rates, *missing
