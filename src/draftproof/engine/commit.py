"""Turn a verdict into committed tokens: stop, append, shrink the cache, describe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.core.protocols import ModelBackend
from draftproof.core.types import Draft, StepRecord, TokenSource, TreeDraft, TreeVerdict
from draftproof.engine.request import StepOutput, TokenEvent
from draftproof.engine.scheduler import RowPlan
from draftproof.engine.session import Session
from draftproof.engine.stopping import StopDecision
from draftproof.verify import Executor, VerifyRow

__all__ = ["commit_row"]

#: Log probability of a token and of the best of its place; None where nobody asks.
_Report = tuple[float | None, tuple[tuple[int, float], ...] | None]
_NO_REPORT: _Report = (None, None)


def commit_row(
    plan: RowPlan,
    row: VerifyRow,
    verdict: TreeVerdict,
    executor: Executor,
    logits: Any,
    target: ModelBackend,
) -> StepOutput:
    """Append tokens up to the first end, keep the accepted path, and describe the round.

    Parameters
    ----------
    plan : RowPlan
        The row that ran.
    row : VerifyRow
        What was judged.
    verdict : TreeVerdict
        The verdict.
    executor : Executor
        Reports log probabilities.
    logits : array, shape (M, V)
        Of the pass.
    target : ModelBackend
        Whose cache shrinks.

    Returns
    -------
    StepOutput
        The committed tokens, and how the request ended if it did.
    """
    session, draft, path = plan.session, plan.draft, verdict.path
    position = len(session.tokens)
    tokens = [*(draft.token_ids[node] for node in path), verdict.token_id]
    sources: list[TokenSource] = ["accepted"] * len(path)
    sources.append(verdict.source)
    # Before anything is committed: history and grammar must be those of the pass.
    reports = _logprobs(plan, row, executor, logits, (-1, *path), tokens)
    events: list[TokenEvent] = []
    for token, source, report in zip(tokens, sources, reports, strict=True):
        decision = _push(session, token)
        events.append(TokenEvent(token, source, decision.text, *report))
        if decision.finish_reason is not None:
            break
    num_emitted = len(events)
    _keep_path(plan, path[: num_emitted - 1], target)
    kept = path
    if verdict.source == "accepted":
        kept = (*path, _child(draft, path[-1] if path else -1, verdict.token_id))
    record = StepRecord(
        session.request_id,
        position,
        draft.token_ids,
        len(kept),
        tuple(tokens[:num_emitted]),
        tuple(sources[:num_emitted]),
        draft.proposer if draft.token_ids else "none",
        draft.parents if isinstance(draft, TreeDraft) else None,
        draft.sources,
        kept if isinstance(draft, TreeDraft) else None,
        not isinstance(draft, TreeDraft) and bool(draft.token_ids) and draft.laws is None,
    )
    session.stats.add(record)
    return StepOutput(
        session.request_id,
        tuple(events),
        "".join([event.text for event in events]),
        record,
        decision.finish_reason,
        decision.stop_reason,
    )


def _push(session: Session, token: int) -> StopDecision:
    """Commit one token: text so far, history, grammar, and whether it is the last."""
    session.tokens.append(token)
    session.history.append(token)
    if session.constraint is None:
        return session.stopper.push(token)
    session.constraint.advance(token)
    is_complete = session.constraint.is_complete
    if is_complete and session.num_generated < session.params.min_tokens:
        session.add_note(
            f"the grammar was complete after {session.num_generated} tokens, before min_tokens="
            f"{session.params.min_tokens}"
        )
    return session.stopper.push(token, is_complete=is_complete)


def _child(draft: Draft | TreeDraft, above: int, token_id: int) -> int:
    """Return the number of the draft behind a kept one that holds a token."""
    if isinstance(draft, Draft):
        return above + 1
    places = zip(draft.parents, draft.token_ids, strict=True)
    return list(places).index((above, token_id))


def _keep_path(plan: RowPlan, path: tuple[int, ...], target: ModelBackend) -> None:
    """Leave in the cache what is committed, less the pending last token."""
    base = plan.start + len(plan.pending)
    if path == tuple(range(len(path))):
        target.truncate(plan.sequence_id, base + len(path))
    else:
        target.truncate(plan.sequence_id, base, [base + node for node in path])
    if plan.is_shareable:
        target.commit(plan.sequence_id)


def _logprobs(
    plan: RowPlan,
    row: VerifyRow,
    executor: Executor,
    logits: Any,
    nodes: Sequence[int],
    tokens: Sequence[int],
) -> Sequence[_Report]:
    """Report what the row that emitted each token says, where the request asks for it."""
    request = plan.session.request
    top = request.logprobs
    if top is None:
        return (_NO_REPORT,) * len(tokens)
    processed = request.logprobs_mode == "processed"
    return [
        executor.logprobs(row, logits, node, token, top, processed=processed)
        for node, token in zip(nodes, tokens, strict=True)
    ]
