"""A verdict in words: the same facts for a terminal and for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence

from draftproof.audit.acceptance import AcceptanceAudit
from draftproof.audit.diagnose import Diagnosis
from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.evidence_file import Evidence, PromptEvidence
from draftproof.audit.subjects.on_off import OnOffEvidence, OnOffVerdict
from draftproof.audit.verdict import Verdict
from draftproof.evidence.lags import LAGS
from draftproof.evidence.localise import NodeTest, OffsetTest

__all__ = [
    "Fact",
    "diagnosis_facts",
    "facts_of",
    "facts_of_on_off",
    "independence_text",
    "independent_draws_text",
    "node_facts",
    "offset_facts",
    "speculation_text",
    "verdict_fact",
]

#: What it is, and what was found.
Fact = tuple[str, str]
#: Prompts whose estimates are listed.
_SHOWN_PROMPTS = 20


def facts_of(evidence: Evidence, verdict: Verdict) -> list[Fact]:
    """Return what a verdict says, most important first.

    Parameters
    ----------
    evidence : Evidence
        What was counted.
    verdict : Verdict
        Its verdict.

    Returns
    -------
    list of (str, str)
        Labels and sentences; the labels may repeat.
    """
    plan = evidence.plan
    draws = sum(prompt.counts.num_draws for prompt in evidence.prompts)
    outcomes = sum(len(prompt.law) for prompt in evidence.prompts)
    facts = [
        verdict_fact(verdict.verdict, verdict.reason),
        ("subject", evidence.subject),
        ("evidence", f"{draws} draws, prompts: {len(evidence.prompts)}, {outcomes} outcomes"),
        ("false alarms", f"an exact decoder is called biased with probability {verdict.alpha:g}"),
        ("sensitivity", _sensitivity(evidence, verdict)),
        ("independence", independence_text(evidence, verdict.smallest_repeat)),
    ]
    pairs = list(zip(evidence.prompts, verdict.estimates, verdict.tests, strict=True))
    for prompt, estimate, test in pairs[:_SHOWN_PROMPTS]:
        bias = f"TV {estimate.value:.4g} in [{estimate.low:.4g}, {estimate.high:.4g}]"
        stray = f", {test.num_impossible} impossible draws" if test.num_impossible else ""
        at = f"{estimate.confidence:.0%} interval, p = {test.p_value:.3g}{stray}"
        facts.append(("bias", f"{prompt.name!r}: {bias} ({at})"))
    if len(pairs) > _SHOWN_PROMPTS:
        facts.append(("bias", f"and {len(pairs) - _SHOWN_PROMPTS} prompts more, see the JSON"))
    facts.append(("speculation", speculation_text(verdict.acceptance, evidence.prompts)))
    facts += [("finding", finding) for finding in verdict.findings]
    worst = evidence.prompts[verdict.combined.worst].name
    facts += node_facts(worst, verdict.worst_nodes) + offset_facts(worst, verdict.offsets)
    facts += diagnosis_facts(verdict.diagnosis, is_biased=verdict.verdict == "biased")
    facts.append(("plan", f"TV {plan.tv:g} to be seen with probability {plan.power:g}"))
    facts += [(name, text) for name, text in sorted(evidence.notes.items())]
    return facts


def verdict_fact(verdict: str, reason: str) -> Fact:
    """Return a verdict with its reason; a reason that says it already stands alone.

    Parameters
    ----------
    verdict : str
        The verdict.
    reason : str
        One sentence.

    Returns
    -------
    (str, str)
        Label and sentence.
    """
    return "verdict", reason if reason.startswith(f"{verdict} ") else f"{verdict}: {reason}"


def _sensitivity(evidence: Evidence, verdict: Verdict) -> str:
    power = evidence.plan.power
    text = (
        f"a bias of TV >= {verdict.smallest_shared:.3g} would have been seen with "
        f"probability {power:g}"
    )
    if len(evidence.prompts) > 1:
        text += f" on all prompts, of TV >= {verdict.smallest_single:.3g} on one alone"
    return text


def independence_text(evidence: Evidence, smallest_repeat: float | None) -> str:
    """Say what of the order of the draws was looked at.

    Parameters
    ----------
    evidence : Evidence
        What was counted.
    smallest_repeat : float, optional
        That of the verdict.

    Returns
    -------
    str
        A sentence.
    """
    plan = evidence.plan
    if smallest_repeat is None:
        known = any(prompt.serial is not None for prompt in evidence.prompts)
        return "of neighbours in the first draws" if known else "the order of draws is not known"
    return independent_draws_text(
        [len(p.order) for p in evidence.prompts if p.order is not None],
        [p.counts.num_draws for p in evidence.prompts if p.order is not None],
        smallest_repeat,
        (plan.alpha, plan.power),
    )


def independent_draws_text(
    kept: Sequence[int], drawn: Sequence[int], smallest: float, rates: tuple[float, float]
) -> str:
    """Say what tests of the order would have seen, and how often they are wrong.

    Parameters
    ----------
    kept, drawn : sequence of int
        Draws of each sample whose order is kept, and all of them.
    smallest : float
        Share of repeated draws that would have been seen.
    rates : (float, float)
        Level and power.

    Returns
    -------
    str
        A sentence.
    """
    whole = "all draws" if kept == drawn else f"the first {max(kept)} draws of a sample"
    alpha, power = rates
    seen = "no share of repeated draws would have been seen"
    if smallest < 1:
        seen = (
            f"a share of {smallest:.3g} of draws that repeat the one some requests before would "
            f"have been seen with probability {power:g}"
        )
    return (
        f"order of {whole}: lags up to {LAGS[-1]}, stretches given twice; {seen}; independent "
        f"draws are called dependent with probability {alpha:g}"
    )


def speculation_text(acceptance: AcceptanceAudit | None, prompts: Sequence[PromptEvidence]) -> str:
    """Say how much was drafted and kept.

    Parameters
    ----------
    acceptance : AcceptanceAudit, optional
        Of all rounds.
    prompts : sequence of PromptEvidence
        Where they come from.

    Returns
    -------
    str
        A sentence.
    """
    if acceptance is None and all(prompt.totals is not None for prompt in prompts):
        return _of_totals(sum((p.totals for p in prompts if p.totals), DraftTotals(0, 0, 0)))
    if acceptance is None:
        return "the subject does not report its rounds; whether it speculated is not known"
    if not acceptance.num_drafted:
        return f"none in {acceptance.num_rounds} rounds"
    accepted = sum(sum(p.rounds.accepted) for p in prompts if p.rounds is not None)
    text = (
        f"{accepted} of {acceptance.num_drafted} drafts accepted in "
        f"{acceptance.num_drafting_rounds} drafting rounds, "
        f"{acceptance.tokens_per_pass:.3f} tokens per drafting pass"
    )
    if not math.isnan(acceptance.promised):
        text += (
            f"; {acceptance.accepted_per_round:.3f} kept per round, the rule promises "
            f"{acceptance.promised:.3f}"
        )
    if not math.isnan(acceptance.ceiling):
        text += f", the most of any exact rule is {acceptance.ceiling:.3f}"
    return text


def _of_totals(totals: DraftTotals) -> str:
    if totals.drafted == 0:
        return "none"
    drafted = "" if totals.drafted is None else f" of {totals.drafted}"
    text = f"{totals.accepted}{drafted} drafts accepted"
    if totals.rounds is not None:
        text += f" in {totals.rounds} rounds"
    return f"{text}, in sums; the subject does not report its rounds"


def node_facts(worst: str, nodes: Sequence[NodeTest]) -> list[Fact]:
    """Say where a law is wrong.

    Parameters
    ----------
    worst : str
        Name of the prompt.
    nodes : sequence of NodeTest
        Prefixes, the strongest evidence first.

    Returns
    -------
    list of (str, str)
        One for each prefix.
    """
    facts = []
    for node in nodes:
        tokens = sorted(
            node.expected, key=lambda t: -abs(node.observed.get(t, 0) - node.expected[t])
        )
        seen = ", ".join(
            f"token {t} seen {node.observed.get(t, 0.0):.4f}, expected {node.expected[t]:.4f}"
            for t in tokens[:3]
        )
        stray = [t for t in node.observed if t not in node.expected]
        if stray:
            seen += f"; impossible tokens {stray[:5]}"
        facts.append(
            (
                "where",
                f"{worst!r} after {list(node.prefix)}: {seen} "
                f"(adjusted p = {node.adjusted:.2g}, {node.num_draws} draws)",
            )
        )
    return facts


def offset_facts(worst: str, offsets: Sequence[OffsetTest] | None) -> list[Fact]:
    """Say where in a block a law is wrong.

    Parameters
    ----------
    worst : str
        Name of the prompt.
    offsets : sequence of OffsetTest, optional
        By place; None where nothing is known.

    Returns
    -------
    list of (str, str)
        One, or none.
    """
    if not offsets:
        return []
    places = ", ".join(
        f"{test.offset} kept {test.adjusted:.2g} ({test.num_draws} rounds)" for test in offsets
    )
    return [("where", f"{worst!r}, adjusted p of the token after so many kept drafts: {places}")]


def diagnosis_facts(found: Diagnosis | None, *, is_biased: bool) -> list[Fact]:
    """Say which fault explains a bias.

    Parameters
    ----------
    found : Diagnosis, optional
        The explanation.
    is_biased : bool
        Whether there is anything to explain.

    Returns
    -------
    list of (str, str)
        One, or none.
    """
    if found is None:
        if not is_biased:
            return []
        return [("diagnosis", "not possible: the drafter's law is not known")]
    if found.name == "unlisted":
        text = f"no fault of the catalogue fits; the nearest is {found.best!r}"
    else:
        text = repr(found.name)
        if found.parameter:
            text += f" with {found.parameter} {found.value:.3g}"
    text += f" (fit p = {found.fit_p_value:.2g}"
    if found.runner_up:
        text += f"; next {found.runner_up!r}, log likelihood ratio {found.log_ratio:.3g}"
    text += ")"
    if found.same_law:
        text += f"; the same law here: {', '.join(map(repr, found.same_law))}"
    return [("diagnosis", text)]


def facts_of_on_off(evidence: OnOffEvidence, verdict: OnOffVerdict) -> list[Fact]:
    """Return what a comparison says, most important first.

    Parameters
    ----------
    evidence : OnOffEvidence
        What was counted.
    verdict : OnOffVerdict
        Its verdict.

    Returns
    -------
    list of (str, str)
        Labels and sentences; the labels may repeat.
    """
    facts = [
        verdict_fact(verdict.verdict, verdict.reason),
        ("subject", evidence.subject),
        ("evidence", "speculation on against off; a fault that both share does not show"),
        ("false alarms", f"equal laws are called different with probability {verdict.alpha:g}"),
        (
            "sensitivity",
            f"a difference of TV >= {verdict.smallest:.3g} would have been seen with "
            f"probability {evidence.plan.power:g}",
        ),
    ]
    if verdict.smallest_repeat is not None:
        orders = [(p.order_on, p.on) for p in evidence.prompts]
        orders += [(p.order_off, p.off) for p in evidence.prompts]
        known = [(len(order), sum(counts)) for order, counts in orders if order is not None]
        kept, drawn = ([row[side] for row in known] for side in (0, 1))
        rates = (verdict.alpha, evidence.plan.power)
        text = independent_draws_text(kept, drawn, verdict.smallest_repeat, rates)
        facts.append(("independence", text))
    for prompt, test in zip(evidence.prompts, verdict.tests, strict=True):
        facts.append(
            (
                "difference",
                f"{prompt.name!r}: empirical TV {test.tv:.4g}, p = {test.p_value:.3g}, "
                f"{test.num_first} draws on, {test.num_second} off, {test.num_outcomes} texts",
            )
        )
    told = [prompt.drafts_on for prompt in evidence.prompts]
    text = "a black box does not report its rounds; whether it speculated is not known"
    if all(each is not None for each in told):
        text = _of_totals(sum((each for each in told if each), DraftTotals(0, 0, 0)))
    facts.append(("speculation", text))
    return facts + [(name, text) for name, text in sorted(evidence.notes.items())]
