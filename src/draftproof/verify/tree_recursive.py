"""Recursive rejection sampling over siblings drawn without replacement.

Chen et al. (Sequoia), 2402.12374, algorithm 2; Jeon et al. (RSD), 2402.14160.
On a tree without branches it is token-by-token verification.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import TreeDraft, TreeVerdict
from draftproof.verify.sibling_laws import SiblingLaw

__all__ = ["verify_recursive"]


def verify_recursive(
    tree: TreeDraft, law_at: Callable[[int], Law], coins: RoundCoins
) -> TreeVerdict:
    """Walk down from the root; at each node try its children in order of drawing.

    Parameters
    ----------
    tree : TreeDraft
        At least one node. Deterministic children are lawful too.
    law_at : callable of int
        Target law after a node, -1 for the root; called for the kept path only.
    coins : RoundCoins
        ``accept(node)`` decides a node, ``sample(depth)`` draws what follows.

    Returns
    -------
    TreeVerdict
        The kept path and the token after it.

    Notes
    -----
    A child c is kept if u q(c) < p(c). If not, p becomes the residual (p - q)+ of
    the *current* q, and only then c is taken out of q. The other order is a bias:
    q without c is not the law that c was drawn from.
    """
    children = tree.children()
    node = -1
    path: list[int] = []
    while True:
        target = law_at(node)
        if not children[node + 1]:
            drawn = target.draw(coins.sample(len(path)))
            return TreeVerdict(tuple(path), drawn, "bonus" if path else "sampled")
        siblings = SiblingLaw(tree, node, target.vocab_size)
        for child in children[node + 1]:
            proposal, draft_prob = siblings.of(child)
            target_prob = target.prob(tree.token_ids[child])
            # Where p is at least q no coin can refuse.
            if target_prob >= draft_prob or coins.accept(child) * draft_prob < target_prob:
                path.append(child)
                node = child
                break
            target = target.residual(proposal)
            siblings.drop(child)
        else:
            return TreeVerdict(tuple(path), target.draw(coins.sample(len(path))), "recovered")
