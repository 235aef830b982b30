"""Drafts that branch, and what verification decides about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from draftproof.errors import InvariantError

if TYPE_CHECKING:
    from draftproof.core.law import Law
    from draftproof.core.types import Draft, TokenSource

__all__ = ["TreeDraft", "TreeVerdict"]


@dataclass(frozen=True, slots=True)
class TreeDraft:
    """Drafted tokens of one row that branch, and the laws they were really drawn from.

    Nodes are numbered in the order in which they were drawn, across the whole tree.
    The committed text is the root and has the number -1. The children of a node
    are its siblings-to-be in rising number: the order of drawing is part of the law
    and must not be changed, for example by sorting siblings by confidence.

    Parameters
    ----------
    token_ids : tuple of int, length N
        Token of each node.
    parents : tuple of int, length N
        Number of each node's parent, smaller than its own; -1 for the root.
    child_laws : tuple of Law or None, length N + 1, optional
        Entry ``n + 1`` is the law q that the children of node ``n`` were drawn from
        without replacement: the first from q, each later one from q without the
        siblings before it, normalised. An entry of None says that the children are
        deterministic, or that there are none. None in place of the tuple says so of
        all nodes. How many children a node gets, and which node gets some next,
        may depend on everything drawn before, but no drawn node may be left out.
    proposer : str
        Name of the drafter.
    note : str
        Why nothing was proposed, when there is a reason worth telling.
    sources : tuple of str, length N, optional
        Which part of a mixed drafter made each node; None says ``proposer`` made all.

    Raises
    ------
    InvariantError
        If lengths differ, a parent does not come before its child, or two siblings
        hold the same token. Drawing without replacement cannot repeat one, and among
        deterministic candidates a repeated one would be judged twice: merge them,
        as `TreeDraft.from_paths` does.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    child_laws: tuple[Law | None, ...] | None = None
    proposer: str = "none"
    note: str = ""
    sources: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what is no tree, and siblings that repeat a token."""
        count = len(self.token_ids)
        if self.sources is not None and len(self.sources) != count:
            msg = f"{len(self.sources)} sources for {count} nodes of {self.proposer}"
            raise InvariantError(msg)
        num_laws = count + 1 if self.child_laws is None else len(self.child_laws)
        if len(self.parents) != count or num_laws != count + 1:
            msg = (
                f"{count} nodes with {len(self.parents)} parents and {num_laws} laws from "
                f"{self.proposer}: expected one parent each and one law more"
            )
            raise InvariantError(msg)
        places: set[tuple[int, int]] = set()
        for node, (parent, token) in enumerate(zip(self.parents, self.token_ids, strict=True)):
            if not -1 <= parent < node:
                msg = f"node {node} of {self.proposer} has parent {parent}: expected -1..{node - 1}"
                raise InvariantError(msg)
            if (parent, token) in places:
                msg = f"node {node} of {self.proposer} repeats token {token} below node {parent}"
                raise InvariantError(msg)
            places.add((parent, token))

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]], proposer: str = "none") -> TreeDraft:
        """Merge deterministic candidate texts that share prefixes into one tree.

        Parameters
        ----------
        paths : sequence of sequence of int
            Candidate continuations, best first. They must not have been drawn at
            random from a law that the verifier shall divide by.
        proposer : str
            Name of the drafter.

        Returns
        -------
        TreeDraft
            Every distinct prefix once, numbered in order of first appearance.
        """
        node_of: dict[tuple[int, int], int] = {}
        for path in paths:
            parent = -1
            for token in path:
                parent = node_of.setdefault((parent, token), len(node_of))
        parents = tuple(parent for parent, _ in node_of)
        return cls(tuple(token for _, token in node_of), parents, None, proposer)

    @classmethod
    def from_chain(cls, draft: Draft) -> TreeDraft:
        """Return the tree without branches that holds the same drafts and laws."""
        laws = None if draft.laws is None else (*draft.laws, None)
        parents = tuple(range(-1, len(draft) - 1))
        return cls(draft.token_ids, parents, laws, draft.proposer, draft.note, draft.sources)

    def __len__(self) -> int:
        """Return the number of nodes N."""
        return len(self.token_ids)

    def children(self) -> tuple[tuple[int, ...], ...]:
        """Return the children of every node in order of drawing.

        Returns
        -------
        tuple of tuple of int, length N + 1
            Entry ``n + 1`` belongs to node ``n``, entry 0 to the root.
        """
        held: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            held[parent + 1].append(node)
        return tuple(tuple(nodes) for nodes in held)

    def child_law(self, node: int) -> Law | None:
        """Return the law of a node's children, None when they are deterministic."""
        return None if self.child_laws is None else self.child_laws[node + 1]

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from the root's child down to a node; empty for -1."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))


@dataclass(frozen=True, slots=True)
class TreeVerdict:
    """What verification decided for one row with a tree.

    Parameters
    ----------
    path : tuple of int
        Numbers of the kept nodes, from the root's child downwards; empty when none
        was kept.
    token_id : int
        The token emitted after them.
    source : {"accepted", "recovered", "bonus", "sampled"}
        Where that token came from; ``bonus`` below a kept leaf. ``accepted`` where it is
        itself a kept draft, and the target has no law after it.
    """

    path: tuple[int, ...]
    token_id: int
    source: TokenSource
