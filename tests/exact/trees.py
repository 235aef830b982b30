"""Rounds whose draft is a tree, for the enumerator, and the tree rules with a piece exchanged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from enumeration import Prefix, Round, RoundFunction, TableModel

from draftproof.audit.wrong_siblings import by_confidence, sibling_round, walk_round
from draftproof.core.siblings import TreeBuilder, law_without
from draftproof.core.types import TreeDraft
from draftproof.testing.fraction_law import FractionLaw
from draftproof.verify import verify_tree

__all__ = [
    "Propose",
    "Shape",
    "best_of",
    "by_confidence",
    "depth_of",
    "fan",
    "greedy_growth_tree",
    "grown",
    "mixed_tree",
    "sampled_tree",
    "shipped_tree",
    "shipped_tree_round",
    "sibling_round",
    "size_of",
    "tokens_to",
    "top_tree",
    "traversal_round",
    "walk_round",
]

#: A shape is the tuple of the shapes below a node.
Shape = tuple[Any, ...]
Propose = Callable[[TableModel, Prefix, Any], TreeDraft]


def fan(*branching: int) -> Shape:
    """Return the shape in which every node of a depth has as many children."""
    return (fan(*branching[1:]),) * branching[0] if branching else ()


def depth_of(shape: Shape) -> int:
    return 1 + max(map(depth_of, shape)) if shape else 0


def size_of(shape: Shape) -> int:
    return sum(1 + size_of(below) for below in shape)


def tokens_to(tree: TreeDraft, node: int) -> Prefix:
    return tuple(tree.token_ids[n] for n in tree.path(node))


def grown(shape: Shape, add: Callable[[TreeBuilder, int, Prefix, int], tuple[int, ...]]):
    """Grow a shape depth by depth; ``add`` adds children to a node."""
    builder = TreeBuilder("grown")
    level: list[tuple[int, Prefix, Shape]] = [(-1, (), shape)]
    while level:
        below = []
        for node, text, wanted in level:
            nodes = add(builder, node, text, len(wanted)) if wanted else ()
            for child, shape_below in zip(nodes, wanted, strict=False):
                below.append((child, (*text, builder.token(child)), shape_below))
        level = below
    return builder.build()


def sampled_tree(shape: Shape) -> Propose:
    def propose(model: TableModel, context: Prefix, coins: Any) -> TreeDraft:
        return grown(
            shape,
            lambda builder, node, text, count: builder.sample(
                node, model.draft(context + text), count, coins
            ),
        )

    return propose


def best_of(law: FractionLaw, count: int) -> list[int]:
    return sorted(range(law.vocab_size), key=lambda t: (-law.prob(t), t))[:count]


def top_tree(shape: Shape) -> Propose:
    """Deterministic candidates: the drafter's best tokens at every node."""

    def propose(model: TableModel, context: Prefix, coins: Any) -> TreeDraft:
        return grown(
            shape,
            lambda builder, node, text, count: builder.fix(
                node, best_of(model.draft(context + text), count)
            ),
        )

    return propose


def mixed_tree(shape: Shape) -> Propose:
    """Deterministic at even depths, sampled at odd ones."""

    def propose(model: TableModel, context: Prefix, coins: Any) -> TreeDraft:
        def add(builder: TreeBuilder, node: int, text: Prefix, count: int) -> tuple[int, ...]:
            law = model.draft(context + text)
            if len(text) % 2:
                return builder.sample(node, law, count, coins)
            return builder.fix(node, best_of(law, count))

        return grown(shape, add)

    return propose


def greedy_growth_tree(model: TableModel, context: Prefix, coins: Any) -> TreeDraft:
    """Let drawn tokens decide who gets children, when, and how many.

    The likeliest node drawn so far is expanded first; a node whose token is 0 gets one
    child, another two.
    """
    builder = TreeBuilder("greedy growth")
    law = model.draft(context)
    open_nodes = [
        (-law.prob(builder.token(n)), n, (builder.token(n),))
        for n in builder.sample(-1, law, 2, coins)
    ]
    for _ in range(2):
        if not open_nodes:
            break
        open_nodes.sort()
        score, node, text = open_nodes.pop(0)
        law = model.draft(context + text)
        for child in builder.sample(node, law, 1 if text[-1] == 0 else 2, coins):
            token = builder.token(child)
            open_nodes.append((score * law.prob(token), child, (*text, token)))
    return builder.build()


def shipped_tree_round(
    rule: str, propose: Propose, model: TableModel, context: Prefix, kappa: int, coins: Any
) -> Round:
    """One round of a shipped rule; ``kappa`` is the depth that the caller looks at."""
    tree = propose(model, context, coins)
    asked: list[int] = []

    def law_at(node: int) -> Any:
        asked.append(node)
        return model.target(context + tokens_to(tree, node))

    verdict = verify_tree(rule, tree, law_at, coins)
    assert len(set(asked)) == len(asked), "a law was asked for twice"
    kept = tuple(tree.token_ids[node] for node in verdict.path)
    assert verdict.path == (tree.path(verdict.path[-1]) if verdict.path else ())
    emitted = (*kept, verdict.token_id)
    return Round(emitted, context + emitted, len(kept))


def shipped_tree(rule: str, propose: Propose) -> RoundFunction:
    return partial(shipped_tree_round, rule, propose)


# --- leaf to root, with a piece exchanged ---------------------------------------------


def traversal_round(
    propose: Propose,
    *,
    scaled: bool = True,
    lowers: bool = True,
    drops: bool = True,
    top_down: bool = False,
) -> RoundFunction:
    """Traversal verification, written out.

    ``scaled``: the residual is (a p - q)+, not (p - q)+; ``lowers``: the weight of a
    node falls with every rejected child; ``drops``: rejected tokens leave q;
    ``top_down`` asks a node's own coin before its children.
    """

    def play(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
        tree = propose(model, context, coins)
        children = tree.children()

        def visit(node: int, weight: Any) -> tuple[int, Any] | None:
            if top_down and node >= 0 and not coins.accept(node) < weight:
                return None
            p, q = model.target(context + tokens_to(tree, node)), tree.child_law(node)
            for child in children[node + 1]:
                token = tree.token_ids[child]
                found = visit(child, min(1, weight * p.prob(token) / q.prob(token)))
                if found:
                    return found
                mass, rest = p.residual_with_mass(q, weight)
                p = rest if scaled else p.residual(q)
                if lowers and weight < 1:
                    weight = mass / (mass + 1 - weight)
                q = (law_without(q, token) if drops else None) or q
            if node < 0 or top_down or coins.accept(node) < weight:
                return node, p
            return None

        node, law = visit(-1, 1)
        kept = tokens_to(tree, node)
        emitted = (*kept, law.draw(coins.sample(len(kept))))
        return Round(emitted, context + emitted, len(kept))

    return play
