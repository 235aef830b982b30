"""The verdict on a decoder's parameters: honoured, misapplied, refused, or ignored.

Every sampling parameter is asked for alone and in pairs that engines have got wrong. Each
cell has the law with its parameters, and for each of them the law without it. A cell is
*ignored* where the draws refute the first and not the second; *biased* where they refute
both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.draw_order import dependence_of, reason_of, smallest_repeat
from draftproof.audit.evidence_file import Plan
from draftproof.audit.judged import Judged
from draftproof.audit.matrix_evidence import Cell, MatrixEvidence
from draftproof.audit.shown_drafts import LEAST_SHARE
from draftproof.evidence.calibration import Calibrations
from draftproof.evidence.fixed_budget import fixed_budget_test
from draftproof.evidence.independence import DependenceTest
from draftproof.evidence.joint_law import Counts, JointLaw, Outcome
from draftproof.evidence.power import noncentrality

__all__ = ["CellVerdict", "MatrixVerdict", "distance", "judge_matrix"]

#: Draws that are taken beyond what the chi-squared distance asks for.
_SLACK = 1.25
#: Statuses of cells in the reason of the whole, which says "biased" or "not enough evidence" first.
_WRONG = {"ignored": "ignored", "biased": "another law than asked for"}
_OPEN = {"not enough evidence": "not settled", "indistinct": "indistinct"}


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """What was found in one cell.

    Parameters
    ----------
    label : str
        Name of the cell.
    asked : str
        Values of its parameters.
    status : str
        ``"exact"``, ``"biased"``, ``"ignored"``, ``"refused"``, ``"indistinct"`` where
        no parameter changes the law by as much as would have been seen, or ``"not enough
        evidence"``.
    detail : str
        One sentence.
    p_value : float
        Of the law with the parameters; NaN where nothing was drawn.
    smallest : float
        The bias that would have been seen with the planned power.
    separation : tuple of float
        For each parameter the total variation between the laws with and without it.
    """

    label: str
    asked: str
    status: str
    detail: str
    p_value: float
    smallest: float
    separation: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MatrixVerdict(Judged):
    """What the audit of parameters found.

    Parameters
    ----------
    verdict : str
        ``"biased"`` where a cell is biased or ignored; ``"exact"`` where every cell is
        exact or refused, and one at least is exact; else ``"not enough evidence"``.
    reason : str
        One sentence.
    alpha : float
        Chance that a decoder which honours or refuses everything is called biased.
    cells : tuple of CellVerdict
        Cell by cell.
    dependence : tuple of DependenceTest, optional
        Whether draws were independent, where their order is known.
    smallest_repeat : float, optional
        The share of draws that repeat the one some requests before which would have been
        seen with the planned power in every cell.
    """

    verdict: str
    reason: str
    alpha: float
    cells: tuple[CellVerdict, ...]
    dependence: tuple[DependenceTest, ...] | None = None
    smallest_repeat: float | None = None


def judge_matrix(evidence: MatrixEvidence) -> MatrixVerdict:
    """Compute a verdict; a pure function of the evidence.

    Parameters
    ----------
    evidence : MatrixEvidence
        Laws, draws and plan.

    Returns
    -------
    MatrixVerdict
        Every cell is tested at the planned false-alarm rate over the number of cells.
    """
    plan = evidence.plan
    drawn = [cell for cell in evidence.cells if not cell.refusal]
    level = plan.alpha / max(1, len(drawn))
    calibrations = Calibrations(plan.calibration_samples, plan.seed)
    ordered = [(cell, cell.order) for cell in evidence.cells if cell.order is not None]
    dependence = dependence_of([(f"draws of {cell.label}", order) for cell, order in ordered])
    width = len(dependence) // max(1, len(ordered))
    dependent = {
        cell.label: reason_of(dependence[index * width : (index + 1) * width], plan.alpha)
        for index, (cell, _) in enumerate(ordered)
    }
    cells = tuple(
        _judge_cell(
            cell,
            plan,
            level,
            calibrations,
            must_draft=evidence.expects_speculation,
            dependent=dependent.get(cell.label, ""),
        )
        for cell in evidence.cells
    )
    by_status: dict[str, list[str]] = {}
    for cell in cells:
        by_status.setdefault(cell.status, []).append(cell.label)
    verdict, reason = _decide(by_status)
    if not ordered:
        return MatrixVerdict(verdict, reason, plan.alpha, cells)
    if verdict == "not enough evidence":
        reason = reason_of(dependence, plan.alpha) or reason
    samples = [(_shares(cell), order) for cell, order in ordered]
    repeat = smallest_repeat(samples, len(dependence), plan.alpha, plan.power)
    return MatrixVerdict(verdict, reason, plan.alpha, cells, dependence, repeat)


def _shares(cell: Cell) -> NDArray[np.float64]:
    times = np.array([times for _, times in cell.draws], dtype=np.float64)
    shares: NDArray[np.float64] = times / times.sum()
    return shares


def _decide(by_status: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    def named(status: str) -> str:
        return ", ".join(by_status.get(status, ()))

    wrong = [f"{word}: {named(status)}" for status, word in _WRONG.items() if named(status)]
    if wrong:
        return "biased", "; ".join(wrong)
    open_cells = [f"{word}: {named(status)}" for status, word in _OPEN.items() if named(status)]
    if open_cells or not named("exact"):
        return "not enough evidence", "; ".join(open_cells) or "every parameter was refused"
    refused = f", refused: {named('refused')}" if named("refused") else ""
    return "exact", f"{len(by_status['exact'])} cells are exact{refused}"


def _too_few_drafts(drafts: DraftTotals | None, num_draws: int) -> str:
    """Say why a cell is no audit of speculation; empty where it is, or may be."""
    if drafts is None:
        return "drafts are not told of"
    if not drafts.shows_speculation:
        return "nothing was drafted"
    if drafts.draws is None or drafts.draws >= LEAST_SHARE * num_draws:
        return ""
    return (
        f"drafts are certain in {drafts.draws / num_draws:.3g} of the draws, {LEAST_SHARE:g} is "
        "expected"
    )


def _judge_cell(
    cell: Cell,
    plan: Plan,
    level: float,
    calibrations: Calibrations,
    *,
    must_draft: bool,
    dependent: str,
) -> CellVerdict:
    separation = tuple(distance(cell.law, law) for law in cell.without)

    def found(status: str, detail: str, p: float, smallest: float) -> CellVerdict:
        return CellVerdict(cell.label, cell.asked, status, detail, p, smallest, separation)

    if cell.refusal:
        return found("refused", cell.refusal, math.nan, math.nan)
    num = cell.num_draws
    if not num:
        return found("not enough evidence", "nothing was drawn", math.nan, math.inf)
    smallest = _smallest(cell.law, num, level, plan.power)
    p = _p_value(cell.law, cell.draws, level, calibrations)
    # A draw that the law cannot give refutes it, whatever the others know of each other.
    if dependent and p > 0:
        return found("not enough evidence", dependent, p, smallest)
    if p <= level:
        ignored = [
            name
            for name, law in zip(cell.names, cell.without, strict=True)
            if _p_value(law, cell.draws, level, calibrations) > level
        ]
        if ignored:
            names = " and of ".join(ignored)
            return found("ignored", f"the draws have the law without {names}", p, smallest)
        return found("biased", f"p = {p:.2g}, at most {level:.2g} was allowed", p, smallest)
    if must_draft and (few := _too_few_drafts(cell.drafts, num)):
        return found("not enough evidence", few, p, smallest)
    if smallest > plan.tv:
        detail = f"only TV {smallest:.3g} would have been seen, {plan.tv:g} was asked for"
        return found("not enough evidence", detail, p, smallest)
    blurred = [name for name, size in zip(cell.names, separation, strict=True) if size < smallest]
    if len(blurred) == len(cell.names):
        detail = f"{' and '.join(blurred)}: the laws with and without differ by too little"
        return found("indistinct", detail, p, smallest)
    detail = f"p = {p:.2g}; TV {smallest:.3g} would have been seen"
    if blurred:
        detail += f", whether {blurred[0]} is ignored in this company would not"
    if must_draft and cell.drafts is not None and cell.drafts.draws is None:
        detail += "; in how many draws it drafted is not told"
    return found("exact", detail, p, smallest)


def _p_value(
    law: JointLaw,
    draws: Sequence[tuple[Outcome, int]],
    level: float,
    calibrations: Calibrations,
) -> float:
    """Return the p-value of a law; 0 after an outcome that it cannot give."""
    cells = np.zeros(len(law), dtype=np.int64)
    stray = 0
    for raw, times in draws:
        outcome = law.cut(raw)
        slot = law.slot(outcome) if law.is_whole(outcome) else None
        if slot is None:
            stray += times
        else:
            cells[slot] += times
    counts = Counts(cells, {(): stray} if stray else {})
    return fixed_budget_test(law, counts, calibrations, refine_below=level).p_value


def _smallest(law: JointLaw, num: int, level: float, power: float) -> float:
    """Return the half-mass shift that is seen, from its chi-squared distance."""
    if len(law) < 2:
        # Any other outcome is an alarm, but it has to come: one of mass t is missed by
        # all draws with probability (1 - t) ** num.
        return 1.0 - math.pow(1.0 - power, 1.0 / num)
    far = noncentrality(len(law) - 1, level, power)
    return math.sqrt(_SLACK * far / (4 * num))


def distance(left: JointLaw, right: JointLaw) -> float:
    """Return the total variation distance of two laws.

    Parameters
    ----------
    left, right : JointLaw
        Laws; an outcome that one cuts earlier than the other is another outcome.

    Returns
    -------
    float
        In [0, 1].
    """
    shared: float = sum(
        min(prob, right.prob(outcome))
        for outcome, prob in zip(left.outcomes, left.probs.tolist(), strict=True)
    )
    return max(0.0, 1.0 - shared)
