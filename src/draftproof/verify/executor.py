"""Judge all rows of a pass: laws from logits, rules on laws.

An executor is where a pass's logits meet the rules. The one here is the definition: it
works row by row on numpy arrays, and makes a law only where a rule gets to. Others, for
logits that live on a device, decide the same on the same coins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.core.constraint import Constraint
from draftproof.core.law import Law
from draftproof.core.logprobs import log_softmax_at, top_logprobs
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import RoundCoins
from draftproof.core.scratch import Scratch
from draftproof.core.types import Draft, TreeDraft, TreeVerdict
from draftproof.errors import ConfigError, NonFiniteLogitsError
from draftproof.verify.allow_lossy import AllowLossy
from draftproof.verify.dispatch import verify
from draftproof.verify.no_law import NoLawError
from draftproof.verify.reached import Reached
from draftproof.verify.tree import TREE_RULE_OF, verify_tree

__all__ = ["Executor", "NumpyExecutor", "TokenLogprobs", "VerifyRow", "rule_for"]

#: A token's log probability, and the best tokens of its row, best first.
TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """What an executor needs to judge one row of one round.

    Parameters
    ----------
    request_id : str
        The request, for messages.
    rule : str or AllowLossy
        The rule, as `rule_for` names it.
    draft : Draft or TreeDraft
        The drafts that were scored.
    params : SamplingParams
        The policy.
    history : History
        Committed tokens.
    coins : RoundCoins
        The coins of the round.
    constraint : Constraint, optional
        The grammar of the request.
    first_row : int
        Logits row after the committed text; draft or node ``n`` has row
        ``first_row + 1 + n``.
    reached : Reached, optional
        Filled with the probabilities that decided, where the row is traced. It changes no
        decision.
    """

    request_id: str
    rule: str | AllowLossy
    draft: Draft | TreeDraft
    params: SamplingParams
    history: History
    coins: RoundCoins
    constraint: Constraint | None = None
    first_row: int = 0
    reached: Reached | None = None

    def drafted_before(self, node: int) -> tuple[int, ...]:
        """Return the drafted tokens down to a node, itself included; none for -1."""
        if isinstance(self.draft, TreeDraft):
            return tuple(self.draft.token_ids[n] for n in self.draft.path(node))
        return self.draft.token_ids[: node + 1]


class Executor(Protocol):
    """Judges the rows of a pass where its logits live."""

    def judge(self, rows: Sequence[VerifyRow], logits: Any) -> list[TreeVerdict | Exception]:
        """Decide every row.

        Parameters
        ----------
        rows : sequence of VerifyRow
            The rows.
        logits : array, shape (M, V)
            What `ModelBackend.forward` returned. Never written to.

        Returns
        -------
        list of TreeVerdict or Exception
            One per row, in order. The kept path of a chain is ``0 .. accepted - 1``. A
            row that cannot be judged has its error, and harms no other. Where a draft is
            kept and there is no law after it, that draft is the verdict's token, with the
            source ``"accepted"``: plain decoding commits it too, and then ends, or meets
            the error in its next step.
        """
        ...

    def logprobs(
        self, row: VerifyRow, logits: Any, node: int, token: int, top: int, *, processed: bool
    ) -> TokenLogprobs:
        """Report log probabilities at the place after a node.

        Parameters
        ----------
        row : VerifyRow
            The row.
        logits : array, shape (M, V)
            Of the same pass.
        node : int
            The token follows this node; -1 for the committed text.
        token : int
            The token that was emitted there.
        top : int
            How many best tokens to report.
        processed : bool
            Under the request's policy, in place of the model's own.

        Returns
        -------
        logprob : float
            Natural logarithm.
        best : tuple of (int, float)
            Best tokens, best first.
        """
        ...


def rule_for(rule: str | AllowLossy | None, draft: Draft | TreeDraft) -> str | AllowLossy:
    """Return the rule of a round: the one asked for, or the best exact one for the draft.

    Block verification accepts more than the token rule on sampled drafts and the same
    on deterministic ones, where the token rule is cheaper. On trees traversal stands in
    for block, recursive rejection for the token rule and the target-only walk for
    sample-match.

    Parameters
    ----------
    rule : str, AllowLossy or None
        What the request asks for; None leaves the choice.
    draft : Draft or TreeDraft
        The draft of the round.

    Returns
    -------
    str or AllowLossy
        One of ``RULES`` for a chain, of ``TREE_RULES`` for a tree.

    Raises
    ------
    ConfigError
        If the rule does not judge drafts that branch.
    """
    if not isinstance(draft, TreeDraft):
        if rule is not None:
            return rule
        return "standard" if draft.laws is None else "block"
    if isinstance(rule, AllowLossy):
        raise ConfigError(
            f"the rule {rule.name} judges chains only; expected a drafter without branches, "
            f"not {draft.proposer}"
        )
    if rule is None:
        return "target-only" if draft.child_laws is None else "traversal"
    return TREE_RULE_OF[rule]


class NumpyExecutor:
    """The definition: rules of `draftproof.verify` on laws of `draftproof.core.policy`.

    One thread at a time may use one: rows are worked on in the same memory.
    """

    def __init__(self) -> None:
        self._scratch = Scratch()

    def judge(self, rows: Sequence[VerifyRow], logits: Any) -> list[TreeVerdict | Exception]:
        """Decide every row; see `Executor.judge`."""
        return [_judge_safely(row, logits, self._scratch) for row in rows]

    def logprobs(
        self, row: VerifyRow, logits: Any, node: int, token: int, top: int, *, processed: bool
    ) -> TokenLogprobs:
        """Report log probabilities; see `Executor.logprobs`."""
        if processed:
            with np.errstate(divide="ignore"):
                scores = np.log(_law_at(row, logits, node, self._scratch).dense())
        else:
            scores = logits[row.first_row + 1 + node]
        best: tuple[tuple[int, float], ...] = ()
        if top:
            ids, values = top_logprobs(scores, top)
            best = tuple(zip(ids.tolist(), values.tolist(), strict=True))
        logprob = dict(best).get(token)
        if logprob is None:  # each call sums over the vocabulary: one is made where it will do
            logprob = float(log_softmax_at(scores, [token])[0])
        return logprob, best


def _judge_safely(
    row: VerifyRow, logits: NDArray[np.float32], scratch: Scratch
) -> TreeVerdict | Exception:
    try:
        return _judge(row, logits, scratch)
    except Exception as error:  # noqa: BLE001  a bad row must not harm its neighbours
        return error


def _judge(row: VerifyRow, logits: NDArray[np.float32], scratch: Scratch) -> TreeVerdict:
    if row.reached is None:
        return _decide(row, lambda node: _law_at(row, logits, node, scratch))
    laws: dict[int, Law] = {}

    def kept_law(node: int) -> Law:
        laws[node] = _law_at(row, logits, node, scratch)
        return laws[node]

    verdict = _decide(row, kept_law)
    # Only now: a law that nobody asked must decide as it does without a trace.
    row.reached.read(row.draft, verdict, laws)
    return verdict


def _decide(row: VerifyRow, make_law: Callable[[int], Law]) -> TreeVerdict:
    def law_at(node: int) -> Law:
        try:
            return make_law(node)
        except (ConfigError, NonFiniteLogitsError) as error:
            raise NoLawError(node, error) from error

    try:
        return _verdict(row, law_at)
    except NoLawError as missing:
        if missing.node < 0:
            raise missing.reason from None
        draft = row.draft
        chain = range(missing.node + 1)
        path = draft.path(missing.node) if isinstance(draft, TreeDraft) else tuple(chain)
        return TreeVerdict(path[:-1], draft.token_ids[missing.node], "accepted")


def _verdict(row: VerifyRow, law_at: Callable[[int], Law]) -> TreeVerdict:
    draft = row.draft
    if isinstance(draft, TreeDraft):
        if not isinstance(row.rule, str):
            raise ConfigError(f"the rule {row.rule.name} judges chains only")
        return verify_tree(row.rule, draft, law_at, row.coins)
    verdict = verify(row.rule, draft, lambda j: law_at(j - 1), row.coins)
    return TreeVerdict(tuple(range(verdict.num_accepted)), verdict.token_id, verdict.source)


def _law_at(row: VerifyRow, logits: NDArray[np.float32], node: int, scratch: Scratch) -> Law:
    """Return the target law after a node, -1 for the committed text."""
    extra = row.drafted_before(node)
    try:
        allowed = None if row.constraint is None else row.constraint.allowed(extra)
        logits_row = logits[row.first_row + 1 + node]
        # No pass runs while rows are judged, so a law may read its row later.
        return target_law(
            logits_row, row.params, row.history, extra, allowed, is_stable=True, scratch=scratch
        )
    except NonFiniteLogitsError as error:
        position = row.coins.start + len(extra)
        raise NonFiniteLogitsError(
            f"request {row.request_id}, position {position}: {error}"
        ) from error
