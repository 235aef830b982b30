"""Dispatch of the rules for drafts that branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import TreeDraft, TreeVerdict
from draftproof.errors import ConfigError, InvariantError
from draftproof.verify.tree_recursive import verify_recursive
from draftproof.verify.tree_traversal import verify_traversal
from draftproof.verify.tree_walk import verify_coupled_tree, verify_target_only

__all__ = ["TREE_RULES", "TREE_RULE_OF", "verify_tree"]

#: Names of the tree rules: recursive rejection (2402.12374, 2402.14160), traversal
#: (2505.12398), target-only walk (2406.16858), shared noise (2408.07978).
TREE_RULES = ("recursive", "traversal", "target-only", "coupled")

#: The tree rule that does on trees what a chain rule does; equal to it, decision by
#: decision on the same coins, where the tree has no branches.
TREE_RULE_OF: Mapping[str, str] = MappingProxyType(
    {
        "standard": "recursive",
        "block": "traversal",
        "sample-match": "target-only",
        "coupled": "coupled",
    }
)

_VERIFIERS: Mapping[str, Callable[[TreeDraft, Callable[[int], Law], RoundCoins], TreeVerdict]] = (
    MappingProxyType(
        {
            "recursive": verify_recursive,
            "traversal": verify_traversal,
            "target-only": verify_target_only,
            "coupled": verify_coupled_tree,
        }
    )
)


def verify_tree(
    rule: str, tree: TreeDraft, law_at: Callable[[int], Law], coins: RoundCoins
) -> TreeVerdict:
    """Decide one row of one round whose draft branches.

    Parameters
    ----------
    rule : str
        One of ``TREE_RULES``. All are exact in law; ``recursive`` and ``traversal``
        need the laws that sampled siblings were drawn from, the walks do not.
    tree : TreeDraft
        N drafted nodes, siblings in order of drawing. Without nodes a token is drawn
        as plain decoding draws it.
    law_at : callable of int
        ``law_at(n)`` is the target law after the path to node ``n``, and after the
        committed text for -1. Called at most once per node, and only where the rule
        gets to.
    coins : RoundCoins
        The coins of this round.

    Returns
    -------
    TreeVerdict
        The kept path and the token after it.

    Raises
    ------
    ConfigError
        If the rule is unknown.
    InvariantError
        If a node's token is negative, or has no mass under the law that the drafter
        claims to have drawn it from.
    """
    if rule not in TREE_RULES:
        raise ConfigError(f"tree rule {rule!r}: expected one of {', '.join(TREE_RULES)}")
    if tree.token_ids and min(tree.token_ids) < 0:
        raise InvariantError(f"nodes {tree.token_ids} of {tree.proposer}: expected ids >= 0")
    return _VERIFIERS[rule](tree, law_at, coins)
