"""Verdicts of the other kinds of audit in words."""

from __future__ import annotations

import math

from draftproof.audit.greedy import GreedyEvidence, GreedyVerdict
from draftproof.audit.matrix import MatrixVerdict
from draftproof.audit.matrix_evidence import MatrixEvidence
from draftproof.audit.sequential import SequentialEvidence, SequentialVerdict
from draftproof.audit.state import StateEvidence, StateVerdict
from draftproof.audit.stream import StreamEvidence, StreamVerdict
from draftproof.audit.subjects.report import (
    Fact,
    diagnosis_facts,
    independence_text,
    independent_draws_text,
    node_facts,
    offset_facts,
    speculation_text,
    verdict_fact,
)
from draftproof.evidence.trend import LevelTest

__all__ = [
    "facts_of_greedy",
    "facts_of_matrix",
    "facts_of_sequential",
    "facts_of_state",
    "facts_of_stream",
]

#: Looks that are listed.
_SHOWN_LOOKS = 6
_NEVER = "an exact decoder is called biased with probability {:g}, over the whole run"


def _odds(log_e: float) -> str:
    return f"{math.exp(min(log_e, 700.0)):.3g}"


def facts_of_sequential(evidence: SequentialEvidence, verdict: SequentialVerdict) -> list[Fact]:
    """Return what a sequential audit says, most important first.

    Parameters
    ----------
    evidence : SequentialEvidence
        What was counted.
    verdict : SequentialVerdict
        Its verdict.

    Returns
    -------
    list of (str, str)
        Labels and sentences.
    """
    final = evidence.final
    last = verdict.looks[-1][0]
    stopped = "at the alarm" if verdict.alarmed_at is not None else "at the budget"
    shown = ", ".join(f"{_odds(e)} at {n}" for n, e in verdict.looks[-_SHOWN_LOOKS:])
    facts = [
        verdict_fact(verdict.verdict, verdict.reason),
        ("subject", evidence.subject),
        (
            "evidence",
            f"{last} draws in {len(verdict.looks)} looks, stopped {stopped} "
            f"({evidence.budget} draws of each of {len(final.prompts)} prompts)",
        ),
        ("odds", f"against exactness, the last looks: {shown} draws"),
        ("false alarms", _NEVER.format(verdict.alpha)),
        (
            "sensitivity",
            f"a bias of TV >= {verdict.smallest_shared:.3g} would have been seen with "
            f"probability {final.plan.power:g}",
        ),
        ("independence", independence_text(final, verdict.smallest_repeat)),
    ]
    for prompt, estimate in zip(final.prompts, verdict.estimates, strict=True):
        bias = f"TV {estimate.value:.4g} in [{estimate.low:.4g}, {estimate.high:.4g}]"
        facts.append(("bias", f"{prompt.name!r}: {bias}"))
    facts.append(("speculation", speculation_text(verdict.acceptance, final.prompts)))
    facts += [("finding", finding) for finding in verdict.findings]
    worst = max(range(len(final.prompts)), key=lambda i: verdict.estimates[i].value)
    name = final.prompts[worst].name
    facts += node_facts(name, verdict.worst_nodes) + offset_facts(name, verdict.offsets)
    facts += diagnosis_facts(verdict.diagnosis, is_biased=verdict.verdict == "biased")
    return facts + sorted(final.notes.items())


def facts_of_stream(evidence: StreamEvidence, verdict: StreamVerdict) -> list[Fact]:
    """Return what the audit of texts says, most important first.

    Parameters
    ----------
    evidence : StreamEvidence
        What was measured.
    verdict : StreamVerdict
        Its verdict.

    Returns
    -------
    list of (str, str)
        Labels and sentences.
    """
    power = evidence.plan.power
    seen = "no tilt towards the drafter would have been seen"
    if math.isfinite(verdict.smallest_share):
        seen = (
            f"a decoder that takes the drafter's token in {verdict.smallest_share:.3g} of the "
            f"places where it has one (TV {verdict.smallest_tv:.3g} per token there) would have "
            f"been seen with probability {power:g}"
        )
    facts = [
        verdict_fact(verdict.verdict, verdict.reason),
        ("subject", evidence.subject),
        (
            "evidence",
            f"{verdict.num_tokens} tokens in {len(evidence.looks)} texts, the drafter has a law "
            f"at {evidence.num_with_law} of them; highest odds against exactness "
            f"{_odds(verdict.log_peak)}",
        ),
        ("false alarms", _NEVER.format(verdict.alpha)),
        ("sensitivity", seen),
        (
            "rounding",
            f"a bias up to TV {evidence.bets.tolerance:.3g} per token raises no alarm",
        ),
        ("speculation", _drafts_text(evidence)),
    ]
    if verdict.strongest:
        facts.append(("finding", f"the bet that won most: {verdict.strongest}"))
    return facts + sorted(evidence.notes.items())


def _drafts_text(evidence: StreamEvidence) -> str:
    text = f"{evidence.accepted} of {evidence.drafted} drafts accepted"
    if len(evidence.drafts) > 1:
        each = (f"{p.prompt!r} {p.accepted} of {p.drafted}" for p in evidence.drafts)
        text += f"; after {', '.join(each)}"
    return text


