"""Times of a trace as sections of a report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from draftproof.planner.rounds import RoundCost
from draftproof.report.content import Column, Figure, Section, Series, Table
from draftproof.report.trace_times import Forecast, Step, binned, forecasts

__all__ = ["forecast_section", "time_section"]

_PARTS = (
    ("draft", "draft_s"),
    ("target", "target_s"),
    ("verify", "verify_s"),
    ("other", "other_s"),
)


def time_section(steps: Sequence[Step], num_runs: int) -> Section:
    """Describe where the seconds went.

    Parameters
    ----------
    steps : sequence of Step
        Steps of the trace.
    num_runs : int
        Runs in it, which follow each other on the time axis.

    Returns
    -------
    Section
        Split of the steps, over time and in all; rows and drafts over time.
    """
    bins = binned(steps)
    at = tuple(each.at_s for each in bins)
    split = Figure(
        "split",
        "Seconds of a step, by part",
        "Mean milliseconds per step of drafting, the target's pass, verification and everything "
        "else, stacked over time.",
        "seconds since the run began",
        "milliseconds per step",
        tuple(
            Series(name, at, tuple(getattr(each, field) * 1e3 for each in bins), style="area")
            for name, field in _PARTS
        ),
    )
    load = Figure(
        "batch",
        "Rows and drafts over time",
        "Mean rows per pass and mean drafts per row, over time.",
        "seconds since the run began",
        "rows, drafts",
        (
            Series("rows of a pass", at, tuple(each.batch for each in bins)),
            Series("drafts per row", at, tuple(each.drafted for each in bins), style="dashed"),
        ),
    )
    notes = ["Each step counts once, however many rows it had; prompts are included."]
    if num_runs > 1:
        notes.append(f"The file holds {num_runs} runs; on the time axis they follow each other.")
    return Section(
        "Where the time goes", tuple(notes), (split, load) if bins else (), (_parts(steps),)
    )


def _parts(steps: Sequence[Step]) -> Table:
    totals = {name: sum(getattr(step.rounds[0], field) for step in steps) for name, field in _PARTS}
    whole = sum(totals.values())
    rows = tuple(
        (name, seconds, seconds / whole if whole else None, seconds / len(steps) if steps else None)
        for name, seconds in totals.items()
    )
    columns = (
        Column("part", "text"), Column("seconds", "s"), Column("share"),
        Column("ms per step", "ms"),
    )  # fmt: skip
    note = (
        f"{len(steps)} steps, {whole:.2f} s in all: sums over steps. Choosing draft lengths and "
        "waiting for requests are not in it."
    )
    return Table("parts", "Parts of a step", columns, rows, note)


def forecast_section(steps: Sequence[Step], cost: RoundCost, profile: str) -> Section:
    """Compare the steps with a calibrated profile.

    Parameters
    ----------
    steps : sequence of Step
        Steps of the trace.
    cost : RoundCost
        The profile's costs.
    profile : str
        Its name.

    Returns
    -------
    Section
        By shape of pass, measured and predicted.
    """
    found = forecasts(steps, cost)
    if not found:
        note = "No step decoded without reading a prompt, so there is nothing to compare."
        return Section("Predicted and measured", (note,))
    ratios = [each.total_s / each.predicted_total_s for each in found for _ in range(each.steps)]
    notes = (
        f"Predicted by {profile}: the pass, drafting and the overheads it measured, at the mean "
        "length of the texts. Steps that read prompts are left out.",
        f"A step takes {statistics.median(ratios):.2f} times what was predicted, in the median "
        f"over {len(ratios)} steps.",
    )
    most = max(max(each.total_s, each.predicted_total_s) for each in found) * 1e3
    figure = Figure(
        "forecast",
        "Predicted and measured",
        "Median milliseconds of a step against the prediction, one point per shape of pass; on "
        "the line the prediction is right.",
        "predicted ms per step",
        "measured ms per step",
        (
            Series(
                "shapes of passes",
                tuple(each.predicted_total_s * 1e3 for each in found),
                tuple(each.total_s * 1e3 for each in found),
                style="points",
            ),
            Series("equal", (0.0, most), (0.0, most), style="dashed"),
        ),
    )
    columns = (
        Column("rows", "int"), Column("tokens", "int"), Column("steps", "int"),
        Column("pass, ms", "ms"), Column("predicted pass, ms", "ms"),
        Column("step, ms", "ms"), Column("predicted step, ms", "ms"),
        Column("step / predicted"),
    )  # fmt: skip
    table = Table(
        "forecast", "By shape of pass", columns, tuple(map(_forecast_row, found)),
        "Medians over the steps of each shape, the most frequent shapes first.",
    )  # fmt: skip
    return Section("Predicted and measured", notes, (figure,), (table,))


def _forecast_row(each: Forecast) -> tuple[int | float | None, ...]:
    return (
        each.batch,
        each.tokens,
        each.steps,
        each.target_s,
        each.predicted_target_s,
        each.total_s,
        each.predicted_total_s,
        each.total_s / each.predicted_total_s if each.predicted_total_s else None,
    )
