"""From evidence to a verdict: exact, biased, or not enough evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from draftproof.audit.acceptance import AcceptanceAudit, RoundLog, audit_acceptance, most_accepted
from draftproof.audit.diagnose import Diagnosis, candidates_of, diagnose
from draftproof.audit.draw_order import dependence_of, reason_of, smallest_repeat
from draftproof.audit.evidence_file import Evidence, Plan, PromptEvidence
from draftproof.audit.judged import Judged
from draftproof.audit.placed_rounds import certain_promises
from draftproof.audit.shown_drafts import silent_prompts, unshown
from draftproof.evidence.calibration import Calibrations
from draftproof.evidence.estimate import TvEstimate, estimate_tv
from draftproof.evidence.fixed_budget import (
    CombinedTest,
    FixedBudgetTest,
    combine,
    fixed_budget_test,
)
from draftproof.evidence.independence import DependenceTest, serial_test
from draftproof.evidence.localise import NodeTest, OffsetTest, localise, offset_tests
from draftproof.evidence.power import Power, power_of_fixture, smallest_detectable

__all__ = [
    "NAMED_NODES",
    "Verdict",
    "dependence_in",
    "diagnosis_of",
    "findings_of",
    "judge",
    "offsets_of",
    "overlong_findings",
    "pooled_acceptance",
    "repeat_seen",
]

#: Prefixes that a verdict names.
NAMED_NODES = 5


@dataclass(frozen=True, slots=True)
class Verdict(Judged):
    """What an audit found.

    Parameters
    ----------
    verdict : str
        ``"exact"``: no bias was seen, one of the planned size would have been, and drafts
        showed in `draftproof.audit.shown_drafts.LEAST_SHARE` of the draws, unless it was
        stated that they need not. ``"biased"``: the law is refuted.
        ``"not enough evidence"``: neither.
    reason : str
        One sentence.
    alpha : float
        Chance that a decoder that is exact is called biased.
    p_value : float
        Of all prompts together; 0 after an impossible outcome.
    combined : CombinedTest
        How prompts were combined.
    tests : tuple of FixedBudgetTest
        Each prompt alone.
    estimates : tuple of TvEstimate
        Size of the bias of each prompt, with its interval.
    power : Power
        What a bias of the planned size in all prompts would have done.
    smallest_shared : float
        The smallest bias that would have been seen, with the planned power, if all
        prompts had it.
    smallest_single : float
        The same if one prompt alone had it.
    worst_nodes : tuple of NodeTest
        Where a bias was found: where the worst prompt is wrong, the strongest evidence
        first.
    diagnosis : Diagnosis, optional
        Which fault it is, where a bias was found and the tables are known.
    acceptance : AcceptanceAudit, optional
        Measured acceptance, where rounds were reported.
    dependence : tuple of DependenceTest
        Whether draws were independent, where their order is known.
    findings : tuple of str
        In words, most important first.
    offsets : tuple of OffsetTest, optional
        Where a bias was found and the rounds of each draw are known: where in a block the worst
        prompt is wrong.
    smallest_repeat : float, optional
        The share of draws that repeat the one some requests before which would have been
        seen with the planned power; None where the whole order is not known.
    """

    verdict: str
    reason: str
    alpha: float
    p_value: float
    combined: CombinedTest
    tests: tuple[FixedBudgetTest, ...]
    estimates: tuple[TvEstimate, ...]
    power: Power
    smallest_shared: float
    smallest_single: float
    worst_nodes: tuple[NodeTest, ...]
    diagnosis: Diagnosis | None
    acceptance: AcceptanceAudit | None
    dependence: tuple[DependenceTest, ...]
    findings: tuple[str, ...] = field(default=())
    offsets: tuple[OffsetTest, ...] | None = None
    smallest_repeat: float | None = None


def judge(evidence: Evidence) -> Verdict:
    """Compute a verdict; a pure function of the evidence.

    Parameters
    ----------
    evidence : Evidence
        Laws, counts, logs and plan.

    Returns
    -------
    Verdict
        Every statistic again from the counts.
    """
    plan, prompts = evidence.plan, evidence.prompts
    calibrations = Calibrations(plan.calibration_samples, plan.seed)
    fine = plan.alpha / (2 * len(prompts)) if len(prompts) > 1 else 0.0
    tests = tuple(
        fixed_budget_test(p.law, p.counts, calibrations, stream=i, refine_below=fine)
        for i, p in enumerate(prompts)
    )
    combined = combine([test.p_value for test in tests])
    worst = prompts[combined.worst]
    acceptance = pooled_acceptance(evidence)
    dependence = dependence_in(evidence)
    shared, single, power = _sensitivity(evidence, calibrations)
    nodes: tuple[NodeTest, ...] = ()
    diagnosis = offsets = None
    if combined.rejects(plan.alpha):
        nodes = tuple(localise(worst.law, worst.counts, calibrations)[:NAMED_NODES])
        diagnosis = diagnosis_of(worst, calibrations)
        offsets = offsets_of(worst, plan)
    dependent = reason_of(dependence, plan.alpha)
    verdict, reason = _decide(evidence, combined, tests, acceptance, dependent, shared)
    return Verdict(
        verdict,
        reason,
        plan.alpha,
        combined.p_value,
        combined,
        tests,
        tuple(estimate_tv(p.law, p.counts, seed=plan.seed) for p in prompts),
        power,
        shared,
        single,
        nodes,
        diagnosis,
        acceptance,
        dependence,
        findings_of(verdict, acceptance, bool(dependent), diagnosis) + overlong_findings(evidence),
        offsets,
        repeat_seen(evidence, dependence),
    )


def dependence_in(evidence: Evidence) -> tuple[DependenceTest, ...]:
    """Test whether draws of each prompt depend on each other, where their order is known.

    Parameters
    ----------
    evidence : Evidence
        Orders and plan.

    Returns
    -------
    tuple of DependenceTest
        Of whole orders corrected for each other; of the neighbours among the first
        draws, in certificates that hold no more, each alone.
    """
    seed = evidence.plan.seed
    first = [serial_test(p.serial, seed=seed) for p in evidence.prompts if p.serial is not None]
    orders = [(f"draws after {p.name!r}", p.order) for p in evidence.prompts if p.order is not None]
    return (*first, *dependence_of(orders))


def repeat_seen(evidence: Evidence, dependence: tuple[DependenceTest, ...]) -> float | None:
    """Return the share of repeated draws that would have been seen.

    Parameters
    ----------
    evidence : Evidence
        Orders and plan.
    dependence : tuple of DependenceTest
        What was tested.

    Returns
    -------
    float, optional
        None where no whole order is known.
    """
    plan = evidence.plan
    samples = [(p.law.probs, p.order) for p in evidence.prompts if p.order is not None]
    return smallest_repeat(samples, len(dependence), plan.alpha, plan.power)


def _sensitivity(evidence: Evidence, calibrations: Calibrations) -> tuple[float, float, Power]:
    """Return what the audit sees: a shared bias, one of a single prompt, one as planned."""
    plan = evidence.plan
    laws = [prompt.law for prompt in evidence.prompts]
    draws = [prompt.counts.num_draws for prompt in evidence.prompts]
    shared = smallest_detectable(laws, draws, calibrations, plan.alpha, plan.power)
    power = power_of_fixture(laws, draws, plan.tv, calibrations, plan.alpha)
    if len(laws) == 1:
        return shared, shared, power
    # The prompt where a bias is hardest to see: most outcomes for its draws.
    weakest = max(range(len(laws)), key=lambda i: math.sqrt(len(laws[i])) / max(draws[i], 1))
    level = plan.alpha / (2 * len(laws))
    samples = max(plan.calibration_samples, math.ceil(6 / level))
    alone = Calibrations(samples, plan.seed)
    single = smallest_detectable([laws[weakest]], [draws[weakest]], alone, level, plan.power)
    return shared, single, power


def pooled_acceptance(evidence: Evidence) -> AcceptanceAudit | None:
    """Pool the rounds of all prompts, each against the optimum of its own text.

    Parameters
    ----------
    evidence : Evidence
        Logs, laws and plan.

    Returns
    -------
    AcceptanceAudit, optional
        None where no rounds were reported. The optimum is known where target and drafter are
        given, and where all drafts were certain.
    """
    logs = [prompt.rounds for prompt in evidence.prompts if prompt.rounds is not None]
    if not logs:
        return None
    promised: list[float] = []
    ceiling: list[float] = []
    for prompt in evidence.prompts:
        if prompt.rounds is None:
            continue
        certain = None
        if prompt.model is None:
            certain = certain_promises(prompt.law, prompt.rounds, prompt.samples)
        if certain is not None:
            promised += certain
            ceiling += certain
            continue
        expected = {
            kappa: _optima(evidence, prompt, kappa) for kappa in set(prompt.rounds.drafted) if kappa
        }
        for drafted in prompt.rounds.drafted:
            if drafted:
                promised.append(expected[drafted][0])
                ceiling.append(expected[drafted][1])
    pooled = RoundLog(
        tuple(n for log in logs for n in log.drafted),
        tuple(n for log in logs for n in log.accepted),
        tuple(n for log in logs for n in log.emitted),
        tuple(flag for log in logs for flag in log.cut),
    )
    return audit_acceptance(pooled, promised or math.nan, ceiling or math.nan, evidence.plan.alpha)


def _optima(evidence: Evidence, prompt: PromptEvidence, kappa: int) -> tuple[float, float]:
    if prompt.model is None:
        return math.nan, math.nan
    tables = prompt.model.tables(prompt.law.eos_token_ids)
    ceiling = most_accepted(tables, kappa, "block")
    promised = most_accepted(tables, kappa, evidence.rule) if evidence.rule else math.nan
    return promised, ceiling


def diagnosis_of(prompt: PromptEvidence, calibrations: Calibrations) -> Diagnosis | None:
    """Return which fault explains a prompt's counts.

    Parameters
    ----------
    prompt : PromptEvidence
        The prompt.
    calibrations : Calibrations
        The calibrations of the run.

    Returns
    -------
    Diagnosis, optional
        None where target and drafter are not known.
    """
    if prompt.model is None:
        return None
    model = prompt.model
    candidates = candidates_of(
        model.tables(prompt.law.eos_token_ids),
        prompt.law,
        model.kappa,
        max_speculative_rounds=model.max_speculative_rounds,
    )
    return diagnose(prompt.law, prompt.counts, candidates, calibrations)


def offsets_of(prompt: PromptEvidence, plan: Plan) -> tuple[OffsetTest, ...] | None:
    """Return where in a block the law of a prompt is wrong.

    Parameters
    ----------
    prompt : PromptEvidence
        The prompt.
    plan : Plan
        Samples and seed of the calibrations.

    Returns
    -------
    tuple of OffsetTest, optional
        None where the decoder does not say of which draw its rounds were.
    """
    if not prompt.samples:
        return None
    samples = dict(prompt.samples)
    return tuple(
        offset_tests(prompt.law, samples, num_samples=plan.calibration_samples, seed=plan.seed)
    )


def _decide(
    evidence: Evidence,
    combined: CombinedTest,
    tests: tuple[FixedBudgetTest, ...],
    acceptance: AcceptanceAudit | None,
    dependent: str,
    smallest: float,
) -> tuple[str, str]:
    plan = evidence.plan
    impossible = sum(test.num_impossible for test in tests)
    if impossible:
        return "biased", f"{impossible} draws that the reference law cannot give"
    if dependent:
        return "not enough evidence", dependent
    if combined.rejects(plan.alpha):
        return "biased", f"p = {combined.p_value:.2g}, at most {plan.alpha:g} was allowed"
    silent = silent_prompts(evidence, acceptance)
    if silent:
        return "not enough evidence", silent
    if smallest > plan.tv:
        size = f"a bias of TV {smallest:.3g} or more"
        return "not enough evidence", f"only {size} would have been seen, {plan.tv:g} was asked for"
    return "exact", (
        f"p = {combined.p_value:.2g}; a bias of TV {smallest:.3g} would have been seen with "
        f"probability {plan.power:g}{unshown(evidence)}"
    )


def overlong_findings(evidence: Evidence) -> tuple[str, ...]:
    """Return how many draws went on behind their end, in words; nothing where none did."""
    count = sum(prompt.num_overlong for prompt in evidence.prompts)
    if not count:
        return ()
    draws = sum(prompt.counts.num_draws for prompt in evidence.prompts)
    return (
        f"{count} of {draws} draws went on behind an end token or past max_tokens; what was behind "
        "is not counted, the decoder does not stop where it was told to",
    )


def findings_of(
    verdict: str,
    acceptance: AcceptanceAudit | None,
    is_dependent: bool,
    diagnosis: Diagnosis | None,
) -> tuple[str, ...]:
    """Return what is worth telling, in words.

    Parameters
    ----------
    verdict : str
        The verdict.
    acceptance : AcceptanceAudit, optional
        Measured acceptance.
    is_dependent : bool
        Whether draws depend on each other.
    diagnosis : Diagnosis, optional
        The explanation.

    Returns
    -------
    tuple of str
        Most important first.
    """
    found = []
    if is_dependent:
        found.append("draws depend on each other")
    if diagnosis is not None:
        size = (
            "" if math.isnan(diagnosis.value) else f" {diagnosis.parameter} {diagnosis.value:.3g}"
        )
        found.append(f"best explanation: {diagnosis.name}{size}")
    for finding in acceptance.findings if acceptance else ():
        if finding == "slower than the rule" and verdict == "exact":
            finding = "exact but slow"
        elif finding == "faster than any exact rule":
            finding = "fast because biased"
        found.append(finding)
    return tuple(found)
