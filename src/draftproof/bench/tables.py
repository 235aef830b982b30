"""Runs as tables and sentences for people. An undefined figure is "n/a", never 0."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from draftproof.bench.comparing import RunComparison
from draftproof.bench.estimated import CellSummary, Estimate
from draftproof.bench.run_record import Condition, RunRecord

__all__ = ["comparison_renderables", "condition_name", "interval_text", "run_renderables"]


def interval_text(estimate: Estimate, digits: int = 2, scale: float = 1.0) -> str:
    """Return a median with its interval.

    Parameters
    ----------
    estimate : Estimate
        Median and interval.
    digits : int
        Digits after the point.
    scale : float
        What values are multiplied by.

    Returns
    -------
    str
        Such as ``"1.82 [1.60, 1.95]"``; ``"1.82 [n/a]"`` where rounds are too few.
    """
    if estimate.value is None:
        return "n/a"
    value = f"{estimate.value * scale:.{digits}f}"
    if estimate.low is None or estimate.high is None:
        return f"{value} [n/a]"
    low, high = (f"{end * scale:.{digits}f}" for end in (estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def condition_name(condition: Condition) -> str:
    """Return a condition in words.

    Parameters
    ----------
    condition : Condition
        The condition.

    Returns
    -------
    str
        Such as ``"chat, T=0, 4 in flight"``.
    """
    load = (
        f"{condition.rate:g} arrivals/s"
        if condition.concurrency is None
        else f"{condition.concurrency} in flight"
    )
    return f"{condition.workload}, T={condition.temperature:g}, {load}"


def run_renderables(record: RunRecord) -> Iterator[Table | str]:
    """Yield what to print.

    Parameters
    ----------
    record : RunRecord
        The run.

    Yields
    ------
    Table or str
        One table per workload and temperature, the crossings, the verdicts, the warnings.
    """
    settings = record.settings
    kinds = dict.fromkeys((each.workload, each.temperature) for each in settings.conditions)
    for workload, temperature in kinds:
        table = Table(
            "load",
            "arm",
            "tok/s",
            "× plain",
            "pooled",
            "TTFT ms",
            "ms/token",
            "accepted",
            "length",
            "drafted/token",
            "tok/chunk",
            title=Text(f"{workload}, T={temperature:g}"),
            title_justify="left",
            box=None,
            pad_edge=False,
        )
        for cell in record.cells:
            condition = settings.conditions[cell.condition]
            if (condition.workload, condition.temperature) == (workload, temperature):
                table.add_row(*map(Text, _row(condition, cell)))
        yield table
    yield from _sentences(record)


def _row(condition: Condition, cell: CellSummary) -> tuple[str, ...]:
    load = f"{condition.rate:g}/s" if condition.concurrency is None else str(condition.concurrency)
    return (
        load,
        cell.arm,
        interval_text(cell.tokens_per_s, 1),
        interval_text(cell.speedup),
        _shown(cell.speedup_pooled),
        interval_text(cell.ttft_s, 0, 1e3),
        interval_text(cell.tpot_s, 1, 1e3),
        _shown(cell.acceptance_rate, 3),
        _shown(cell.mean_acceptance_length),
        _shown(cell.drafted_per_token),
        _shown(cell.tokens_per_chunk),
    )


def _shown(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _sentences(record: RunRecord) -> Iterator[str]:
    settings = record.settings
    yield (
        f"medians over rounds [interval at {settings.confidence:.0%}]; × plain and ms/token are "
        "decoding only, ratios within rounds; accepted and length are pooled over requests"
    )
    for verdict in record.verdicts:
        where = condition_name(settings.conditions[verdict.condition])
        yield f"{where}: {verdict.decision}: {verdict.says}"
    for crossing in record.crossings:
        arm = crossing.arm or "best arm of each load"
        yield f"{crossing.workload}, T={crossing.temperature:g}, {arm}: {crossing.says}"
    for warning in record.warnings:
        yield f"warning: {warning}"


def comparison_renderables(found: RunComparison) -> Iterator[Table | str]:
    """Yield what to print about two runs.

    Parameters
    ----------
    found : RunComparison
        The comparison.

    Yields
    ------
    Table or str
        One table, and what a reader must know.
    """
    table = Table(
        "condition", "arm", "tok/s, B / A", "× plain, B / A", "", box=None, pad_edge=False
    )
    for cell in found.cells:
        words = (
            condition_name(cell.condition),
            cell.arm,
            interval_text(cell.pace, 3),
            interval_text(cell.speedup, 3),
            "within rounds" if cell.is_paired else "two samples",
        )
        # As text: square brackets would be read as styles.
        table.add_row(*map(Text, words))
    yield table if found.cells else "the runs have no cell in common"
    for note in found.notes:
        yield f"note: {note}"
    for difference in found.differences:
        yield f"warning: environments differ: {difference}"
