"""Two runs, cell by cell.

Where both ran the same prompts in the same rounds, ratios are taken within rounds and
their median has an order-statistic interval. Otherwise the rounds are two samples: the
shift of their logarithms is estimated by Hodges and Lehmann (1963), and its interval is
that of Moses, from the exact law of the Mann-Whitney statistic.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.bench.environment import environment_differences
from draftproof.bench.estimated import Estimate
from draftproof.bench.figures import by_round, figure, ratios
from draftproof.bench.intervals import estimate
from draftproof.bench.run_record import Condition, RunRecord

__all__ = ["CellComparison", "RunComparison", "compare_runs", "shift_estimate"]

#: Pairs of equal rounds from which on they are taken as pairs.
_PAIRS = 6


@dataclass(frozen=True, slots=True)
class CellComparison:
    """One arm under one condition in both runs.

    Parameters
    ----------
    condition : Condition
        The condition.
    arm : str
        Name of the arm.
    pace : Estimate
        Decoded tokens per second of B by those of A; ``n`` counts rounds of B.
    speedup : Estimate
        The speedup over plain in B by that in A.
    is_paired : bool
        Whether ratios were taken within rounds of equal prompts.
    """

    condition: Condition
    arm: str
    pace: Estimate
    speedup: Estimate
    is_paired: bool


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Two runs.

    Parameters
    ----------
    cells : tuple of CellComparison
        What both have.
    differences : tuple of str
        In what the environments differ.
    notes : tuple of str
        What else a reader must know.
    """

    cells: tuple[CellComparison, ...]
    differences: tuple[str, ...]
    notes: tuple[str, ...]


def compare_runs(left: RunRecord, right: RunRecord) -> RunComparison:
    """Compare run B with run A.

    Parameters
    ----------
    left, right : RunRecord
        A and B.

    Returns
    -------
    RunComparison
        By condition and arm.
    """
    cells, alone = [], 0
    error = 1.0 - min(left.settings.confidence, right.settings.confidence)
    for index, condition in enumerate(right.settings.conditions):
        if condition not in left.settings.conditions:
            alone += 1
            continue
        other = left.settings.conditions.index(condition)
        for arm in right.settings.arms:
            if any(each.name == arm.name for each in left.settings.arms):
                cell = _cell(left, right, other, index, arm.name, error)
                cells += [] if cell is None else [cell]
    notes = []
    if alone:
        notes.append(f"{alone} conditions of B are not in A")
    for name in ("max_tokens", "ignore_eos", "is_chat", "prompts", "requests_per_slot"):
        ours, theirs = getattr(left.settings, name), getattr(right.settings, name)
        if ours != theirs:
            notes.append(f"settings differ in {name}: {ours} against {theirs}")
    if left.subject != right.subject:
        notes.append("the runs measured different subjects or speculative configurations")
    differences = environment_differences(left.environment, right.environment)
    return RunComparison(tuple(cells), tuple(differences), tuple(notes))


def _cell(
    left: RunRecord, right: RunRecord, other: int, index: int, arm: str, error: float
) -> CellComparison | None:
    sides = (
        by_round(left.measurements, other, arm),
        by_round(right.measurements, index, arm),
    )
    condition = right.settings.conditions[index]
    paces = [
        {
            number: value
            for number, each in side.items()
            if (value := figure("tokens_per_s", each, condition))
        }
        for side in sides
    ]
    if not paces[0] or not paces[1]:
        return None
    pairs = [
        number
        for number in paces[0]
        if number in paces[1] and sides[0][number].prompts_digest == sides[1][number].prompts_digest
    ]
    is_paired = len(pairs) >= _PAIRS
    speedups = [
        ratios(run.settings, run.measurements, place, arm)
        for run, place in ((left, other), (right, index))
    ]
    if is_paired:
        pace = estimate([paces[1][number] / paces[0][number] for number in pairs], error)
    else:
        pace = shift_estimate(list(paces[0].values()), list(paces[1].values()), error)
    return CellComparison(
        condition, arm, pace, shift_estimate(speedups[0], speedups[1], error), is_paired
    )


def shift_estimate(left: Sequence[float], right: Sequence[float], error: float) -> Estimate:
    """Return by what factor one sample is above another.

    Parameters
    ----------
    left, right : sequence of float
        Positive figures.
    error : float
        Largest probability that the interval misses, in (0, 1).

    Returns
    -------
    Estimate
        Without ends where the samples are too small; ``n`` counts the right sample.
    """
    n, m = len(left), len(right)
    if not n or not m:
        return Estimate(None, None, None, m)
    logs = [[math.log(value) for value in side] for side in (left, right)]
    shifts = sorted(b - a for a in logs[0] for b in logs[1])
    middle = math.exp(statistics.median(shifts))
    rank = _mann_whitney_rank(n, m, error)
    if not rank:
        return Estimate(middle, None, None, m)
    return Estimate(middle, math.exp(shifts[rank - 1]), math.exp(shifts[-rank]), m)


def _mann_whitney_rank(n: int, m: int, error: float) -> int:
    """Return the largest k with P(U < k) within half the error; 0 for none.

    The counts of orders by U follow the recurrence of Mann and Whitney (1947): one that
    ends with a figure of the right sample has the n left ones below it.
    """
    counts = [[1] for _ in range(n + 1)]
    for j in range(1, m + 1):
        rows = [[1]]
        for i in range(1, n + 1):
            ends_left, ends_right = rows[i - 1], counts[i]
            row = [0] * (i * j + 1)
            for u, count in enumerate(ends_left):
                row[u] += count
            for u, count in enumerate(ends_right):
                row[u + i] += count
            rows.append(row)
        counts = rows
    total = math.comb(n + m, n)
    below, rank = 0, 0
    for u, count in enumerate(counts[n]):
        below += count
        if 2 * below > error * total or u >= n * m // 2:
            break
        rank = u + 1
    return rank
