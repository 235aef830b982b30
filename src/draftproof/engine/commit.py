"""Turn a verdict into committed tokens: stop, append, shrink the cache, describe."""

from __future__ import annotations

from typing import Any

from draftproof.core.protocols import ModelBackend
from draftproof.core.types import StepRecord, TokenSource, TreeDraft, TreeVerdict
from draftproof.engine.request import StepOutput, TokenEvent
from draftproof.engine.scheduler import RowPlan
from draftproof.engine.stopping import StopDecision
from draftproof.verify import Executor, VerifyRow

__all__ = ["commit_row"]


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
    session = plan.session
    position = len(session.tokens)
    nodes = (-1, *verdict.path)
    tokens = [plan.draft.token_ids[node] for node in verdict.path] + [verdict.token_id]
    sources: list[TokenSource] = ["accepted"] * len(verdict.path)
    sources.append(verdict.source)
    # Before anything is committed: history and grammar must be those of the pass.
    reports = [
        _logprobs(plan, row, executor, logits, node, token)
        for node, token in zip(nodes, tokens, strict=True)
    ]
    events: list[TokenEvent] = []
    decision = None
    for token, source, report in zip(tokens, sources, reports, strict=True):
        decision = _push(plan, token)
        events.append(TokenEvent(token, source, decision.text, *report))
        if decision.finish_reason is not None:
            break
    assert decision is not None  # narrows the type: at least one token is emitted
    _keep_path(plan, verdict.path[: len(events) - 1], target)
    record = StepRecord(
        request_id=session.request_id,
        position=position,
        drafted=plan.draft.token_ids,
        num_accepted=len(verdict.path) + (verdict.source == "accepted"),
        emitted=tuple(event.token_id for event in events),
        sources=tuple(event.source for event in events),
        proposer=plan.draft.proposer if plan.draft.token_ids else "none",
        parents=plan.draft.parents if isinstance(plan.draft, TreeDraft) else None,
        draft_sources=None if isinstance(plan.draft, TreeDraft) else plan.draft.sources,
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


def _push(plan: RowPlan, token: int) -> StopDecision:
    """Commit one token: text so far, history, grammar, and whether it is the last."""
    session = plan.session
    session.tokens.append(token)
    session.history.append(token)
    if session.constraint is not None:
        session.constraint.advance(token)
    is_complete = session.constraint is not None and session.constraint.is_complete
    if is_complete and session.num_generated < session.params.min_tokens:
        session.add_note(
            f"the grammar was complete after {session.num_generated} tokens, before min_tokens="
            f"{session.params.min_tokens}"
        )
    return session.stopper.push(token, is_complete=is_complete)


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
    plan: RowPlan, row: VerifyRow, executor: Executor, logits: Any, node: int, token: int
) -> tuple[float | None, tuple[tuple[int, float], ...] | None]:
    """Report what the row that emitted a token says."""
    request = plan.session.request
    if request.logprobs is None:
        return None, None
    return executor.logprobs(
        row, logits, node, token, request.logprobs, processed=request.logprobs_mode == "processed"
    )
