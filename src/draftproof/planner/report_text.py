"""A plan as tables for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from draftproof.planner.plan import Crossing, Plan

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["plan_renderables"]

#: Speedup columns that fit beside the batch and the pace.
MOST_COLUMNS = 8


def plan_renderables(plan: Plan) -> Iterator[RenderableType]:
    """Return what to print, in order.

    Parameters
    ----------
    plan : Plan
        The decision.

    Yields
    ------
    renderable
        Lines and tables.
    """
    from rich.text import Text

    head = "speculate: " if plan.speculate else "do not speculate: "
    yield Text(head + plan.reason, style="bold")
    if plan.survival.confidence:
        sure = "the same" if plan.certain else "not the same"
        yield Text(f"the answer is {sure} over the whole acceptance interval")
    for warning in plan.survival.warnings:
        yield Text(f"note: {warning}")
    yield _acceptance(plan)
    yield _speedups(plan)
    yield Text(_crossing_line(plan.crossing, "the best number of drafts"))
    fixed = plan.fixed_crossing
    yield Text(_crossing_line(fixed, f"{fixed.kappa} at every batch"))
    parts = [f"{low}-{high}: {kappa}" for low, high, kappa in plan.schedule]
    yield Text("drafts by batch size: " + ", ".join(parts))


def _columns(plan: Plan) -> list[int]:
    """Return the kappas to show: all, or an even choice that holds the best ones."""
    all_kappas = list(range(1, len(plan.batches[0].points)))
    if len(all_kappas) <= MOST_COLUMNS:
        return all_kappas
    chosen = {each.best for each in plan.batches} | {1, all_kappas[-1]}
    chosen.discard(0)
    for kappa in (2, 3, 4, 6, 8, 12, 5, 7, 10):
        if len(chosen) < MOST_COLUMNS and kappa <= all_kappas[-1]:
            chosen.add(kappa)
    return sorted(chosen)[:MOST_COLUMNS]


def _acceptance(plan: Plan) -> RenderableType:
    from rich.table import Table

    survival = plan.survival
    kappas = _columns(plan)
    title = "drafts that survive, at least so many"
    if survival.num_drafts:
        title += f" ({survival.num_drafts} drafts, worth {survival.effective_drafts:.0f})"
    table = Table("", title=title, title_justify="left", box=None, pad_edge=False)
    for kappa in kappas:
        table.add_column(str(kappa), justify="right")
    table.add_row("probability", *(f"{survival.curve.rates[k - 1]:.3f}" for k in kappas))
    if survival.confidence:
        for name, curve in (("low", survival.low), ("high", survival.high)):
            label = f"{name}, {survival.confidence:.0%}"
            table.add_row(label, *(f"{curve.rates[k - 1]:.3f}" for k in kappas))
    table.add_row("tokens", *(f"{survival.curve.tokens(k):.2f}" for k in kappas))
    return table


def _speedups(plan: Plan) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    kappas = _columns(plan)
    table = Table(
        title="speedup by batch and drafts (best marked; need: break-even tokens at the best)",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("batch", "plain tok/s", *(str(k) for k in kappas), "best", "need"):
        table.add_column(name, justify="right")
    for each in plan.batches:
        cells = []
        for kappa in kappas:
            value = each.points[kappa].speedup
            mark = "*" if kappa == each.best else ""
            style = "" if value >= 1.0 else "red"
            cells.append(Text(f"{value:.2f}{mark}", style=style))
        table.add_row(
            str(each.batch),
            f"{each.batch / each.plain_s:.0f}",
            *cells,
            str(each.best),
            f"{each.best_point.break_even_tokens:.2f}" if each.best else "-",
        )
    return table


def _crossing_line(crossing: Crossing, what: str) -> str:
    if crossing.batch == 1:
        said = "never gains"
    elif crossing.batch is None:
        said = "gains at every batch"
    else:
        said = f"gains up to batch {crossing.batch - 1}"
        if (crossing.low, crossing.high) != (crossing.batch, crossing.batch):
            said += f" (interval {_up_to(crossing.low)} to {_up_to(crossing.high)})"
    return f"{what}: {said}"


def _up_to(batch: int | None) -> str:
    return "no limit" if batch is None else str(batch - 1)
