"""Deterministic candidates that branch, each with a guess of how likely it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from draftproof.core.types import TreeDraft

__all__ = ["Candidates", "likeliest_paths", "merged"]


@dataclass(frozen=True, slots=True)
class Candidates:
    """Nodes of a tree, likeliest first, so that the first n of them are a tree too.

    Parameters
    ----------
    token_ids : tuple of int, length N
        Token of each node.
    parents : tuple of int, length N
        Number of each node's parent, -1 for the committed text.
    scores : tuple of float, length N
        Guessed probability that the node and all above it are kept; falling, and no law.
    note : str
        Why there is none, when there is a reason worth telling.
    sources : tuple of str, length N
        Who made each node; empty where one drafter made all.
    """

    token_ids: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    note: str = ""
    sources: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Return the number of nodes N."""
        return len(self.token_ids)

    def draft(self, proposer: str) -> TreeDraft:
        """Return the tree as a drafter proposes it."""
        return TreeDraft(
            self.token_ids, self.parents, None, proposer, self.note, self.sources or None
        )

    def paths(self) -> list[tuple[int, ...]]:
        """Return the tokens from the committed text to each node."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.token_ids, self.parents, strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return paths


def likeliest_paths(
    scores: Mapping[tuple[int, ...], float], most: int, least_score: float = 0.0
) -> Candidates:
    """Return the likeliest of some paths as a tree.

    Parameters
    ----------
    scores : mapping of tuple of int to float
        Guess for each path, at most that of the path without its last token, which is in
        it as well. Of equal ones the first comes first.
    most : int
        Most nodes.
    least_score : float, default 0.0
        Paths below it are left out.

    Returns
    -------
    Candidates
        Without a note or sources.
    """
    order = count()
    ranked = sorted(
        ((-score, len(path), next(order), path) for path, score in scores.items()),
    )
    chosen = [(path, -score) for score, _, _, path in ranked[:most] if -score >= least_score]
    number = {path: node for node, (path, _) in enumerate(chosen)}
    return Candidates(
        tuple(path[-1] for path, _ in chosen),
        tuple(number[path[:-1]] if len(path) > 1 else -1 for path, _ in chosen),
        tuple(score for _, score in chosen),
    )


def merged(parts: Sequence[tuple[str, Candidates]], most: int) -> Candidates:
    """Join the candidates of several drafters in one tree.

    Parameters
    ----------
    parts : sequence of (str, Candidates)
        Name and candidates of each; of equal guesses the first part's comes first.
    most : int
        Most nodes.

    Returns
    -------
    Candidates
        Each path once, with the best guess for it and the part that made that. The notes
        of all parts where there is no node.
    """
    scores: dict[tuple[int, ...], float] = {}
    makers: dict[tuple[int, ...], str] = {}
    for name, part in parts:
        for path, score in zip(part.paths(), part.scores, strict=True):
            if score > scores.get(path, 0.0):
                scores[path], makers[path] = score, name
    tree = likeliest_paths(scores, most)
    sources = tuple(makers[path] for path in tree.paths())
    notes = [part.note for _, part in parts if part.note and not tree.token_ids]
    return Candidates(tree.token_ids, tree.parents, tree.scores, "; ".join(notes), sources)
