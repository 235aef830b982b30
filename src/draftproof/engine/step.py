"""One decode step: draft, one pass, verify, stop, commit.

This is the only file that calls the other rooms during decoding. Rooms get values;
what they return is committed here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from draftproof.core.law import Law
from draftproof.core.logprobs import log_softmax_at, top_logprobs
from draftproof.core.policy import target_law
from draftproof.core.protocols import ModelBackend, ProposalRequest, Proposer
from draftproof.core.types import Draft, FlatBatch, Row, StepRecord, TokenSource
from draftproof.engine.request import StepOutput, TokenEvent
from draftproof.engine.scheduler import RowPlan
from draftproof.engine.session import Session
from draftproof.errors import BackendError, InvariantError, NonFiniteLogitsError
from draftproof.verify import verify

__all__ = ["Clock", "run_step"]

Logits = NDArray[np.float32]


@dataclass(slots=True)
class Clock:
    """Seconds spent per part of a step, summed.

    Parameters
    ----------
    draft_s, target_s, verify_s, other_s : float
        Drafting; the target's passes; laws and rules; everything else.
    num_passes : int
        Passes of the target.
    num_pass_tokens : int
        Tokens in them.
    """

    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    num_passes: int = 0
    num_pass_tokens: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of all parts."""
        return self.draft_s + self.target_s + self.verify_s + self.other_s


def run_step(
    plans: Sequence[RowPlan],
    target: ModelBackend,
    proposers: Mapping[str, Proposer],
    clock: Clock,
) -> list[StepOutput]:
    """Run one pass for all planned rows and commit what it decides.

    Parameters
    ----------
    plans : sequence of RowPlan
        Rows with reserved slots.
    target : ModelBackend
        The model whose law is kept.
    proposers : mapping of str to Proposer
        Drafters by name.
    clock : Clock
        Where time is added.

    Returns
    -------
    list of StepOutput
        One per row that emitted or failed.
    """
    begin = perf_counter()
    _draft(plans, proposers, target.info.vocab_size)
    drafted = perf_counter()
    scored = _score(plans, target, clock)
    after_pass = perf_counter()
    outputs: list[StepOutput] = []
    verify_s = 0.0
    for plan, logits in zip(plans, scored, strict=True):
        if isinstance(logits, Exception):
            outputs.append(failure(plan.session, logits))
            continue
        start = perf_counter()
        try:
            if not plan.is_final:
                if plan.is_shareable:
                    target.commit(plan.sequence_id)
                continue
            tokens, sources, num_accepted = _verify(plan, logits)
            verify_s += perf_counter() - start
            outputs.append(_commit(plan, logits, tokens, sources, num_accepted, target))
        except Exception as error:  # noqa: BLE001  a bad row must not harm its neighbours
            outputs.append(failure(plan.session, error))
    clock.draft_s += drafted - begin
    clock.target_s += after_pass - drafted
    clock.verify_s += verify_s
    clock.other_s += perf_counter() - after_pass - verify_s
    return outputs


def failure(session: Session, error: Exception) -> StepOutput:
    """Return the last output of a request that failed."""
    return StepOutput(session.request_id, finish_reason="error", error=error)


def _draft(plans: Sequence[RowPlan], proposers: Mapping[str, Proposer], vocab_size: int) -> None:
    """Fill in the drafts, one call per drafter for all of its rows."""
    for name, proposer in proposers.items():
        rows = [plan for plan in plans if plan.kappa and plan.session.request.proposer == name]
        if not rows:
            continue
        requests = [
            ProposalRequest(
                request_id=plan.session.request_id,
                token_ids=plan.session.tokens,
                kappa=plan.kappa,
                params=plan.session.params,
                history=plan.session.history,
                coins=plan.coins,
                coupled=plan.session.request.rule == "coupled",
            )
            for plan in rows
        ]
        try:
            drafts = proposer.propose(requests)
            if len(drafts) != len(rows):
                raise InvariantError(f"{len(drafts)} drafts, expected {len(rows)}")
            drafts = [
                _sound(draft, plan, vocab_size) for draft, plan in zip(drafts, rows, strict=True)
            ]
        except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
            drafts = [Draft(proposer=name, note=f"drafter {name} failed: {error!r}")] * len(rows)
        for plan, draft in zip(rows, drafts, strict=True):
            plan.draft = draft
            plan.session.count_draft(draft)


def _sound(draft: Draft, plan: RowPlan, vocab_size: int) -> Draft:
    """Refuse what no verifier may see; cut what is longer than reserved.

    Cutting to a fixed length never looks at the tokens and so keeps the law. Dropping
    a sampled draft because of its tokens would not, hence a drafter that proposes what
    it cannot have drawn is switched off for the rest of the request.
    """
    flaw = _flaw(draft, vocab_size)
    if flaw:
        plan.session.kappa = 0
        plan.session.add_note(
            f"drafter {draft.proposer} proposed {flaw}; it is switched off for this request"
        )
        return Draft(proposer=draft.proposer)
    if len(draft) > plan.kappa:
        laws = None if draft.laws is None else draft.laws[: plan.kappa]
        return Draft(draft.token_ids[: plan.kappa], laws, draft.proposer, draft.note)
    return draft


