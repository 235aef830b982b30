"""Traversal verification: a tree is judged from its leaves to its root.

Weng et al., 2505.12398. On a tree without branches it is block verification, to the
bit and on the same coins; it never keeps fewer nodes in expectation than recursive
rejection.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import TreeDraft, TreeVerdict
from draftproof.verify.no_law import NoLawError
from draftproof.verify.sibling_laws import SiblingLaw

__all__ = ["verify_traversal"]


def verify_traversal(
    tree: TreeDraft, law_at: Callable[[int], Law], coins: RoundCoins
) -> TreeVerdict:
    """Keep the first node, leaves before parents, whose own coin says yes.

    Parameters
    ----------
    tree : TreeDraft
        At least one node. Deterministic children are lawful too.
    law_at : callable of int
        Target law after a node, -1 for the root. Called at most once per node: for a
        node with children when it is entered, for a leaf only if it is kept, and
        never below a node that the target cannot reach.
    coins : RoundCoins
        ``accept(node)`` decides a node, ``sample(depth)`` draws what follows.

    Returns
    -------
    TreeVerdict
        The kept path and the token after it.

    Notes
    -----
    A node v is entered with weight a = min(1, a_parent p(v) / q(v)), the root with 1.
    Its children are visited in order of drawing. After each one that was rejected
    with all below it,

        R = sum (a p - q)+,   p <- (a p - q)+ / R,   a <- R / (R + 1 - a),

    and the child's token leaves q. At last v is kept with probability a, and the
    token after it comes from the p that is left. The weight never rises, so where
    the coin of v is not below it after the last child but one, nothing is summed
    for the last child.

    Given v and all nodes drawn before the ones below it, v or a node below it is kept
    with probability a as it was entered, whatever hangs below v. So which nodes are
    given children may depend on any node drawn before.
    """
    return _Traversal(tree, law_at, coins).run()


class _Traversal:
    """One traversal: what all visits share."""

    __slots__ = ("_children", "_coins", "_law_at", "_tree")

    def __init__(self, tree: TreeDraft, law_at: Callable[[int], Law], coins: RoundCoins) -> None:
        self._tree = tree
        self._law_at = law_at
        self._coins = coins
        self._children = tree.children()

    def run(self) -> TreeVerdict:
        verdict = self._visit(-1, 1, ())
        if verdict is None:  # pragma: no cover - the root's weight stays 1
            raise AssertionError("the root was not kept")
        return verdict

    def _visit(self, node: int, weight: float, path: tuple[int, ...]) -> TreeVerdict | None:
        """Return the verdict if this node or one below it is kept."""
        children = self._children[node + 1]
        if not children:
            if not self._keeps(node, weight):
                return None
            drawn = self._law_at(node).draw(self._coins.sample(len(path)))
            return TreeVerdict(path, drawn, "bonus" if path else "sampled")
        try:
            target = self._law_at(node)
        except NoLawError:
            # A leaf then: whether there is a law depends on the path down to here alone.
            if not self._keeps(node, weight):
                return None
            raise
        siblings = SiblingLaw(self._tree, node, target.vocab_size)
        for child in children:
            proposal, draft_prob = siblings.of(child)
            ratio = target.prob(self._tree.token_ids[child]) / draft_prob
            below = min(1, weight * ratio)
            if below > 0:
                verdict = self._visit(child, below, (*path, child))
                if verdict is not None:
                    return verdict
            if child == children[-1] and not self._keeps(node, weight):
                return None
            mass, target = target.residual_with_mass(proposal, weight)
            if weight < 1:
                weight = mass / (mass + (1 - weight))
                if not weight > 0:
                    return None
            if child != children[-1]:
                siblings.drop(child)
        if not self._keeps(node, weight):
            return None
        return TreeVerdict(path, target.draw(self._coins.sample(len(path))), "recovered")

    def _keeps(self, node: int, weight: float) -> bool:
        # A weight of 1 needs no coin; the root has none.
        return weight >= 1 or self._coins.accept(node) < weight
