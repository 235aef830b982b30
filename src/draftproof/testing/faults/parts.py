"""What an engine is made of, and an executor whose pieces can be exchanged one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from draftproof.backends.table import TableBackend
from draftproof.core.constraint import ConstraintFactory
from draftproof.core.law import Law
from draftproof.core.policy import target_law
from draftproof.core.protocols import Proposer
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, TreeDraft, TreeVerdict, Verdict
from draftproof.engine import EngineCore
from draftproof.verify import Executor, NumpyExecutor, VerifyRow
from draftproof.verify.allow_lossy import AllowLossy
from draftproof.verify.dispatch import verify
from draftproof.verify.tree import verify_tree

__all__ = [
    "ChainRule",
    "EngineParts",
    "LawAt",
    "LawOfRow",
    "PiecewiseExecutor",
    "TreeRule",
    "law_of_row",
]

#: Target law after a number of drafts, or after a tree node.
LawAt: TypeAlias = Callable[[int], Law]
#: As `draftproof.verify.dispatch.verify`.
ChainRule: TypeAlias = Callable[[str | AllowLossy, Draft, LawAt, RoundCoins], Verdict]
#: As `draftproof.verify.tree.verify_tree`.
TreeRule: TypeAlias = Callable[[str, TreeDraft, LawAt, RoundCoins], TreeVerdict]
#: Row, logits and node (-1 for the committed text) to the target law after the node.
LawOfRow: TypeAlias = Callable[[VerifyRow, Any, int], Law]
#: Coins of a request by seed and stream; enumeration puts branching coins here.
CoinFactory: TypeAlias = Callable[[int, int], Any]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """Everything an engine is made of; a fault exchanges one of them.

    Parameters
    ----------
    target : TableBackend
        The target model.
    proposer : Proposer
        The drafter.
    coins : callable of (int, int)
        Makes the coins of a request from its seed and stream.
    rule : str, optional
        The verification rule.
    kappa : int
        Most drafts of a round.
    eos_token_ids : frozenset of int
        Ids that end a text.
    executor : Executor
        Judges the drafts.
    constraints : ConstraintFactory, optional
        Makes the state of a grammar.
    core : callable
        Makes the engine; a subclass where the fault is in what the engine commits.
    """

    target: TableBackend
    proposer: Proposer
    coins: CoinFactory
    rule: str | None
    kappa: int
    eos_token_ids: frozenset[int] = frozenset()
    executor: Executor = field(default_factory=NumpyExecutor)
    constraints: ConstraintFactory | None = None
    core: Callable[..., EngineCore] = EngineCore

    def build(self) -> EngineCore:
        """Return an engine of these parts."""
        return self.core(
            self.target,
            proposers=[self.proposer],
            kappa=self.kappa,
            rule=self.rule,
            constraints=self.constraints,
            executor=self.executor,
            eos_token_ids=self.eos_token_ids,
            coin_source=self.coins,
        )


def law_of_row(row: VerifyRow, logits: Any, node: int) -> Law:
    """Return the right target law after a node of a row.

    Parameters
    ----------
    row : VerifyRow
        The row.
    logits : ndarray of float32, shape (M, V)
        Of the pass.
    node : int
        The node; -1 for the committed text.

    Returns
    -------
    Law
        Under the policy, the history and the grammar of that very position.
    """
    extra = row.drafted_before(node)
    allowed = None if row.constraint is None else row.constraint.allowed(extra)
    return target_law(logits[row.first_row + 1 + node], row.params, row.history, extra, allowed)


class PiecewiseExecutor(NumpyExecutor):
    """The numpy executor, written so that each piece can be exchanged.

    Parameters
    ----------
    chain : callable, optional
        The rule for chains.
    tree : callable, optional
        The rule for trees.
    law : callable, optional
        The law of a position.
    rows : callable of sequence of VerifyRow, optional
        What happens to the rows of a pass before they are judged.
    """

    def __init__(
        self,
        *,
        chain: ChainRule = verify,
        tree: TreeRule = verify_tree,
        law: LawOfRow = law_of_row,
        rows: Callable[[Sequence[VerifyRow]], Sequence[VerifyRow]] = lambda rows: rows,
    ) -> None:
        super().__init__()
        self._chain = chain
        self._tree = tree
        self._law = law
        self._rows = rows

    def judge(self, rows: Sequence[VerifyRow], logits: Any) -> list[TreeVerdict | Exception]:
        """Decide every row.

        Parameters
        ----------
        rows : sequence of VerifyRow
            The rows.
        logits : ndarray of float32, shape (M, V)
            Of the pass.

        Returns
        -------
        list of TreeVerdict or Exception
            One per row.
        """
        return [self.judge_one(row, logits) for row in self._rows(rows)]

    def judge_one(self, row: VerifyRow, logits: Any) -> TreeVerdict:
        """Decide one row.

        Parameters
        ----------
        row : VerifyRow
            The row.
        logits : ndarray of float32, shape (M, V)
            Of the pass.

        Returns
        -------
        TreeVerdict
            The verdict.
        """
        law_at = partial(self._law, row, logits)
        draft = row.draft
        if isinstance(draft, TreeDraft):
            assert isinstance(row.rule, str)  # the engine refuses lossy rules for trees
            return self._tree(row.rule, draft, law_at, row.coins)
        verdict = self._chain(row.rule, draft, lambda j: law_at(j - 1), row.coins)
        return TreeVerdict(tuple(range(verdict.num_accepted)), verdict.token_id, verdict.source)
