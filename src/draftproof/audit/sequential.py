"""An audit that may stop at any look: anytime-valid, with its looks on record.

Draws come in growing portions. After each portion the evidence of
`draftproof.evidence.SequentialAudit` is computed; the audit stops where it reaches
1/alpha, or at the budget. By Ville's inequality an exact decoder is called biased with a
probability of at most alpha over the whole run, wherever it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.acceptance import AcceptanceAudit
from draftproof.audit.diagnose import Diagnosis, candidates_of
from draftproof.audit.draw_order import reason_of
from draftproof.audit.evidence_file import Evidence, ModelRows
from draftproof.audit.judged import Judged
from draftproof.audit.shown_drafts import silent_prompts, unshown
from draftproof.audit.verdict import (
    NAMED_NODES,
    dependence_in,
    diagnosis_of,
    findings_of,
    offsets_of,
    overlong_findings,
    pooled_acceptance,
    repeat_seen,
)
from draftproof.errors import ConfigError
from draftproof.evidence.calibration import Calibrations
from draftproof.evidence.estimate import TvEstimate, estimate_tv
from draftproof.evidence.independence import DependenceTest
from draftproof.evidence.joint_law import Counts, JointLaw
from draftproof.evidence.localise import NodeTest, OffsetTest, localise
from draftproof.evidence.sequential import SequentialAudit
from draftproof.evidence.sequential_power import smallest_sequential

__all__ = [
    "SCHEMA",
    "Look",
    "SequentialEvidence",
    "SequentialVerdict",
    "alternatives_of",
    "judge_sequential",
]

#: Name and version of the stored form.
SCHEMA = "draftproof-sequential/1"


@dataclass(frozen=True, slots=True)
class Look:
    """All draws of one prompt up to a look.

    Parameters
    ----------
    cells : tuple of int
        Draws of each possible outcome.
    num_impossible : int
        Draws of impossible ones.
    """

    cells: tuple[int, ...]
    num_impossible: int

    @classmethod
    def of(cls, counts: Counts) -> Look:
        """Return the look that counts give."""
        return cls(tuple(counts.cells.tolist()), counts.num_impossible)


@dataclass(frozen=True, slots=True)
class SequentialEvidence:
    """All of one audit.

    Parameters
    ----------
    final : Evidence
        Laws, counts and logs when the audit stopped.
    budget : int
        Draws of each prompt at which it would have stopped without an alarm.
    looks : tuple of tuple of Look
        For every look the draws of each prompt so far; the last are those of ``final``.
    """

    final: Evidence
    budget: int
    looks: tuple[tuple[Look, ...], ...]

    def __post_init__(self) -> None:
        """Refuse looks that do not lead to the final counts."""
        ends = tuple(Look.of(prompt.counts) for prompt in self.final.prompts)
        if not self.looks or self.looks[-1] != ends:
            raise ConfigError("the last look differs from the final counts: expected the same")
        for before, after in zip(self.looks, self.looks[1:], strict=False):
            for less, more in zip(before, after, strict=True):
                grows = np.subtract(more.cells, less.cells).min() >= 0
                if not grows or less.num_impossible > more.num_impossible:
                    raise ConfigError("counts fall from one look to the next: expected a growth")

    @property
    def subject(self) -> str:
        """The decoder."""
        return self.final.subject

    def to_json(self) -> dict[str, Any]:
        """Return the stored form: plain lists, numbers and strings."""
        looks = [[[list(x.cells), x.num_impossible] for x in look] for look in self.looks]
        return {**self.final.to_json(), "budget": self.budget, "looks": looks}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> SequentialEvidence:
        """Return the evidence of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        SequentialEvidence
            Equal content.

        Raises
        ------
        ConfigError
            If an entry is missing or malformed.
        """
        try:
            looks = tuple(
                tuple(Look(tuple(cells), stray) for cells, stray in look)
                for look in stored["looks"]
            )
            return cls(Evidence.from_json(stored), stored["budget"], looks)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error


@dataclass(frozen=True, slots=True)
class SequentialVerdict(Judged):
    """What an audit found that may stop at any look.

    Parameters
    ----------
    verdict : str
        ``"exact"``, ``"biased"`` or ``"not enough evidence"``.
    reason : str
        One sentence.
    alpha : float
        Chance that an exact decoder is called biased, over the whole run.
    p_value : float
        Anytime-valid: the inverse of the highest evidence.
    looks : tuple of (int, float)
        Draws so far and logarithm of the evidence, at every look.
    alarmed_at : int, optional
        Draws at the first look with the alarm on.
    estimates : tuple of TvEstimate
        Size of the bias of each prompt, with its interval.
    smallest_shared : float
        The smallest bias of all prompts that these draws would have shown with the planned
        power; 1 where none.
    smallest_single : float
        The same of one prompt alone.
    worst_nodes : tuple of NodeTest
        Where a bias was found: where the worst prompt is wrong.
    diagnosis : Diagnosis, optional
        Which fault it is, where a bias was found and the tables are known.
    acceptance : AcceptanceAudit, optional
        Measured acceptance, where rounds were reported.
    dependence : tuple of DependenceTest
        Whether draws were independent.
    findings : tuple of str
        In words.
    offsets : tuple of OffsetTest, optional
        Where in a block the worst prompt is wrong; see `draftproof.audit.verdict.Verdict`.
    smallest_repeat : float, optional
        The share of draws that repeat the one some requests before which would have been
        seen with the planned power; None where the whole order is not known.
    """

    verdict: str
    reason: str
    alpha: float
    p_value: float
    looks: tuple[tuple[int, float], ...]
    alarmed_at: int | None
    estimates: tuple[TvEstimate, ...]
    smallest_shared: float
    smallest_single: float
    worst_nodes: tuple[NodeTest, ...]
    diagnosis: Diagnosis | None
    acceptance: AcceptanceAudit | None
    dependence: tuple[DependenceTest, ...]
    findings: tuple[str, ...]
    offsets: tuple[OffsetTest, ...] | None = None
    smallest_repeat: float | None = None


def alternatives_of(law: JointLaw, model: ModelRows | None) -> NDArray[np.float64] | None:
    """Return the laws of the catalogue's faults over the outcomes of a law.

    Parameters
    ----------
    law : JointLaw
        The reference.
    model : ModelRows, optional
        Target and drafter.

    Returns
    -------
    ndarray of float64, shape (M, K), or None
        None where target and drafter are not known.
    """
    if model is None:
        return None
    found = candidates_of(
        model.tables(law.eos_token_ids),
        law,
        model.kappa,
        max_speculative_rounds=model.max_speculative_rounds,
    )
    rows = [row[:-1] for candidate in found[1:] for row in candidate.laws]
    return np.array(rows) if rows else None


def judge_sequential(evidence: SequentialEvidence) -> SequentialVerdict:
    """Compute a verdict; a pure function of the evidence.

    Parameters
    ----------
    evidence : SequentialEvidence
        Laws, looks, logs and plan.

    Returns
    -------
    SequentialVerdict
        Every statistic again from the counts of the looks.
    """
    final, plan = evidence.final, evidence.final.plan
    prompts = final.prompts
    laws = [prompt.law for prompt in prompts]
    known = [alternatives_of(prompt.law, prompt.model) for prompt in prompts]
    looks, alarmed_at, p_value = _replay(evidence, known)
    acceptance = pooled_acceptance(final)
    dependence = dependence_in(final)
    draws = [prompt.counts.num_draws for prompt in prompts]
    # Where half of the evidence is put on known faults, the other half needs twice as much.
    level = plan.alpha / (1 if all(rows is None for rows in known) else 2)
    shared = smallest_sequential(laws, draws, level, plan.power, seed=plan.seed)
    weakest = max(range(len(laws)), key=lambda i: math.sqrt(len(laws[i])) / max(draws[i], 1))
    single = shared
    if len(laws) > 1:
        # Half of the mean over M prompts is all that one alone can move.
        alone = level / (2 * len(laws))
        single = smallest_sequential(
            [laws[weakest]], [draws[weakest]], alone, plan.power, seed=plan.seed
        )
    estimates = tuple(estimate_tv(p.law, p.counts, seed=plan.seed) for p in prompts)
    nodes: tuple[NodeTest, ...] = ()
    diagnosis = offsets = None
    if alarmed_at is not None:
        calibrations = Calibrations(plan.calibration_samples, plan.seed)
        worst = prompts[max(range(len(prompts)), key=lambda i: estimates[i].value)]
        nodes = tuple(localise(worst.law, worst.counts, calibrations)[:NAMED_NODES])
        diagnosis = diagnosis_of(worst, calibrations)
        offsets = offsets_of(worst, plan)
    dependent = reason_of(dependence, plan.alpha)
    verdict, reason = _decide(evidence, looks, alarmed_at, acceptance, dependent, shared)
    return SequentialVerdict(
        verdict,
        reason,
        plan.alpha,
        p_value,
        looks,
        alarmed_at,
        estimates,
        shared,
        single,
        nodes,
        diagnosis,
        acceptance,
        dependence,
        findings_of(verdict, acceptance, bool(dependent), diagnosis) + overlong_findings(final),
        offsets,
        repeat_seen(final, dependence),
    )


def _replay(
    evidence: SequentialEvidence, known: list[NDArray[np.float64] | None]
) -> tuple[tuple[tuple[int, float], ...], int | None, float]:
    """Return evidence by look, draws at the alarm, and the anytime-valid p-value."""
    final = evidence.final
    audit = SequentialAudit([p.law for p in final.prompts], final.plan.alpha, known)
    looks: list[tuple[int, float]] = []
    alarmed_at = None
    before = tuple(Look((0,) * len(p.law), 0) for p in final.prompts)
    for look in evidence.looks:
        for index, (less, more) in enumerate(zip(before, look, strict=True)):
            stray = more.num_impossible - less.num_impossible
            new = np.subtract(more.cells, less.cells).astype(np.int64)
            audit.add(index, Counts(new, {(): stray} if stray else {}))
        looks.append((audit.num_draws, audit.log_e))
        if alarmed_at is None and audit.is_alarmed:
            alarmed_at = audit.num_draws
        before = look
    return tuple(looks), alarmed_at, audit.p_value


def _decide(
    evidence: SequentialEvidence,
    looks: tuple[tuple[int, float], ...],
    alarmed_at: int | None,
    acceptance: AcceptanceAudit | None,
    dependent: str,
    smallest: float,
) -> tuple[str, str]:
    final, plan = evidence.final, evidence.final.plan
    stray = sum(prompt.counts.num_impossible for prompt in final.prompts)
    if stray:
        return "biased", f"{stray} draws that the reference law cannot give"
    if dependent:
        return "not enough evidence", dependent
    if alarmed_at is not None:
        peak = max(value for _, value in looks)
        return "biased", (
            f"evidence of {math.exp(min(peak, 700.0)):.3g} to 1 within {alarmed_at} draws, less "
            f"than {1 / plan.alpha:g} to 1 was allowed at any time"
        )
    silent = silent_prompts(final, acceptance)
    if silent:
        return "not enough evidence", silent
    if smallest > plan.tv:
        size = f"a bias of TV {smallest:.3g} or more"
        return "not enough evidence", f"only {size} would have been seen, {plan.tv:g} was asked for"
    return "exact", (
        f"no alarm in {looks[-1][0]} draws; a bias of TV {smallest:.3g} would have raised it "
        f"with probability {plan.power:g}{unshown(final)}"
    )
