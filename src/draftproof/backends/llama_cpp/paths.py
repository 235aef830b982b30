"""Rows that branch, presented as sequences that have their first tokens in common.

Each leaf of a tree is the end of a text. The first leaf continues the row's own sequence,
the others get a spare one each that starts with the same cells. A token belongs to the
sequences of all leaves below it and sees what its first sequence has: its ancestors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Path", "leaf_paths", "longest_common"]


@dataclass(frozen=True, slots=True)
class Path:
    """The nodes that lead to one leaf, and the sequence that holds them.

    Parameters
    ----------
    slot : int
        Number of the sequence.
    indices : tuple of int
        Indices within the row, root first.
    """

    slot: int
    indices: tuple[int, ...]


def leaf_paths(parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the path from the root to each leaf, in the order of the leaves.

    Parameters
    ----------
    parents : sequence of int, length n
        Index of each node's parent, -1 for the first.

    Returns
    -------
    list of tuple of int
        One per leaf, together all nodes.
    """
    paths: list[tuple[int, ...]] = []
    inner = set(parents)
    for leaf in range(len(parents)):
        if leaf in inner:
            continue
        path, node = [], leaf
        while node >= 0:
            path.append(node)
            node = parents[node]
        paths.append(tuple(reversed(path)))
    return paths


def longest_common(paths: Sequence[Path], wanted: Sequence[int]) -> tuple[Path, int]:
    """Return the path that shares the longest beginning with a list of nodes, and its length.

    Parameters
    ----------
    paths : sequence of Path
        At least one.
    wanted : sequence of int
        Nodes of one path, root first.

    Returns
    -------
    path : Path
        The best of them.
    length : int
        How many nodes they have in common.
    """

    def common(path: Path) -> int:
        count = 0
        for node, other in zip(path.indices, wanted, strict=False):
            if node != other:
                break
            count += 1
        return count

    best = max(paths, key=common)
    return best, common(best)
