"""One decode step: draft, one pass, verify, stop, commit.

This file and its two neighbours, `drafting` and `commit`, are the only ones that call
the other rooms during decoding. Rooms get values; what they return is committed in
`commit` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from draftproof.core.protocols import ModelBackend, Proposer
from draftproof.core.types import FlatBatch, Row, TreeDraft
from draftproof.engine.commit import commit_row
from draftproof.engine.drafting import draft_rows
from draftproof.engine.observing import observe_rows
from draftproof.engine.patience import Patience
from draftproof.engine.request import StepOutput
from draftproof.engine.scheduler import RowPlan
from draftproof.engine.session import Session
from draftproof.engine.tracing import StepTracer
from draftproof.errors import BackendError
from draftproof.verify import Executor, Reached, VerifyRow, rule_for

__all__ = ["Clock", "failure", "run_step"]


@dataclass(slots=True)
class Clock:
    """Seconds spent per part of a step, summed.

    Parameters
    ----------
    draft_s, target_s, verify_s, other_s : float
        Drafting; the target's passes; laws and rules; everything else.
    policy_s : float
        Choosing draft lengths, where a policy does.
    num_passes : int
        Passes of the target.
    num_pass_tokens : int
        Tokens in them.
    num_steps : int
        Steps that had a row to run.
    num_drafter_pauses : int
        How often a drafter that stalled or failed was given up for some rounds.
    """

    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    num_passes: int = 0
    num_pass_tokens: int = 0
    policy_s: float = 0.0
    num_steps: int = 0
    num_drafter_pauses: int = 0

    @property
    def total_s(self) -> float:
        """Seconds of all parts."""
        return self.draft_s + self.target_s + self.verify_s + self.other_s + self.policy_s


def run_step(
    plans: Sequence[RowPlan],
    target: ModelBackend,
    proposers: Mapping[str, Proposer],
    executor: Executor,
    clock: Clock,
    patience: Patience,
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
    executor : Executor
        Judges drafts where the target's logits live.
    clock : Clock
        Where time is added.
    patience : Patience
        Says which drafters are asked.

    Returns
    -------
    list of StepOutput
        One per row that emitted or failed.
    """
    begin = perf_counter()
    draft_rows(plans, proposers, target.info, patience)
    drafted = perf_counter()
    outputs: list[StepOutput] = []
    tracer = StepTracer()
    tokens_before = clock.num_pass_tokens
    target_s = verify_s = 0.0
    for group in _score(plans, target, clock):
        target_s += group.seconds
        if group.error is not None:
            outputs.append(failure(group.plans[0].session, group.error))
            continue
        start = perf_counter()
        rows = _verify_rows(group.plans)
        verdicts = iter(executor.judge(list(rows.values()), group.logits))
        verify_s += perf_counter() - start
        paths: dict[int, Sequence[int]] = {}
        for index, plan in enumerate(group.plans):
            try:
                if index not in rows:
                    if plan.is_shareable:
                        target.commit(plan.sequence_id)
                    paths[index] = ()
                    continue
                verdict = next(verdicts)
                if isinstance(verdict, Exception):
                    raise verdict
                row = rows[index]
                outputs.append(commit_row(plan, row, verdict, executor, group.logits, target))
                if row.reached is not None:
                    tracer.keep(len(outputs) - 1, plan, row, verdict)
                if outputs[-1].finish_reason is None:
                    paths[index] = verdict.path
            except Exception as error:  # noqa: BLE001  a bad row must not harm its neighbours
                outputs.append(failure(plan.session, error))
        observe_rows(group.plans, paths, target, proposers, patience)
    clock.num_steps += 1
    clock.draft_s += drafted - begin
    clock.target_s += target_s
    clock.verify_s += verify_s
    if all(len(plan.pending) == 1 for plan in plans):
        patience.passed(target_s)
    if tracer:
        other_s = perf_counter() - drafted - target_s - verify_s
        seconds = (drafted - begin, target_s, verify_s, other_s)
        num_tokens = clock.num_pass_tokens - tokens_before
        tracer.fill(outputs, clock.num_steps, len(plans), num_tokens, seconds)
    clock.other_s += perf_counter() - drafted - target_s - verify_s
    return outputs


def failure(session: Session, error: Exception) -> StepOutput:
    """Return the last output of a request that failed."""
    return StepOutput(session.request_id, finish_reason="error", error=error)


@dataclass(slots=True)
class _Scored:
    """Rows of one pass and its logits, or the one row that the pass failed for."""

    plans: Sequence[RowPlan]
    seconds: float
    logits: Any = None
    error: Exception | None = None


def _score(plans: Sequence[RowPlan], target: ModelBackend, clock: Clock) -> Iterator[_Scored]:
    """Run one pass over pending tokens and drafts.

    Where the pass fails each row is scored alone, so that only the rows at fault fail
    again. A pass may overwrite the logits of the one before: read them before asking on.
    """
    batch = FlatBatch.from_rows([_row(plan) for plan in plans])
    clock.num_passes += 1
    clock.num_pass_tokens += len(batch)
    start = perf_counter()
    try:
        logits = target.forward(batch)
    except Exception as error:  # noqa: BLE001  a bad row must not harm its neighbours
        seconds = perf_counter() - start
        if len(plans) == 1:
            yield _Scored(plans, seconds, error=error)
            return
        for plan in plans:
            yield from _score_alone(plan, target, clock)
        return
    yield _Scored(plans, perf_counter() - start, logits)


def _score_alone(plan: RowPlan, target: ModelBackend, clock: Clock) -> Iterator[_Scored]:
    """Score a row of a pass that failed."""
    try:
        if target.length(plan.sequence_id) > plan.start:
            # The runtime died after it had appended: take that back, which also ends
            # the reservation. Nobody else took the pages meanwhile.
            target.truncate(plan.sequence_id, plan.start)
            target.reserve(plan.sequence_id, len(plan.pending) + plan.kappa)
    except BackendError as error:
        yield _Scored([plan], 0.0, error=error)
        return
    yield from _score([plan], target, clock)


def _row(plan: RowPlan) -> Row:
    """Lay out a row: pending tokens as a chain, then the drafts."""
    num_pending = len(plan.pending)
    parents = None
    if isinstance(plan.draft, TreeDraft) and plan.draft.token_ids:
        nodes = [num_pending + parent for parent in plan.draft.parents]
        parents = [*range(-1, num_pending - 1), *nodes]
    return Row(
        plan.sequence_id,
        [*plan.pending, *plan.draft.token_ids],
        plan.start,
        len(plan.draft) + 1 if plan.is_final else 0,
        parents,
    )


def _verify_rows(plans: Sequence[RowPlan]) -> dict[int, VerifyRow]:
    """Return what is to be judged, by index of the plan; chunks of prompts are not."""
    rows: dict[int, VerifyRow] = {}
    first_row = 0
    for index, plan in enumerate(plans):
        if not plan.is_final:
            continue
        session = plan.session
        rule = rule_for(session.request.rule, plan.draft)
        if plan.draft.token_ids:
            session.rules.add(rule if isinstance(rule, str) else rule.name)
        rows[index] = VerifyRow(
            session.request_id,
            rule,
            plan.draft,
            session.params,
            session.history,
            plan.coins,
            session.constraint,
            first_row,
            Reached() if session.request.trace else None,
        )
        first_row += len(plan.draft) + 1
    return rows
