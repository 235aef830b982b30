"""Ask the drafters, and let nothing unsound past them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from draftproof.core.law import Law
from draftproof.core.protocols import ProposalRequest, Proposer
from draftproof.core.types import Draft, ModelInfo, TreeDraft
from draftproof.engine.patience import Patience
from draftproof.engine.scheduler import RowPlan
from draftproof.errors import InvariantError
from draftproof.verify import AllowLossy

__all__ = ["draft_rows"]


def draft_rows(
    plans: Sequence[RowPlan],
    proposers: Mapping[str, Proposer],
    target: ModelInfo,
    patience: Patience,
) -> None:
    """Fill in the drafts of all rows that may draft.

    A grammar that leaves one way to go on drafts first, at no cost. Then each drafter is
    called once for all of its rows. One that fails drafts nothing in this round, and one
    that goes on failing, or stalls, is not asked for some rounds.

    Parameters
    ----------
    plans : sequence of RowPlan
        Rows of the next pass.
    proposers : mapping of str to Proposer
        Drafters by name.
    target : ModelInfo
        The model that will score the drafts.
    patience : Patience
        Says which drafters are asked, and is told how it went.
    """
    open_rows = [plan for plan in plans if plan.kappa and not _follow_grammar(plan)]
    for name, proposer in proposers.items():
        rows = [plan for plan in open_rows if plan.drafter == name]
        if not rows:
            continue
        note = patience.pause_note(name)
        if not note:
            begin = perf_counter()
            drafts, are_bad = _drafts(name, proposer, rows, target)
            seconds = perf_counter() - begin
            kappa = max(plan.kappa for plan in rows)
            lengths = [(plan.session.request_id, len(plan.session.tokens)) for plan in rows]
            note = patience.drafted(name, seconds, kappa, lengths)
            note = patience.went(name, "failed", is_bad=are_bad) or note
            for plan, draft in zip(rows, drafts, strict=True):
                plan.draft = draft
                plan.session.count_draft(draft)
        if note:
            for plan in rows:
                plan.session.add_note(note)


def _drafts(
    name: str, proposer: Proposer, rows: Sequence[RowPlan], target: ModelInfo
) -> tuple[Sequence[Draft | TreeDraft], bool]:
    """Ask one drafter for all of its rows; where the call fails nobody has a draft.

    Also says whether nothing that came back could be used.
    """
    requests = [_proposal_request(plan) for plan in rows]
    try:
        drafts = list(proposer.propose(requests))
        if len(drafts) != len(rows):
            raise InvariantError(f"{len(drafts)} drafts, expected {len(rows)}")
    except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
        return [Draft(proposer=name, note=_failed(name, error))] * len(rows), True
    sound = [_sound(name, draft, plan, target) for draft, plan in zip(drafts, rows, strict=True)]
    # Who is switched off by what it proposed has no drafts left for this round.
    return sound, all(plan.session.kappa == 0 for plan in rows)


def _failed(name: str, error: Exception) -> str:
    return f"drafter {name} failed: {error!r}"


def _follow_grammar(plan: RowPlan) -> bool:
    """Draft the tokens that the grammar itself suggests; False when it has none."""
    constraint = plan.session.constraint
    if constraint is None:
        return False
    tokens = constraint.likely(plan.kappa)
    if not tokens:
        return False
    plan.draft = Draft(tokens, proposer="grammar")
    return True


def _proposal_request(plan: RowPlan) -> ProposalRequest:
    session = plan.session
    return ProposalRequest(
        request_id=session.request_id,
        token_ids=session.tokens,
        kappa=plan.kappa,
        params=session.params,
        history=session.history,
        coins=plan.coins,
        coupled=session.request.rule == "coupled",
        prediction=session.request.prediction,
        tenant=session.request.tenant,
        constraint=session.constraint,
    )


def _sound(
    name: str, draft: Draft | TreeDraft, plan: RowPlan, target: ModelInfo
) -> Draft | TreeDraft:
    """Refuse what no verifier may see; cut a chain that is longer than reserved.

    Cutting to a fixed length never looks at the tokens and so keeps the law. Dropping
    a sampled draft because of its tokens would not, hence a drafter that proposes what
    it cannot have drawn is switched off for the rest of the request. Its other requests
    keep their drafts.
    """
    try:
        draft = _plain(draft)
        flaw = _flaw(draft, plan, target)
    except Exception as error:  # noqa: BLE001  what is no draft of any kind; decoding goes on
        plan.session.kappa = 0
        plan.session.add_note(
            f"drafter {name} proposed no draft; it is switched off for this request"
        )
        return Draft(proposer=name, note=_failed(name, error))
    if flaw:
        plan.session.kappa = 0
        plan.session.add_note(
            f"drafter {draft.proposer} proposed {flaw}; it is switched off for this request"
        )
        return Draft(proposer=draft.proposer)
    if isinstance(draft, TreeDraft) or len(draft) <= plan.kappa:
        return draft
    kept = plan.kappa
    return Draft(
        draft.token_ids[:kept],
        None if draft.laws is None else draft.laws[:kept],
        draft.proposer,
        draft.note,
        None if draft.sources is None else draft.sources[:kept],
    )


def _plain(draft: Draft | TreeDraft) -> Draft | TreeDraft:
    """Return a draft whose numbers are plain ints in tuples, as results hold them.

    Raises
    ------
    TypeError
        If a token is no whole number, or the text about the draft is no text.
    """
    tokens = draft.token_ids
    if not isinstance(draft, Draft | TreeDraft):
        raise TypeError(f"{type(draft).__name__}, expected a Draft or TreeDraft")
    for text in (draft.proposer, draft.note, *(getattr(draft, "sources", None) or ())):
        if not isinstance(text, str):
            raise TypeError(f"{text!r} in a draft, expected text")
    if isinstance(draft, TreeDraft) and not _is_plain(draft.parents):
        draft = replace(draft, parents=tuple(map(operator.index, draft.parents)))
    if _is_plain(tokens):
        return draft
    return replace(draft, token_ids=tuple(map(operator.index, tokens)))


def _is_plain(numbers: Sequence[int]) -> bool:
    return type(numbers) is tuple and all(type(number) is int for number in numbers)


def _flaw(draft: Draft | TreeDraft, plan: RowPlan, target: ModelInfo) -> str:
    """Say what is wrong with a draft; empty when nothing is."""
    if isinstance(draft, TreeDraft) and draft.token_ids:
        rule = plan.session.request.rule
        if not target.trees:
            return f"drafts that branch, which the runtime {target.runtime} cannot score"
        if isinstance(rule, AllowLossy):
            return f"drafts that branch, which the rule {rule.name} cannot judge"
        if len(draft) > plan.kappa:
            return f"a tree of {len(draft)} nodes, expected at most {plan.kappa}"
    laws: Sequence[Law | None]
    if isinstance(draft, TreeDraft):
        laws = [draft.child_law(parent) for parent in draft.parents]
    else:
        laws = draft.laws or (None,) * len(draft)
    for token, law in zip(draft.token_ids, laws, strict=True):
        if not 0 <= token < target.vocab_size:
            return f"token id {token}, expected 0 to {target.vocab_size - 1}"
        if law is None:
            continue
        if law.vocab_size != target.vocab_size:
            return f"a law over {law.vocab_size} tokens, expected {target.vocab_size}"
        if not law.prob(token) > 0.0:
            return f"token id {token}, which has no mass under the law it was drawn from"
    return ""
