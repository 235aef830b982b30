"""Faults of the policy: settings that act at some positions, or on the wrong history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from draftproof.core.history import History
from draftproof.core.law import Law
from draftproof.core.params import SamplingParams
from draftproof.core.policy import target_law
from draftproof.core.types import TreeVerdict
from draftproof.testing.faults.bent import best_only, top_p
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import (
    EngineParts,
    LawOfRow,
    PiecewiseExecutor,
    law_of_row,
)
from draftproof.testing.faults.scene import Scene
from draftproof.testing.faults.scenes import SCENES
from draftproof.verify import VerifyRow

__all__ = ["POLICY_FAULTS"]

_Params = Callable[[SamplingParams], SamplingParams]


def _law(law: LawOfRow) -> Callable[[EngineParts], EngineParts]:
    return lambda parts: replace(parts, executor=PiecewiseExecutor(law=law))


def _is_bonus(row: VerifyRow, node: int) -> bool:
    return len(row.draft) > 0 and node == len(row.draft) - 1


def _everywhere(change: _Params) -> LawOfRow:
    return lambda row, logits, node: law_of_row(
        replace(row, params=change(row.params)), logits, node
    )


def _at_drafts(change: _Params) -> LawOfRow:
    """Change the policy where drafts are judged, leave it for bonus and plain tokens."""

    def law(row: VerifyRow, logits: Any, node: int) -> Law:
        is_draft = len(row.draft) > 0 and not _is_bonus(row, node)
        return law_of_row(
            replace(row, params=change(row.params)) if is_draft else row, logits, node
        )

    return law


def _at_bonus(change: _Params) -> LawOfRow:
    def law(row: VerifyRow, logits: Any, node: int) -> Law:
        changed = replace(row, params=change(row.params)) if _is_bonus(row, node) else row
        return law_of_row(changed, logits, node)

    return law


def _drafts_not_counted(row: VerifyRow, logits: Any, node: int) -> Law:
    return target_law(logits[row.first_row + 1 + node], row.params, row.history, ())


def _draft_counted_at_once(row: VerifyRow, logits: Any, node: int) -> Law:
    """Count a draft in the law that judges it, as if it were committed already."""
    extra = row.drafted_before(min(node + 1, len(row.draft) - 1))
    return target_law(logits[row.first_row + 1 + node], row.params, row.history, extra)


def _prompt_counted(row: VerifyRow, logits: Any, node: int) -> Law:
    """Take the prompt for output, as an engine does that joins them in one list."""
    history = deepcopy(row.history)
    tokens, counts = history.seen()
    for token, count in zip(tokens.tolist(), counts.tolist(), strict=True):
        if not count:
            history.append(token)
    extra = row.drafted_before(node)
    return target_law(logits[row.first_row + 1 + node], row.params, history, extra)


def _greedy_at_warmth(row: VerifyRow, logits: Any, node: int) -> Law:
    return best_only(law_of_row(row, logits, node))


def _nucleus_before_top_k(row: VerifyRow, logits: Any, node: int) -> Law:
    order = ("bias", "penalties", "allowed", "temperature", "top_p", "top_k", "min_p")
    return law_of_row(replace(row, params=replace(row.params, order=order)), logits, node)


def _nucleus_twice(row: VerifyRow, logits: Any, node: int) -> Law:
    return top_p(row.params.top_p)(law_of_row(row, logits, node))


class _OwnHistory(PiecewiseExecutor):
    """Keeps the histories itself, and feeds them what it takes for the committed tokens."""

    def __init__(self, fed: Callable[[VerifyRow, TreeVerdict], Sequence[int]]) -> None:
        super().__init__()
        self._fed = fed
        self._histories: dict[str, History] = {}

    def judge_one(self, row: VerifyRow, logits: Any) -> TreeVerdict:
        history = self._histories.get(row.request_id)
        if history is None:
            history = self._histories[row.request_id] = deepcopy(row.history)
        verdict = super().judge_one(replace(row, history=history), logits)
        for token in self._fed(row, verdict):
            history.append(token)
        return verdict


def _last_of_round(row: VerifyRow, verdict: TreeVerdict) -> Sequence[int]:
    del row
    return (verdict.token_id,)


def _rejected_too(row: VerifyRow, verdict: TreeVerdict) -> Sequence[int]:
    return (*row.draft.token_ids, verdict.token_id)


def _history(fed: Callable[[VerifyRow, TreeVerdict], Sequence[int]]) -> (
    Callable[[EngineParts], EngineParts]
):  # fmt: skip
    return lambda parts: replace(parts, executor=_OwnHistory(fed))


class _NeighboursParams(PiecewiseExecutor):
    """Judges every row under the settings of the first."""

    def judge(self, rows: Sequence[VerifyRow], logits: Any) -> list[TreeVerdict | Exception]:
        return super().judge([replace(row, params=rows[0].params) for row in rows], logits)


def _fault(
    name: str, scene: str | Scene, law: LawOfRow, description: str, case: str = ""
) -> EngineFault:
    where = SCENES[scene] if isinstance(scene, str) else scene
    return EngineFault(name, "policy", where, _law(law), description, case=case)


#: Faults of the policy.
POLICY_FAULTS: tuple[EngineFault, ...] = (
    _fault(
        "p at temperature 1", "temperature",
        _at_drafts(lambda params: replace(params, temperature=1.0)),
        "the request's temperature does not reach the verifier", "DI-3",
    ),
    _fault(
        "bonus at temperature 1", "temperature",
        _at_bonus(lambda params: replace(params, temperature=1.0)),
        "the request's temperature does not reach the bonus token",
    ),
    _fault(
        "temperature taken for greedy", "temperature", _greedy_at_warmth,
        "every law is sharpened to its best token", "DI-6",
    ),
    _fault(
        "top-k ignored on the bonus", "top-k", _at_bonus(lambda params: replace(params, top_k=0)),
        "the bonus token may lie outside the request's top-k",
    ),
    _fault(
        "top-k ignored where drafts are judged", "top-k",
        _at_drafts(lambda params: replace(params, top_k=0)),
        "drafts and replacements may lie outside the request's top-k", "PR-2",
    ),
    _fault(
        "top-p ignored where drafts are judged", "top-p",
        _at_drafts(lambda params: replace(params, top_p=1.0)),
        "drafts and replacements may lie outside the nucleus", "PR-2",
    ),
    _fault(
        "top-p applied twice", "top-p", _nucleus_twice,
        "a law that was cut and normalised is cut again",
    ),
    _fault(
        "top-p before top-k", "top-k and top-p", _nucleus_before_top_k,
        "the stages run in another order than the reference's",
    ),
    _fault(
        "min-p ignored", "min-p", _everywhere(lambda params: replace(params, min_p=0.0)),
        "the setting is accepted and does nothing", "PR-2",
    ),
    _fault(
        "bias ignored on the bonus", "bias",
        _at_bonus(lambda params: replace(params, logit_bias={})),
        "the fused sampler of the bonus token knows no bias", "PR-2",
    ),
    _fault(
        "ban ignored where drafts are judged", "banned",
        _at_drafts(lambda params: replace(params, banned_token_ids=())),
        "a replacement may be a banned token", "PR-2",
    ),
    _fault(
        "penalties without the drafts", "frequency", _drafts_not_counted,
        "all positions of a round are judged under the committed history",
    ),
    _fault(
        "presence without the drafts", "presence", _drafts_not_counted,
        "all positions of a round are judged under the committed history",
    ),
    _fault(
        "penalties count the draft they judge", "frequency", _draft_counted_at_once,
        "off by one: a draft is penalised for its own appearance",
    ),
    _fault(
        "prompt counted as output", "frequency", _prompt_counted,
        "prompt and output share one list of tokens",
    ),
    _fault(
        "repetition penalty ignored", "repetition",
        _at_drafts(lambda params: replace(params, repetition_penalty=1.0)),
        "drafts are judged without it", "PR-2",
    ),
    EngineFault(
        "penalties counted per step", "policy", SCENES["frequency"], _history(_last_of_round),
        "only the last committed token of a round is counted", case="PR-1",
    ),
    EngineFault(
        "rejected drafts stay counted", "policy", SCENES["frequency"], _history(_rejected_too),
        "penalty counts are not rolled back",
    ),
    EngineFault(
        "least length counted per step", "policy", SCENES["least length"],
        _history(_last_of_round),
        "end tokens stay masked for min_tokens rounds", case="PR-1",
    ),
    _fault(
        "least length without the drafts", "least length", _drafts_not_counted,
        "end tokens stay masked through the whole round in which the least length is reached",
    ),
    EngineFault(
        "settings of another row", "policy", SCENES["in company"],
        lambda parts: replace(parts, executor=_NeighboursParams()),
        "all rows of a batch are judged under the settings of the first", case="RB-2",
    ),
)  # fmt: skip
