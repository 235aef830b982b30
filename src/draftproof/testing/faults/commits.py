"""Faults of what is committed and reported: ends inside a block, log probabilities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from draftproof.core.types import TreeVerdict
from draftproof.engine import EngineCore
from draftproof.engine.session import Session
from draftproof.engine.stopping import StopDecision
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import EngineParts, PiecewiseExecutor
from draftproof.testing.faults.scenes import SCENES
from draftproof.verify import TokenLogprobs, VerifyRow

__all__ = ["COMMIT_FAULTS"]


class _Announcing(PiecewiseExecutor):
    """Tells the stop rules, which see single tokens, what the round looked like."""

    def __init__(self) -> None:
        super().__init__()
        #: Tokens of the round that are still to be committed, by request.
        self.left: dict[str, int] = {}
        #: Drafts of the round, by request.
        self.drafted: dict[str, tuple[int, ...]] = {}

    def judge_one(self, row: VerifyRow, logits: Any) -> TreeVerdict:
        verdict = super().judge_one(row, logits)
        self.left[row.request_id] = len(verdict.path) + 1
        self.drafted[row.request_id] = row.draft.token_ids
        return verdict


class _Stopper:
    """Stands in for the stop rules of a session."""

    def __init__(self, session: Session, executor: _Announcing, ends: frozenset[int]) -> None:
        self.right = session.stopper
        self.request_id = session.request_id
        self.executor = executor
        self.ends = ends

    def push(self, token_id: int, *, is_complete: bool = False) -> StopDecision:
        raise NotImplementedError


class _LastOfRoundOnly(_Stopper):
    """Asks for ends at the last token of a round only."""

    def push(self, token_id: int, *, is_complete: bool = False) -> StopDecision:
        self.executor.left[self.request_id] -= 1
        decision = self.right.push(token_id, is_complete=is_complete)
        is_last = self.executor.left[self.request_id] == 0
        if is_last or decision.finish_reason != "stop":
            return decision
        return StopDecision(decision.text)


class _StopsAtDraftedEnd(_Stopper):
    """Takes a drafted end for the end, whether it was accepted or not."""

    def push(self, token_id: int, *, is_complete: bool = False) -> StopDecision:
        decision = self.right.push(token_id, is_complete=is_complete)
        if self.ends & set(self.executor.drafted[self.request_id]):
            return replace(decision, finish_reason="stop")
        return decision


def _stopping(make: type[_Stopper]) -> Callable[[EngineParts], EngineParts]:
    def plant(parts: EngineParts) -> EngineParts:
        executor = _Announcing()

        class Core(EngineCore):
            def _register(self, session: Session) -> None:
                session.stopper = make(session, executor, parts.eos_token_ids)  # type: ignore[assignment]
                super()._register(session)

        return replace(parts, executor=executor, core=Core)

    return plant


class _ZeroLogprobs(PiecewiseExecutor):
    """Reports log probability 0 for accepted drafts."""

    def logprobs(
        self, row: VerifyRow, logits: Any, node: int, token: int, top: int, *, processed: bool
    ) -> TokenLogprobs:
        report = super().logprobs(row, logits, node, token, top, processed=processed)
        is_draft = token in row.draft.token_ids[node + 1 : node + 2]
        return (0.0, ()) if is_draft else report


class _FirstRowLogprobs(PiecewiseExecutor):
    """Reports the log probabilities of a round from its first row."""

    def logprobs(
        self, row: VerifyRow, logits: Any, node: int, token: int, top: int, *, processed: bool
    ) -> TokenLogprobs:
        del node
        return super().logprobs(row, logits, -1, token, top, processed=processed)


#: Faults of what is committed and reported.
COMMIT_FAULTS: tuple[EngineFault, ...] = (
    EngineFault(
        "end inside a block missed", "commit", SCENES["end of text"], _stopping(_LastOfRoundOnly),
        "only the last token of a round is compared with the end tokens", case="ST-1",
    ),
    EngineFault(
        "drafted end ends the text", "commit", SCENES["certain end"],
        _stopping(_StopsAtDraftedEnd),
        "an end token among the drafts finishes the request though it was rejected", case="ST-1",
    ),
    EngineFault(
        "log probability 0 for drafts", "report", SCENES["token rule"],
        lambda parts: replace(parts, executor=_ZeroLogprobs()),
        "accepted drafts are reported as certain", "logprobs", "LP-1",
    ),
    EngineFault(
        "log probabilities of the first row", "report", SCENES["token rule"],
        lambda parts: replace(parts, executor=_FirstRowLogprobs()),
        "all tokens of a round are reported from the row of its first", "logprobs", "LP-1",
    ),
)  # fmt: skip
