"""Walks that emit the target's own tokens and follow the tree while it holds them.

The target-only walk of SGLang and of EAGLE-2 (2406.16858) for deterministic
candidates, and its seed-identical form over shared noise (2408.07978).
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import TreeDraft, TreeVerdict
from draftproof.verify.coupled import race_token

__all__ = ["verify_coupled_tree", "verify_target_only"]


def verify_target_only(
    tree: TreeDraft, law_at: Callable[[int], Law], coins: RoundCoins
) -> TreeVerdict:
    """Draw from the target and follow the child that holds the draw.

    Parameters
    ----------
    tree : TreeDraft
        At least one node. The tree must not depend on the ``sample`` coins; how
        siblings were chosen, ranked or pruned does not matter.
    law_at : callable of int
        Target law after a node, -1 for the root; called for the kept path only.
    coins : RoundCoins
        ``sample(depth)`` draws the token at that depth, so the text is the same as
        plain decoding with the same coins.

    Returns
    -------
    TreeVerdict
        The kept path and the token after it.

    Notes
    -----
    A node's children are kept with the total target probability of their tokens,
    the most that any rule reaches for deterministic candidates. Engines write the
    same walk as ``u < p(c_1) + ... + p(c_j)`` over the candidates in order: that is
    the cumulative draw with the candidates first, and it breaks when a candidate is
    listed twice. Here nothing is summed and `TreeDraft` holds no repeated sibling.
    """

    def draw(law: Law, depth: int) -> int:
        return law.draw(0.0) if law.is_one_hot else law.draw(coins.sample(depth))

    return _walk(tree, law_at, draw)


def verify_coupled_tree(
    tree: TreeDraft, law_at: Callable[[int], Law], coins: RoundCoins
) -> TreeVerdict:
    """Follow the winners of the target's races over the shared noise.

    Parameters
    ----------
    tree : TreeDraft
        At least one node. A drafter that adds its own winner of each race agrees most
        often; any tree is lawful.
    law_at : callable of int
        Target law after a node, -1 for the root; called for the kept path only.
    coins : RoundCoins
        ``noise(depth, V)`` belongs to the absolute position.

    Returns
    -------
    TreeVerdict
        The kept path and the token after it, the same text as without drafts.
    """
    return _walk(tree, law_at, lambda law, depth: race_token(law, coins, depth))


def _walk(
    tree: TreeDraft, law_at: Callable[[int], Law], choose: Callable[[Law, int], int]
) -> TreeVerdict:
    node_of = {
        (parent, token): node
        for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True))
    }
    inner = set(tree.parents)
    node = -1
    path: list[int] = []
    while True:
        token = choose(law_at(node), len(path))
        child = node_of.get((node, token))
        if child is None:
            if node in inner:
                return TreeVerdict(tuple(path), token, "recovered")
            return TreeVerdict(tuple(path), token, "bonus" if path else "sampled")
        path.append(child)
        node = child
