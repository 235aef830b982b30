"""Describe the rounds of a step in full, for the requests that ask for it.

Everything here is read after the fact: from the draft, from the verdict, from what the
executor left in `Reached`, and from coins, which are functions of their place and are not
used up by reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from draftproof.core.trace import RoundTrace
from draftproof.core.types import Draft, TreeDraft, TreeVerdict
from draftproof.engine.request import StepOutput
from draftproof.engine.scheduler import RowPlan
from draftproof.verify import VerifyRow

__all__ = ["StepTracer", "draft_probs"]

#: Rules that decide each draft with a coin of its own.
_COIN_RULES = frozenset({"standard", "block", "recursive", "traversal", "lenience", "threshold"})


@dataclass(slots=True)
class StepTracer:
    """The traced rows of one step, until its times are known.

    Parameters
    ----------
    kept : list
        Index of the output, plan, row and verdict of each.
    """

    kept: list[tuple[int, RowPlan, VerifyRow, TreeVerdict]] = field(default_factory=list)

    def __len__(self) -> int:
        """Return the number of traced rows."""
        return len(self.kept)

    def keep(self, index: int, plan: RowPlan, row: VerifyRow, verdict: TreeVerdict) -> None:
        """Note a row whose output stands at ``index``."""
        self.kept.append((index, plan, row, verdict))

    def fill(
        self,
        outputs: list[StepOutput],
        step: int,
        batch: int,
        pass_tokens: int,
        seconds: tuple[float, float, float, float],
    ) -> None:
        """Put the traces into the outputs.

        Parameters
        ----------
        outputs : list of StepOutput
            Of the step; those of traced rows are replaced.
        step : int
            Number of the step.
        batch : int
            Rows of the pass.
        pass_tokens : int
            Tokens of the pass.
        seconds : tuple of float
            Drafting, target, verification, everything else.
        """
        for index, plan, row, verdict in self.kept:
            trace = _round(plan, row, verdict, outputs[index], step, batch, pass_tokens, seconds)
            outputs[index] = replace(outputs[index], trace=trace)


def _round(
    plan: RowPlan,
    row: VerifyRow,
    verdict: TreeVerdict,
    output: StepOutput,
    step: int,
    batch: int,
    pass_tokens: int,
    seconds: tuple[float, float, float, float],
) -> RoundTrace:
    draft, record, reached = plan.draft, output.record, row.reached
    assert record is not None  # narrows the types: the row was judged and asked for a trace
    assert reached is not None
    count = len(draft)
    rule = row.rule if isinstance(row.rule, str) else row.rule.name
    draft_s, target_s, verify_s, other_s = seconds
    return RoundTrace(
        step=step,
        round=plan.session.stats.num_rounds - 1,
        start=record.position,
        kappa=plan.kappa,
        rule=rule if count else "none",
        drafter=record.proposer,
        sources=record.draft_sources or (record.proposer,) * count,
        draft_ids=draft.token_ids,
        parents=record.parents,
        p=tuple(reached.probs.get(node) for node in range(count)),
        q=draft_probs(draft),
        coins=_coins(row, rule, verdict),
        path=verdict.path,
        committed=record.emitted,
        token_id=verdict.token_id,
        token_source=verdict.source,
        token_p=reached.token_prob,
        batch=batch,
        draft_s=draft_s,
        target_s=target_s,
        verify_s=verify_s,
        other_s=other_s,
        pass_tokens=pass_tokens,
    )


def draft_probs(draft: Draft | TreeDraft) -> tuple[float | None, ...]:
    """Return the probability of each draft under the law that it was drawn from.

    Parameters
    ----------
    draft : Draft or TreeDraft
        K drafts.

    Returns
    -------
    tuple of float or None, length K
        None where the draft was certain. Of siblings drawn without replacement the
        probability given that those before it were drawn: ``q_j / (1 - q_0 - .. - q_j-1)``.
    """
    if isinstance(draft, Draft):
        if draft.laws is None:
            return (None,) * len(draft)
        pairs = zip(draft.laws, draft.token_ids, strict=True)
        return tuple(law.prob(token) for law, token in pairs)
    found: list[float | None] = [None] * len(draft)
    if draft.child_laws is None:
        return tuple(found)
    for law, children in zip(draft.child_laws, draft.children(), strict=True):
        if law is None or not children:
            continue
        ids = np.array([draft.token_ids[child] for child in children], dtype=np.intp)
        left = 1.0
        for child, prob in zip(children, law.probs_at(ids).tolist(), strict=True):
            # Where the others had all the mass but a rounding, the last is certain.
            found[child] = min(1.0, prob / left) if left > 0 else 1.0
            left -= prob
    return tuple(found)


def _coins(row: VerifyRow, rule: str, verdict: TreeVerdict) -> tuple[float | None, ...]:
    """Return the acceptance coin of each draft that the rule got to."""
    count = len(row.draft)
    if rule == "synthetic":
        asked: Sequence[bool] = [node <= len(verdict.path) for node in range(count)]
    elif rule in _COIN_RULES and not row.params.is_greedy:
        assert row.reached is not None  # narrows the type
        asked = [node in row.reached.probs for node in range(count)]
    else:
        return (None,) * count
    return tuple(
        row.coins.accept(node) if is_asked else None for node, is_asked in enumerate(asked)
    )
