"""Whether an audit of speculation saw speculation: in how many draws, at every prompt.

A decoder that drafted in one draw of a thousand is tested like one that never drafts: a
fault of its drafting rounds would move its law by a thousandth of what it is.
"""

from __future__ import annotations

from draftproof.audit.acceptance import AcceptanceAudit
from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.evidence_file import Evidence, PromptEvidence

__all__ = ["LEAST_SHARE", "certain_draws", "drafting_share", "silent_prompts", "unshown"]

#: Least share of the draws of every prompt in which drafts must be known to have been made
#: before a decoder that is said to speculate is called exact.
LEAST_SHARE = 0.1


def drafting_share(prompt: PromptEvidence) -> float | None:
    """Return the share of draws that are known to have had a drafting round.

    Parameters
    ----------
    prompt : PromptEvidence
        Logs and counts.

    Returns
    -------
    float or None
        In [0, 1]. Where the subject does not say in how many draws it drafted, a lower bound:
        see `certain_draws`. None where nothing is told.
    """
    totals = prompt.totals
    if totals is None or totals.draws is None:
        if prompt.rounds is not None:
            drafting = sum(1 for drafted in prompt.rounds.drafted if drafted)
            drafted, accepted = sum(prompt.rounds.drafted), sum(prompt.rounds.accepted)
            totals = DraftTotals(accepted, drafted, drafting)
        elif totals is None:
            return None
    certain = certain_draws(totals, prompt.law.horizon)
    return min(1.0, certain / max(1, prompt.counts.num_draws))


def certain_draws(totals: DraftTotals, horizon: int) -> float:
    """Return in how many draws drafts are certain.

    Parameters
    ----------
    totals : DraftTotals
        Sums of the drafts.
    horizon : int
        Tokens of a draw.

    Returns
    -------
    float
        A lower bound where sums do not say which draw a round was of: a draw of T tokens has
        at most T rounds. Without a number of drafting rounds only kept drafts bound the
        draws they were of.
    """
    if totals.draws is not None:
        return totals.draws
    rounds = totals.rounds if totals.drafted else None  # else they may have been plain
    return max(rounds or 0, totals.accepted) / horizon


def silent_prompts(evidence: Evidence, acceptance: AcceptanceAudit | None) -> str:
    """Say where too little was drafted although speculation was to be audited.

    Parameters
    ----------
    evidence : Evidence
        Logs of the prompts.
    acceptance : AcceptanceAudit, optional
        Of all of them.

    Returns
    -------
    str
        Empty where drafts are known in `LEAST_SHARE` of the draws of every prompt, or
        nobody expects them.
    """
    if not evidence.expects_speculation:
        return ""
    logged = all(prompt.rounds is not None for prompt in evidence.prompts)
    if logged and acceptance and not acceptance.num_drafted:
        return "nothing was drafted: plain decoding was audited"
    shares = [(prompt, drafting_share(prompt)) for prompt in evidence.prompts]
    untold = [prompt.name for prompt, share in shares if share is None]
    if untold:
        return (
            f"the subject does not tell whether it drafted after {_named(untold)}; where that is "
            "known, --drafts assumed or --drafts none says it"
        )
    plain = [prompt.name for prompt, _share in shares if not _shows_any(prompt)]
    if plain:
        return f"nothing was drafted after {_named(plain)}"
    rare = [(held, p.name) for p, held in shares if held is not None and held < LEAST_SHARE]
    if not rare:
        return ""
    share, name = min(rare)
    return (
        f"drafts are certain in {share:.3g} of the draws after {name!r}, {LEAST_SHARE:g} is "
        "expected: take prompts after which the drafter has more to say"
    )


def unshown(evidence: Evidence) -> str:
    """Say what the word "exact" leaves open where drafts were not asked to show.

    Parameters
    ----------
    evidence : Evidence
        What was stated about speculation, and what showed.

    Returns
    -------
    str
        The end of a sentence; empty where drafts show.
    """
    shares = map(drafting_share, evidence.prompts)
    if evidence.expects_speculation or all(share and share >= LEAST_SHARE for share in shares):
        return ""
    if evidence.assumes_speculation:
        return "; that it speculated was stated, not shown"
    return "; nothing is said about speculation"


def _shows_any(prompt: PromptEvidence) -> bool:
    if prompt.rounds is not None:
        return any(prompt.rounds.drafted)
    return prompt.totals is not None and prompt.totals.shows_speculation


def _named(names: list[str]) -> str:
    return ", ".join(map(repr, names))
