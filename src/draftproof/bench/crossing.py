"""Where speculation stops paying as the load grows.

The answer is a pair of measured loads: up to the first one every interval lies above 1,
from the second one on every interval lies below. If the speedup falls as the load grows,
the crossing lies between them with the confidence of a single interval, whatever the
number of loads: the first end is wrong only if the interval of the first load beyond the
crossing is wrong upwards, the second only if that of the last load before it is wrong
downwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from draftproof.bench.estimated import CellSummary, CrossingRecord
from draftproof.bench.run_record import Settings

__all__ = ["crossings"]


@dataclass(frozen=True, slots=True)
class _Point:
    """Whether speculation pays at one load."""

    load: float
    pays: bool
    loses: bool
    value: float


def crossings(settings: Settings, cells: Sequence[CellSummary]) -> tuple[CrossingRecord, ...]:
    """Find the crossings of a run.

    Parameters
    ----------
    settings : Settings
        Of the run.
    cells : sequence of CellSummary
        Its estimates.

    Returns
    -------
    tuple of CrossingRecord
        By workload, temperature and arm, and one for the best arm of each load; none
        where a single load was measured.
    """
    found = []
    names: list[str | None] = [arm.name for arm in settings.arms if not arm.is_plain]
    if len(names) > 1:
        names.append(None)
    kinds = dict.fromkeys((each.workload, each.temperature) for each in settings.conditions)
    for workload, temperature in kinds:
        loads = {
            index: (each.concurrency if each.concurrency is not None else each.rate) or 0.0
            for index, each in enumerate(settings.conditions)
            if (each.workload, each.temperature) == (workload, temperature)
        }
        first = settings.conditions[next(iter(loads))]
        by: Literal["concurrency", "rate"] = "rate" if first.concurrency is None else "concurrency"
        for name in names:
            points = [_point(load, index, name, cells) for index, load in loads.items()]
            held = sorted((each for each in points if each), key=lambda each: each.load)
            if len(held) < 2:
                continue
            found.append(_crossing(workload, temperature, name, by, held))
    return tuple(found)


def _point(
    load: float, condition: int, name: str | None, cells: Sequence[CellSummary]
) -> _Point | None:
    """Return one load of one arm, or of whichever arm is best there."""
    mine = [
        cell.speedup
        for cell in cells
        if cell.condition == condition
        and cell.speedup.low is not None
        and (name is None or cell.arm == name)
    ]
    if not mine:
        return None
    return _Point(
        load,
        any((each.low or 0.0) > 1.0 for each in mine),
        all((each.high or 0.0) < 1.0 for each in mine),
        max(each.value or 0.0 for each in mine),
    )


def _crossing(
    workload: str,
    temperature: float,
    name: str | None,
    by: Literal["concurrency", "rate"],
    points: Sequence[_Point],
) -> CrossingRecord:
    pays_up_to, loses_from = None, None
    for point in points:
        if not point.pays:
            break
        pays_up_to = point.load
    for point in reversed(points):
        if not point.loses:
            break
        loses_from = point.load
    estimate = _where_one(points)
    says = _says(points, pays_up_to, loses_from, estimate)
    return CrossingRecord(workload, temperature, name, by, pays_up_to, loses_from, estimate, says)


def _where_one(points: Sequence[_Point]) -> float | None:
    """Interpolate the first fall of the medians below 1."""
    for left, right in pairwise(points):
        if left.value >= 1.0 > right.value:
            high, low = math.log(left.value), math.log(right.value)
            share = high / (high - low)
            return float(left.load * (right.load / left.load) ** share)
    return None


def _says(
    points: Sequence[_Point],
    pays_up_to: float | None,
    loses_from: float | None,
    estimate: float | None,
) -> str:
    first, last = points[0].load, points[-1].load
    if loses_from == first:
        return "loses at every load that was measured: do not speculate here"
    if pays_up_to == last:
        return f"pays at every load that was measured, up to {last:g}"
    medians = "" if estimate is None else f"; the medians cross at {estimate:.3g}"
    if pays_up_to is None and loses_from is None:
        return f"the intervals leave it open at every load{medians}"
    if pays_up_to is None:
        return f"no load shows a gain; loses from {loses_from:g} on{medians}"
    if loses_from is None:
        return f"pays up to {pays_up_to:g}; what is above is open{medians}"
    return f"pays up to {pays_up_to:g} and loses from {loses_from:g} on{medians}"
