"""A drafter that is a table, with the pieces that drafters get wrong kept apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from draftproof.backends.table import ProbabilityTable
from draftproof.core.law import Law
from draftproof.core.policy import target_law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.siblings import TreeBuilder
from draftproof.core.types import Draft, TreeDraft

__all__ = ["Pick", "TableDrafter", "TreeDrafter", "draft_law_after", "right_pick"]

#: Draws draft ``i`` of a round from a law with the coins of the round.
Pick: TypeAlias = Callable[[Law, Any, int], int]


def right_pick(law: Law, coins: Any, i: int) -> int:
    """Draw with the coin that belongs to the draft.

    Parameters
    ----------
    law : Law
        The draft law.
    coins : RoundCoins
        The coins of the round.
    i : int
        Number of the draft.

    Returns
    -------
    int
        The token.
    """
    return law.draw(coins.draft(i))


def draft_law_after(
    table: ProbabilityTable, request: ProposalRequest, drafted: Sequence[int], shift: int = 0
) -> Law:
    """Return the draft law after some drafts, under the policy of the request.

    Parameters
    ----------
    table : ProbabilityTable
        The draft model.
    request : ProposalRequest
        The row.
    drafted : sequence of int
        Drafts so far.
    shift : int, default 0
        Added to the positions: a fault of drafters.

    Returns
    -------
    Law
        The law to draw the next draft from.
    """
    context = np.array([*request.token_ids, *drafted], dtype=np.int64)
    positions = np.arange(shift, shift + len(context), dtype=np.int64)
    with np.errstate(divide="ignore"):
        logits = np.log(table.probs(context, positions)).astype(np.float32)
    return target_law(logits, request.params, request.history, drafted)


class TableDrafter:
    """Draws a chain from a table; reports for each draft the law it was drawn from.

    Parameters
    ----------
    table : ProbabilityTable
        The draft model.
    drawn : callable of Law, optional
        The law that is drawn from, made from the table's.
    reported : callable of Law, optional
        The law that is reported, made from the table's.
    pick : callable, optional
        How a draft is drawn.
    length : callable of (sequence of Law, sequence of int), optional
        How many drafts are kept, given their laws and tokens; all when not given.
    shift : int, default 0
        Added to the positions the draft model sees.
    name : str, default "table"
        Name used in records.
    """

    def __init__(
        self,
        table: ProbabilityTable,
        *,
        drawn: Callable[[Law], Law] = lambda law: law,
        reported: Callable[[Law], Law] | None = None,
        pick: Pick = right_pick,
        length: Callable[[Sequence[Law], Sequence[int]], int] = lambda _laws, tokens: len(tokens),
        shift: int = 0,
        name: str = "table",
    ) -> None:
        self.table = table
        self.name = name
        self._drawn = drawn
        self._reported = reported or drawn
        self._pick = pick
        self._length = length
        self._shift = shift

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows.

        Returns
        -------
        list of Draft
            One chain per row.
        """
        return [self._draft(request) for request in requests]

    def release(self, request_id: str) -> None:
        """Forget a request; nothing is kept.

        Parameters
        ----------
        request_id : str
            Any name.
        """

    def _draft(self, request: ProposalRequest) -> Draft:
        tokens: list[int] = []
        laws: list[Law] = []
        for i in range(request.kappa):
            law = draft_law_after(self.table, request, tokens, self._shift)
            drawn = self._drawn(law)
            if request.coupled:
                tokens.append(drawn.race(request.coins.noise(i, law.vocab_size)))
            else:
                tokens.append(self._pick(drawn, request.coins, i))
            laws.append(self._reported(law))
        kept = self._length(laws, tokens)
        return Draft(tuple(tokens[:kept]), tuple(laws[:kept]), self.name)


class TreeDrafter:
    """Draws siblings below the root, and one child of each where there is room.

    Parameters
    ----------
    table : ProbabilityTable
        The draft model.
    width : int, default 2
        Siblings below the root.
    """

    name = "tree"

    def __init__(self, table: ProbabilityTable, width: int = 2) -> None:
        self.table = table
        self.width = width

    def propose(self, requests: Sequence[ProposalRequest]) -> list[TreeDraft]:
        """Draft for all rows.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows.

        Returns
        -------
        list of TreeDraft
            One tree per row.
        """
        return [self.tree(request) for request in requests]

    def release(self, request_id: str) -> None:
        """Forget a request; nothing is kept.

        Parameters
        ----------
        request_id : str
            Any name.
        """

    def tree(self, request: ProposalRequest) -> TreeDraft:
        """Draw one tree.

        Parameters
        ----------
        request : ProposalRequest
            The row.

        Returns
        -------
        TreeDraft
            At most ``kappa`` nodes.
        """
        builder = TreeBuilder(self.name)
        width = min(self.width, request.kappa)
        law = draft_law_after(self.table, request, ())
        for node in builder.sample(-1, law, width, request.coins):
            if len(builder) < request.kappa:
                below = draft_law_after(self.table, request, [builder.token(node)])
                builder.sample(node, below, 1, request.coins)
        return builder.build()
