"""Draw siblings without replacement, and grow trees that remember how they were drawn."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core.base_law import Law
from draftproof.core.law import OneHotLaw
from draftproof.core.rng import RoundCoins
from draftproof.core.types import TreeDraft
from draftproof.errors import InvariantError

__all__ = ["TreeBuilder", "draw_siblings", "law_without"]


def law_without(law: Law, token: int) -> Law | None:
    """Return a law without one of its tokens, normalised.

    Parameters
    ----------
    law : Law
        The law q.
    token : int
        The token that was drawn.

    Returns
    -------
    Law or None
        The law of the next draw without replacement; None when nothing is left.
    """
    mass, rest = law.residual_with_mass(OneHotLaw(token, law.vocab_size))
    return rest if mass > 0 else None


def draw_siblings(law: Law, count: int, coins: RoundCoins, first_node: int) -> tuple[int, ...]:
    """Draw distinct tokens one after the other.

    Parameters
    ----------
    law : Law
        The law q of the first draw; later ones come from q without what was drawn.
    count : int
        Most tokens to draw.
    coins : RoundCoins
        ``draft(first_node + j)`` draws token ``j``.
    first_node : int
        Number of the first sibling in its tree.

    Returns
    -------
    tuple of int
        In order of drawing, which must be kept. Shorter than ``count`` when the law
        has fewer possible tokens.
    """
    tokens: list[int] = []
    rest: Law | None = law
    while rest is not None and len(tokens) < count:
        tokens.append(rest.draw(coins.draft(first_node + len(tokens))))
        if len(tokens) < count:
            rest = law_without(rest, tokens[-1])
    return tuple(tokens)


class TreeBuilder:
    """Collects the nodes of one tree with all that exact verification needs.

    Parameters
    ----------
    proposer : str
        Name of the drafter.
    given : TreeDraft, optional
        Nodes that another drafter has drafted, which come first as they are.
    """

    __slots__ = ("_laws", "_parents", "_tokens", "proposer")

    def __init__(self, proposer: str, given: TreeDraft | None = None) -> None:
        given = TreeDraft() if given is None else given
        self.proposer = proposer
        self._tokens: list[int] = list(given.token_ids)
        self._parents: list[int] = list(given.parents)
        self._laws: list[Law | None] = list(given.child_laws or (None,) * (len(given) + 1))

    def __len__(self) -> int:
        """Return the number of nodes so far."""
        return len(self._tokens)

    def sample(self, parent: int, law: Law, count: int, coins: RoundCoins) -> tuple[int, ...]:
        """Draw children of a node without replacement.

        Parameters
        ----------
        parent : int
            Number of the node, -1 for the root; it has no children yet.
        law : Law
            The law to draw from.
        count : int
            Most children.
        coins : RoundCoins
            The coins of the round.

        Returns
        -------
        tuple of int
            Numbers of the new nodes, in order of drawing.

        Raises
        ------
        InvariantError
            If the node has children already: a second call would draw from the
            full law again.
        """
        self._refuse_second(parent)
        tokens = draw_siblings(law, count, coins, len(self))
        if tokens:
            self._laws[parent + 1] = law
        return self._append(parent, tokens)

    def fix(self, parent: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """Add deterministic children to a node.

        Parameters
        ----------
        parent : int
            Number of the node, -1 for the root; it has no children yet.
        tokens : sequence of int
            Candidates, best first; repeated ones are merged.

        Returns
        -------
        tuple of int
            Numbers of the new nodes.

        Raises
        ------
        InvariantError
            If the node has children already.
        """
        self._refuse_second(parent)
        return self._append(parent, tuple(dict.fromkeys(tokens)))

    def token(self, node: int) -> int:
        """Return the token of a node."""
        return self._tokens[node]

    def build(self) -> TreeDraft:
        """Return the tree."""
        return TreeDraft(
            tuple(self._tokens), tuple(self._parents), tuple(self._laws), self.proposer
        )

    def _refuse_second(self, parent: int) -> None:
        if parent in self._parents:
            raise InvariantError(f"node {parent} of {self.proposer} has children already")

    def _append(self, parent: int, tokens: tuple[int, ...]) -> tuple[int, ...]:
        first = len(self)
        self._tokens.extend(tokens)
        self._parents.extend([parent] * len(tokens))
        self._laws.extend([None] * len(tokens))
        return tuple(range(first, len(self)))