def facts_of_greedy(evidence: GreedyEvidence, verdict: GreedyVerdict) -> list[Fact]:
    """Return what the audit of greedy texts says, most important first.

    Parameters
    ----------
    evidence : GreedyEvidence
        What was measured.
    verdict : GreedyVerdict
        Its verdict.

    Returns
    -------
    list of (str, str)
        Labels and sentences.
    """
    drafted = sum(text.drafted for text in evidence.texts)
    facts = [
        verdict_fact(verdict.verdict, verdict.reason),
        ("subject", evidence.subject),
        (
            "evidence",
            f"{verdict.num_places} tokens of {len(evidence.texts)} texts, each against a fresh "
            f"prefill; {drafted} drafts",
        ),
        (
            "rounding",
            f"differences of logits move by up to {verdict.noise:.3g} with the shape of a pass; "
            f"{evidence.margin:g} times that is taken for rounding",
        ),
        (
            "sensitivity",
            f"a wrong runner-up shows at {1 - verdict.blind:.1%} of the places; nothing is drawn, "
            "so there is no false-alarm rate",
        ),
    ]
    facts += [("finding", finding) for finding in verdict.findings]
    for fork in verdict.forks:
        word = "near-tie" if fork.is_near_tie else "defect"
        facts.append(
            (
                "fork",
                f"{word}: {fork.prompt!r} with {fork.kappa} drafts, token {fork.place}: "
                f"{fork.tokens[1]} in place of {fork.tokens[0]}, gap {fork.gap:.3g}, rounding "
                f"there {fork.noise:.3g}",
            )
        )
    for prompt, kappa, place, gap in verdict.defects:
        text = f"{prompt!r} with {kappa} drafts, token {place}: {gap:.3g} below the best logit"
        facts.append(("defect", text))
    return facts + sorted(evidence.notes.items())


def facts_of_state(evidence: StateEvidence, verdict: StateVerdict) -> list[Fact]:
    """Return what the audit of state says, most important first.

    Parameters
    ----------
    evidence : StateEvidence
        What was compared.
    verdict : StateVerdict
        Its verdict.

    Returns
    -------
    list of (str, str)
        Labels and sentences.
    """
    taken = sum(each.drafts - each.kept for each in evidence.rollbacks)
    facts = [
        verdict_fact(verdict.verdict, verdict.reason),
        ("subject", evidence.subject),
        (
            "target",
            f"{len(evidence.rollbacks)} passes, {taken} drafts taken back; logits off by up to "
            f"{verdict.largest_gap:.3g}, without a rollback by {verdict.noise:.3g}, "
            f"{verdict.tolerance:.3g} is taken for rounding; the logits of a row have a spread of "
            f"{verdict.spread:.3g}, and {evidence.most_rounding:g} of it may be rounding",
        ),
    ]
    for each in evidence.drafters:
        facts.append(
            (
                "drafter",
                f"{each.drafter} after {each.silent} silent rounds: TV {each.distance:.3g} from a "
                f"fresh request, {evidence.drafter_tolerance:g} is taken for rounding",
            )
        )
    if verdict.decay is not None:
        decay = verdict.decay
        seen = "too few rounds to see any loss"
        if math.isfinite(decay.smallest_decay):
            seen = (
                f"a loss of {decay.smallest_decay:.3g} kept drafts per round at the end would "
                f"have been seen with probability {evidence.power:g}"
            )
        facts.append(
            (
                "acceptance",
                f"{decay.num_rounds} rounds, p = {decay.p_value:.3g} for a decay; {seen}",
            )
        )
    if verdict.level is not None:
        facts.append(("promise", _promise_text(evidence, verdict.level)))
        facts.append(
            ("false alarms", f"{verdict.alpha:g} over the tests of acceptance; caches have none")
        )
    facts += [("finding", finding) for finding in verdict.findings]
    return facts + sorted(evidence.notes.items())


def _promise_text(evidence: StateEvidence, level: LevelTest) -> str:
    seen = "too few rounds to see any departure"
    if math.isfinite(level.smallest):
        seen = (
            f"a departure of {level.smallest:.3g} would have been seen with probability "
            f"{evidence.power:g}"
        )
    return (
        f"{level.kept:.3g} first drafts kept per round, {level.promised:.3g} promised by a fresh "
        f"target and drafter (p = {level.p_slow:.3g} for too few, {level.p_fast:.3g} for too "
        f"many; {evidence.drafter_tolerance:g} is taken for rounding); {seen}"
    )


def facts_of_matrix(evidence: MatrixEvidence, verdict: MatrixVerdict) -> list[Fact]:
    """Return what the audit of parameters says, most important first.

    Parameters
    ----------
    evidence : MatrixEvidence
        What was drawn.
    verdict : MatrixVerdict
        Its verdict.

    Returns
    -------
    list of (str, str)
        Labels and sentences; one for each cell.
    """
    draws = sum(times for cell in evidence.cells for _, times in cell.draws)
    facts = [
        verdict_fact(verdict.verdict, verdict.reason),
        ("subject", evidence.subject),
        ("evidence", f"{draws} draws in {len(verdict.cells)} cells"),
        (
            "false alarms",
            "a decoder that honours or refuses everything is called biased with probability "
            f"{verdict.alpha:g}, over the whole matrix",
        ),
    ]
    if verdict.smallest_repeat is not None:
        counted = [sum(n for _, n in cell.draws) for cell in evidence.cells if cell.order]
        kept = [len(cell.order) for cell in evidence.cells if cell.order]
        rates = (verdict.alpha, evidence.plan.power)
        text = independent_draws_text(kept, counted, verdict.smallest_repeat, rates)
        facts.append(("independence", text))
    width = max(len(cell.asked) for cell in verdict.cells)
    for cell in verdict.cells:
        facts.append(("cell", f"{cell.asked:<{width}}  {cell.status}: {cell.detail}"))
    return facts + sorted(evidence.notes.items())