def _flaw(draft: Draft, vocab_size: int) -> str:
    """Say what is wrong with a draft; empty when nothing is."""
    for index, token in enumerate(draft.token_ids):
        if not 0 <= token < vocab_size:
            return f"token id {token}, expected 0 to {vocab_size - 1}"
        if draft.laws is None:
            continue
        law = draft.laws[index]
        if law.vocab_size != vocab_size:
            return f"a law over {law.vocab_size} tokens, expected {vocab_size}"
        if not law.prob(token) > 0.0:
            return f"token id {token}, which has no mass under the law it was drawn from"
    return ""


def _score(
    plans: Sequence[RowPlan], target: ModelBackend, clock: Clock
) -> list[Logits | Exception]:
    """Run one pass over pending tokens and drafts; return each row's logits."""
    rows = [
        Row(
            plan.sequence_id,
            [*plan.pending, *plan.draft.token_ids],
            plan.start,
            len(plan.draft) + 1 if plan.is_final else 0,
        )
        for plan in plans
    ]
    batch = FlatBatch.from_rows(rows)
    clock.num_passes += 1
    clock.num_pass_tokens += len(batch)
    try:
        logits = target.forward(batch)
    except Exception as error:  # noqa: BLE001  a bad row must not harm its neighbours
        if len(rows) == 1:
            return [error]
        return [_score_alone(plan, target, clock) for plan in plans]
    ends = np.cumsum([row.num_logits for row in rows])
    return [logits[end - row.num_logits : end] for row, end in zip(rows, ends, strict=True)]


def _score_alone(plan: RowPlan, target: ModelBackend, clock: Clock) -> Logits | Exception:
    """Score a row of a pass that failed; alone, only the rows at fault fail again."""
    try:
        if target.length(plan.sequence_id) > plan.start:
            # The runtime died after it had appended: take that back, which also ends
            # the reservation. Nobody else took the pages meanwhile.
            target.truncate(plan.sequence_id, plan.start)
            target.reserve(plan.sequence_id, len(plan.pending) + plan.kappa)
        logits = _score([plan], target, clock)[0]
    except BackendError as error:
        return error
    return logits if isinstance(logits, Exception) else logits.copy()


def _verify(plan: RowPlan, logits: Logits) -> tuple[list[int], list[TokenSource], int]:
    """Apply the row's rule to its drafts; laws are made only where they are reached."""
    session, draft = plan.session, plan.draft

    def law_at(j: int) -> Law:
        try:
            return target_law(logits[j], session.params, session.history, draft.token_ids[:j])
        except NonFiniteLogitsError as error:
            where = f"request {session.request_id}, position {len(session.tokens) + j}"
            raise NonFiniteLogitsError(f"{where}: {error}") from error

    rule = rule_for(session, draft)
    if draft.token_ids:
        session.rules.add(rule)
    verdict = verify(rule, draft, law_at, plan.coins)
    accepted = verdict.num_accepted
    tokens = [*draft.token_ids[:accepted], verdict.token_id]
    sources: list[TokenSource] = ["accepted"] * accepted
    return tokens, [*sources, verdict.source], accepted


def rule_for(session: Session, draft: Draft) -> str:
    """Return the rule of a round: the request's, or the best exact one for the draft.

    Block verification accepts more than the token rule on sampled drafts and the same
    on deterministic ones, where the token rule is cheaper.
    """
    if session.request.rule is not None:
        return session.request.rule
    return "standard" if draft.laws is None else "block"


def _commit(
    plan: RowPlan,
    logits: Logits,
    tokens: Sequence[int],
    sources: Sequence[TokenSource],
    num_accepted: int,
    target: ModelBackend,
) -> StepOutput:
    """Append tokens up to the first end, shrink the cache, and describe the round."""
    session = plan.session
    position = len(session.tokens)
    events: list[TokenEvent] = []
    decision = None
    for index, (token, source) in enumerate(zip(tokens, sources, strict=True)):
        session.tokens.append(token)
        session.history.append(token)
        decision = session.stopper.push(token)
        events.append(_event(session, logits[index], token, source, decision.text))
        if decision.finish_reason is not None:
            break
    assert decision is not None  # narrows the type: at least one token is emitted
    target.truncate(plan.sequence_id, len(session.tokens) - 1)
    if plan.is_shareable:
        target.commit(plan.sequence_id)
    record = StepRecord(
        request_id=session.request_id,
        position=position,
        drafted=plan.draft.token_ids,
        num_accepted=num_accepted,
        emitted=tuple(event.token_id for event in events),
        sources=tuple(event.source for event in events),
        proposer=plan.draft.proposer if plan.draft.token_ids else "none",
    )
    session.stats.add(record)
    return StepOutput(
        session.request_id,
        tuple(events),
        "".join(event.text for event in events),
        record,
        decision.finish_reason,
        decision.stop_reason,
    )


def _event(
    session: Session, logits: NDArray[np.float32], token: int, source: TokenSource, text: str
) -> TokenEvent:
    """Describe a token; log probabilities come from the row that emitted it."""
    wanted = session.request.logprobs
    if wanted is None:
        return TokenEvent(token, source, text)
    best: tuple[tuple[int, float], ...] = ()
    if wanted:
        ids, values = top_logprobs(logits, wanted)
        best = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    logprob = dict(best).get(token)
    if logprob is None:  # each call sums over the vocabulary, so one is made where it will do
        logprob = float(log_softmax_at(logits, [token])[0])
    return TokenEvent(token, source, text, logprob, best)
