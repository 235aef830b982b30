"""Faults of drafts that branch: order, laws of siblings, masks, and the kept path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from draftproof.backends.table import PagedStore, TableBackend
from draftproof.core.law import Law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import RoundCoins
from draftproof.core.siblings import law_without
from draftproof.core.types import TreeDraft, TreeVerdict
from draftproof.testing.faults.bent import law_of
from draftproof.testing.faults.drafter import TreeDrafter
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import EngineParts, LawAt, PiecewiseExecutor, TreeRule
from draftproof.testing.faults.scenes import SCENES
from draftproof.verify.tree import verify_tree

__all__ = ["TREE_FAULTS", "recursive_rule", "trees_judged_by"]


def trees_judged_by(tree: TreeRule) -> Callable[[EngineParts], EngineParts]:
    """Return the defect that puts another tree rule in the place of the right one.

    Parameters
    ----------
    tree : callable
        As `draftproof.verify.tree.verify_tree`.

    Returns
    -------
    callable of EngineParts
        The defect.
    """
    return lambda parts: replace(parts, executor=PiecewiseExecutor(tree=tree))


def _relabelled(rule: str, tree: TreeDraft, law_at: LawAt, coins: RoundCoins) -> TreeVerdict:
    """Judge the two siblings below the root by falling confidence."""
    law = tree.child_law(-1)
    is_pair = tree.parents[:2] == (-1, -1) and law is not None
    if not is_pair or law.prob(tree.token_ids[0]) >= law.prob(tree.token_ids[1]):  # type: ignore[union-attr]
        return verify_tree(rule, tree, law_at, coins)
    swap = {0: 1, 1: 0}
    order = [swap.get(node, node) for node in range(len(tree))]
    assert tree.child_laws is not None  # sampled
    turned = replace(
        tree,
        token_ids=tuple(tree.token_ids[node] for node in order),
        parents=tuple(swap.get(tree.parents[node], tree.parents[node]) for node in order),
        child_laws=(tree.child_laws[0], *(tree.child_laws[1 + node] for node in order)),
    )
    verdict = verify_tree(rule, turned, lambda node: law_at(swap.get(node, node)), coins)
    return replace(verdict, path=tuple(swap.get(node, node) for node in verdict.path))


def recursive_rule(*, drop: str = "after") -> TreeRule:
    """Return recursive rejection in which a rejected token leaves q at a chosen time.

    Parameters
    ----------
    drop : {"after", "before", "never"}
        When, seen from the moment q leaves p; "after" is right.

    Returns
    -------
    callable
        The rule.
    """

    def rule(_: str, tree: TreeDraft, law_at: LawAt, coins: RoundCoins) -> TreeVerdict:
        children, node = tree.children(), -1
        path: list[int] = []
        while True:
            p, q = law_at(node), tree.child_law(node)
            kept = None
            for child in children[node + 1]:
                assert q is not None  # sampled
                token = tree.token_ids[child]
                if coins.accept(child) * q.prob(token) < p.prob(token):
                    kept = child
                    break
                if drop == "before":
                    q = law_without(q, token) or q
                p = p.residual(q)
                if drop == "after":
                    q = law_without(q, token) or q
            if kept is None:
                return TreeVerdict(tuple(path), p.draw(coins.sample(len(path))), "recovered")
            path.append(kept)
            node = kept

    return rule


def _by_index(rule: str, tree: TreeDraft, law_at: LawAt, coins: RoundCoins) -> TreeVerdict:
    return verify_tree(rule, tree, lambda node: law_at(max(node - 1, -1)), coins)


def _traversal_forgets(_: str, tree: TreeDraft, law_at: LawAt, coins: RoundCoins) -> TreeVerdict:
    """Visit each sibling with the weight and the law from before the one that failed."""
    children = tree.children()

    def visit(node: int, weight: float, path: tuple[int, ...]) -> TreeVerdict | None:
        p: Law = law_at(node)
        q = tree.child_law(node)
        for child in children[node + 1]:
            assert q is not None  # sampled
            below = min(1.0, weight * p.prob(tree.token_ids[child]) / q.prob(tree.token_ids[child]))
            verdict = visit(child, below, (*path, child)) if below > 0 else None
            if verdict is not None:
                return verdict
        if node >= 0 and not coins.accept(node) < weight:
            return None
        law = p.residual(q, weight) if q is not None and children[node + 1] else p
        return TreeVerdict(path, law.draw(coins.sample(len(path))), "recovered")

    verdict = visit(-1, 1.0, ())
    assert verdict is not None  # the root is always kept
    return verdict


def _listed_twice(_: str, tree: TreeDraft, law_at: LawAt, coins: RoundCoins) -> TreeVerdict:
    """Walk by sums over the candidates, the first of which is listed twice."""
    children, node = tree.children(), -1
    path: list[int] = []
    while True:
        p = law_at(node)
        listed = [*children[node + 1][:1], *children[node + 1]]
        reached, kept = 0.0, None
        coin = coins.accept(len(path)) if listed else None
        for child in listed:
            reached += p.prob(tree.token_ids[child])
            if coin is not None and coin < reached:
                kept = child
                break
        if kept is None:
            probs = p.dense()
            probs[[tree.token_ids[child] for child in listed]] = 0.0
            rest = law_of(probs, p)
            return TreeVerdict(tuple(path), rest.draw(coins.sample(len(path))), "recovered")
        path.append(kept)
        node = kept


class _Pruning(TreeDrafter):
    """Withholds the less confident of two siblings after both were drawn."""

    def tree(self, request: ProposalRequest) -> TreeDraft:
        drawn = super().tree(request)
        law = drawn.child_law(-1)
        if law is None or drawn.parents[:2] != (-1, -1):
            return drawn
        best = max(0, 1, key=lambda node: law.prob(drawn.token_ids[node]))
        return TreeDraft(drawn.token_ids[best : best + 1], (-1,), (law, None), self.name)


def _pruned(parts: EngineParts) -> EngineParts:
    assert isinstance(parts.proposer, TreeDrafter)
    return replace(parts, proposer=_Pruning(parts.proposer.table, parts.proposer.width))


def _memory(**options: Any) -> Callable[[EngineParts], EngineParts]:
    return lambda parts: replace(
        parts, target=TableBackend(parts.target.table, PagedStore(**options))
    )


def _passes(**options: Any) -> Callable[[EngineParts], EngineParts]:
    return lambda parts: replace(parts, target=TableBackend(parts.target.table, **options))


_TREE = SCENES["tree"]
_tree_fault = partial(EngineFault, where="tree", scene=_TREE)

#: Faults of drafts that branch.
TREE_FAULTS: tuple[EngineFault, ...] = (
    _tree_fault(
        "siblings sorted by confidence", plant=trees_judged_by(_relabelled),
        description="siblings are judged in another order than they were drawn in",
    ),
    _tree_fault(
        "q zeroed before the residual", plant=trees_judged_by(recursive_rule(drop="before")),
        description="the rejected token leaves q before q leaves p",
    ),
    EngineFault(
        "siblings judged as with replacement", "tree", SCENES["wide tree"],
        trees_judged_by(recursive_rule(drop="never")), "the rejected token never leaves q",
    ),
    _tree_fault(
        "siblings pruned after the draw", plant=_pruned,
        description="the less confident sibling is withheld",
    ),
    _tree_fault(
        "laws of the node before", plant=trees_judged_by(_by_index),
        description="off by one: the law after a node is read from the row before it",
    ),
    _tree_fault(
        "candidate listed twice", plant=trees_judged_by(_listed_twice),
        description="a walk by sums counts the first candidate twice",
    ),
    EngineFault(
        "path left in place", "tree", SCENES["kept path"], _memory(keep_fault="stays-in-place"),
        "the accepted path is not moved: the first slots stay, whatever was accepted",
    ),
    _tree_fault(
        "siblings seen", plant=_passes(tree_fault="sees-siblings"),
        description="the mask lets a node see the siblings of its ancestors",
    ),
    EngineFault(
        "nodes positioned by index", "tree", SCENES["tree of positions"],
        _passes(tree_fault="index-positions"),
        "a node's position is its number, not its depth", case="TR-1",
    ),
    EngineFault(
        "traversal forgets rejected siblings", "tree", SCENES["traversal"],
        trees_judged_by(_traversal_forgets),
        "weight and residual are those of the first sibling for all",
    ),
)  # fmt: skip
