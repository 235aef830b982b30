"""What the proposer kit asks of a draft, be it a chain or a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from draftproof.core.law import Law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.siblings import law_without
from draftproof.core.types import Draft, TreeDraft

__all__ = ["AnyDraft", "certain_paths", "difference", "kept_tokens", "laws_of", "redrawn"]

AnyDraft: TypeAlias = Draft | TreeDraft


def as_tree(draft: AnyDraft) -> TreeDraft:
    """Return a draft as a tree.

    Parameters
    ----------
    draft : Draft or TreeDraft
        The draft.

    Returns
    -------
    TreeDraft
        The same nodes and laws.
    """
    return draft if isinstance(draft, TreeDraft) else TreeDraft.from_chain(draft)


def laws_of(draft: AnyDraft) -> tuple[Law, ...]:
    """Return the laws that drafts were drawn from, root first.

    Parameters
    ----------
    draft : Draft or TreeDraft
        The draft.

    Returns
    -------
    tuple of Law
        Empty when all of it is deterministic.
    """
    return tuple(law for law in as_tree(draft).child_laws or () if law is not None)


def certain_paths(draft: AnyDraft) -> frozenset[tuple[int, ...]]:
    """Return the texts that no coin took part in.

    Parameters
    ----------
    draft : Draft or TreeDraft
        The draft.

    Returns
    -------
    frozenset of tuple of int
        The tokens to each node that is deterministic, as are all above it.
    """
    tree = as_tree(draft)
    certain: dict[int, tuple[int, ...]] = {-1: ()}
    for node, parent in enumerate(tree.parents):
        if parent in certain and tree.child_law(parent) is None:
            certain[node] = (*certain[parent], tree.token_ids[node])
    return frozenset(certain.values())


def kept_tokens(draft: AnyDraft, count: int) -> tuple[int, ...]:
    """Return what a verifier might keep.

    Parameters
    ----------
    draft : Draft or TreeDraft
        The draft.
    count : int
        Most tokens.

    Returns
    -------
    tuple of int
        The beginning of a chain, or of a path of a tree that leaves the first branch
        where ``count`` is odd.
    """
    tree = as_tree(draft)
    if not tree.token_ids:
        return ()
    leaves = sorted(set(range(len(tree))) - set(tree.parents))
    leaf = leaves[-1 if count % 2 else 0]
    return tuple(tree.token_ids[node] for node in tree.path(leaf)[:count])


def redrawn(request: ProposalRequest, draft: AnyDraft) -> Iterator[tuple[int, int, int]]:
    """Draw every sampled draft again from the law that is recorded for it.

    Parameters
    ----------
    request : ProposalRequest
        What the drafter was told; its coins draw.
    draft : Draft or TreeDraft
        What it returned.

    Yields
    ------
    tuple of (int, int, int)
        Number of the draft, its token, and what its law gives for the same coin; -1
        where the law gives its token no mass, or has nothing left to give.
    """
    tree = as_tree(draft)
    for parent, nodes in enumerate(tree.children(), -1):
        left = tree.child_law(parent)
        if left is None:
            continue
        depth = len(tree.path(parent))
        for node in nodes:
            token = tree.token_ids[node]
            if left is None or not left.prob(token) > 0:
                yield node, token, -1
                break
            if request.coupled:
                yield node, token, left.race(request.coins.noise(depth, left.vocab_size))
            else:
                yield node, token, left.draw(request.coins.draft(node))
            left = law_without(left, token)


def difference(found: AnyDraft, expected: AnyDraft) -> str:
    """Say how two drafts differ, but for the numbers in their laws.

    Parameters
    ----------
    found : Draft or TreeDraft
        One draft.
    expected : Draft or TreeDraft
        The other.

    Returns
    -------
    str
        Empty when they do not.
    """
    mine, other = as_tree(found), as_tree(expected)
    if (mine.token_ids, mine.parents) != (other.token_ids, other.parents):
        return (
            f"drafts {mine.token_ids} below {mine.parents}, not the {other.token_ids} below "
            f"{other.parents}"
        )
    sampled = [
        tuple(tree.child_law(node) is not None for node in range(-1, len(tree)))
        for tree in (mine, other)
    ]
    if sampled[0] != sampled[1]:
        return f"drafts with laws at {sampled[0]}, not at {sampled[1]} as those"
    return ""
