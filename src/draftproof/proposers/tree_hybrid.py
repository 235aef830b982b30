"""Copies that branch, and a model's drawn tree below the likeliest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import TreeDraft
from draftproof.proposers._candidates import Candidates, merged
from draftproof.proposers._parts import PartsProposer

__all__ = [
    "BelowProposer",
    "CopyingProposer",
    "HybridTreeHeadProposer",
    "HybridTreeProposer",
    "ReadingBelowProposer",
]


#: Least chance, guessed, that one of the copied tokens comes next; below it the model draws. With
#: a head behind copies of a small model 0.5 and 0.65 did about alike, and better than 0 and 0.3.
_BACKED = 0.5
#: Why copies that there were are not drafted.
_HARDLY = "no copy is backed well enough"


class CopyingProposer(Protocol):
    """A drafter whose candidates are deterministic, and who guesses how likely they are."""

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        ...

    def candidates(self, request: ProposalRequest) -> Candidates:
        """Return the likeliest nodes for one row, from committed tokens alone."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        ...


class BelowProposer(Protocol):
    """A drafter of drawn trees that can go on below a node of another's tree."""

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        ...

    def propose_below(
        self,
        requests: Sequence[ProposalRequest],
        trees: Sequence[TreeDraft],
        leaves: Sequence[int],
        levels: int | None = None,
    ) -> list[TreeDraft]:
        """Go on below a node of each tree; see `DraftModelTreeProposer.propose_below`."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        ...


class ReadingBelowProposer(BelowProposer, Protocol):
    """One that goes on from the target's hidden states."""

    def observe(self, request_id: str, start: int, hidden: NDArray[np.float32]) -> None:
        """Take the hidden states of committed tokens."""
        ...


class HybridTreeProposer(PartsProposer):
    """Drafts a tree of copies, and draws a model's tree where nothing is copied.

    The candidates of all copying parts are merged, each path with the best guess that a
    part makes for it, and the likeliest `kappa` nodes are taken. Where nothing is copied,
    or the guesses for the first tokens add up to less than one half, the model draws a
    tree below the committed text. Where the likeliest copied path has fewer than
    ``enough`` tokens and nodes are left, the model draws one below the end of that path,
    which it reads as text.

    Parameters
    ----------
    copying : sequence of CopyingProposer
        Drafters without a model, the best first; at least one.
    model : BelowProposer
        Draws below them.
    max_model_tokens : int, default 3
        Most levels of the model's tree; each is one pass of it.
    enough : int, default 4
        From this many tokens of the likeliest copied path on the model is not asked.
    name : str, default "hybrid-tree"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or two parts have one name.

    Notes
    -----
    Children of one node are either all copied, and judged as certain, or all drawn, and
    carry the law that they were drawn from: a tree has one law for the children of a
    node. Which nodes are copied, where the model draws, and how many children each node
    has depends on committed tokens alone, and no drawn node is left out. So the rules keep
    the target's law.

    A part that fails drafts nothing and leaves a note; the others go on.
    """

    def __init__(
        self,
        copying: Sequence[CopyingProposer],
        model: BelowProposer,
        *,
        max_model_tokens: int = 3,
        enough: int = 4,
        name: str = "hybrid-tree",
    ) -> None:
        super().__init__(
            copying, model, max_model_tokens=max_model_tokens, enough=enough, name=name
        )
        self._copying = tuple(copying)
        self._model = model

    def propose(self, requests: Sequence[ProposalRequest]) -> list[TreeDraft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of TreeDraft
            One per row, of at most ``kappa`` nodes, with a source for each.
        """
        copied = [self._copied(request) for request in requests]
        trees = [candidates.draft(self._name) for candidates in copied]
        leaves = [_likeliest_leaf(candidates) for candidates in copied]
        rows = [
            row
            for row, (request, tree, leaf) in enumerate(zip(requests, trees, leaves, strict=True))
            if len(tree.path(leaf)) < self._enough and len(tree) < request.kappa
        ]
        for row, drawn in zip(rows, self._drawn(rows, requests, trees, leaves), strict=True):
            given, num_drawn = trees[row], len(drawn) - len(trees[row])
            sources = (given.sources or ()) + (self._model.name,) * num_drawn
            notes = (given.note, drawn.note) if not num_drawn else (drawn.note,)
            note = "; ".join(filter(None, notes))
            trees[row] = replace(drawn, proposer=self._name, note=note, sources=sources or None)
        return trees

    def _copied(self, request: ProposalRequest) -> Candidates:
        """Return the merged candidates of one row."""
        parts = []
        for part in self._copying:
            try:
                candidates = part.candidates(request)
            except Exception as error:  # noqa: BLE001  a part may fail; the others go on
                candidates = Candidates(note=f"{part.name} failed: {error!r}")
            parts.append((part.name, candidates))
        copied = merged(parts, request.kappa)
        places = zip(copied.parents, copied.scores, strict=True)
        is_backed = sum(score for parent, score in places if parent < 0) >= _BACKED
        return copied if is_backed or not len(copied) else Candidates(note=_HARDLY)

    def _drawn(
        self,
        rows: Sequence[int],
        requests: Sequence[ProposalRequest],
        trees: Sequence[TreeDraft],
        leaves: Sequence[int],
    ) -> list[TreeDraft]:
        """Let the model go on in some rows; they keep their copies where it fails."""
        if not rows:
            return []
        given = [trees[row] for row in rows]
        try:
            drawn = self._model.propose_below(
                [requests[row] for row in rows],
                given,
                [leaves[row] for row in rows],
                self._max_model_tokens,
            )
            if len(drawn) == len(rows):
                return drawn
            reason = f"{len(drawn)} drafts for {len(rows)} rows"
        except Exception as error:  # noqa: BLE001  a part may fail; the others go on
            reason = repr(error)
        return [replace(tree, note=f"{self._model.name} failed: {reason}") for tree in given]


class HybridTreeHeadProposer(HybridTreeProposer):
    """A `HybridTreeProposer` whose model is a draft head, which is told hidden states.

    Parameters
    ----------
    copying : sequence of CopyingProposer
        Drafters without a model, the best first; at least one.
    head : ReadingBelowProposer
        Draws below them, from what it is told here.
    max_model_tokens : int, default 3
        Most levels of the head's tree.
    enough : int, default 1
        From this many copied tokens on the head is not asked: it would pay a pass for each
        of them.
    name : str, default "hybrid-tree"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or two parts have one name.
    """

    def __init__(
        self,
        copying: Sequence[CopyingProposer],
        head: ReadingBelowProposer,
        *,
        max_model_tokens: int = 3,
        enough: int = 1,
        name: str = "hybrid-tree",
    ) -> None:
        super().__init__(copying, head, max_model_tokens=max_model_tokens, enough=enough, name=name)
        self._reader = head

    def observe(self, request_id: str, start: int, hidden: NDArray[np.float32]) -> None:
        """Pass the hidden states of committed tokens on to the head.

        Parameters
        ----------
        request_id : str
            The request.
        start : int
            Position of the first of the tokens.
        hidden : ndarray of float32, shape (n, E)
            Their hidden states.
        """
        self._reader.observe(request_id, start, hidden)


def _likeliest_leaf(candidates: Candidates) -> int:
    """Return the end of the path that follows the likeliest child; -1 where there is none.

    Siblings come likeliest first.
    """
    leaf = -1
    for node, parent in enumerate(candidates.parents):
        if parent == leaf:
            leaf = node
    return leaf
