"""Which nodes a tree of bounded size has.

A node is worth the chance that it is kept, as far as that can be known before anything
is drawn: ``a`` for the first child of a node, ``a`` of what is left for the second, and
so on; a product of these along the path. The worthiest nodes make the tree. A parent is
worth more than its children and an earlier sibling more than a later one, so that what
is chosen is a tree, and the best of its size where the chances are right (Chen et al.,
2402.12374, section 4.1, with chances that do not depend on the depth).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from draftproof.errors import ConfigError

__all__ = [
    "Shape",
    "check_shape",
    "depth_of",
    "growth_of",
    "pruned_paths",
    "shape_of",
    "size_of",
]

#: The shapes below the children of a node, first child first.
Shape: TypeAlias = tuple["Shape", ...]

#: Most children of a node where no widths are given: later ones are hardly ever kept.
_MOST_CHILDREN = 8


@dataclass(slots=True)
class _Growing:
    """A node while its tree grows."""

    children: list[_Growing] = field(default_factory=list)

    def frozen(self) -> Shape:
        return tuple(child.frozen() for child in self.children)


def shape_of(
    budget: int,
    acceptance: float,
    widths: Sequence[int] | None = None,
    levels: int | None = None,
) -> Shape:
    """Return the shape of the worthiest tree.

    Parameters
    ----------
    budget : int
        Most nodes.
    acceptance : float
        Chance that the first child of a node is kept, in (0, 1).
    widths : sequence of int, optional
        Most children of a node by the depth of the node, the root first. A node at a
        depth that is not named has none. Any depth when not given.
    levels : int, optional
        Most levels below the root.

    Returns
    -------
    Shape
        The shapes below the children of the root. Smaller than the budget where the
        widths do not allow more.

    Raises
    ------
    ConfigError
        If ``acceptance`` or a width is out of range.
    """
    nodes = [_Growing()]
    for parent, _rank in growth_of(budget, acceptance, widths, levels):
        nodes.append(_Growing())
        nodes[parent + 1].children.append(nodes[-1])
    return nodes[0].frozen()


def growth_of(
    budget: int,
    acceptance: float,
    widths: Sequence[int] | None = None,
    levels: int | None = None,
) -> list[tuple[int, int]]:
    """Return the nodes of the worthiest tree, worthiest first.

    Parameters
    ----------
    budget : int
        Most nodes, as `shape_of` takes it.
    acceptance : float
        See `shape_of`.
    widths : sequence of int, optional
        See `shape_of`.
    levels : int, optional
        See `shape_of`.

    Returns
    -------
    list of (int, int)
        Number of each node's parent, -1 for the root, and how many siblings come before
        it. The first n are the worthiest tree of n nodes.

    Raises
    ------
    ConfigError
        If ``acceptance`` or a width is out of range.
    """
    check_shape(acceptance, widths)
    most = (_MOST_CHILDREN,) if widths is None else (*widths, 0)
    grown: list[tuple[int, int]] = []
    # (-worth, order, parent, rank among its children, depth of the parent)
    places: list[tuple[float, int, int, int, int]] = []

    def offer(worth: float, parent: int, rank: int, depth: int) -> None:
        is_deep = levels is not None and depth >= levels
        if rank < most[min(depth, len(most) - 1)] and not is_deep:
            heapq.heappush(places, (-worth, next(order), parent, rank, depth))

    order = count()
    offer(acceptance, -1, 0, 0)
    while places and len(grown) < budget:
        minus_worth, _, parent, rank, depth = heapq.heappop(places)
        grown.append((parent, rank))
        offer(-minus_worth * acceptance, len(grown) - 1, 0, depth + 1)
        offer(-minus_worth * (1 - acceptance), parent, rank + 1, depth)
    return grown


def check_shape(acceptance: float, widths: Sequence[int] | None = None) -> None:
    """Refuse numbers of which no shape can be made.

    Parameters
    ----------
    acceptance : float
        Chance that the first child of a node is kept.
    widths : sequence of int, optional
        Most children by depth.

    Raises
    ------
    ConfigError
        If one is out of range.
    """
    if not 0.0 < acceptance < 1.0:
        raise ConfigError(f"acceptance {acceptance}: expected a number in (0, 1)")
    if widths is not None and (not widths or min(widths) < 1):
        raise ConfigError(f"widths {tuple(widths)}: expected at least one, each 1 or more")


def size_of(shape: Shape) -> int:
    """Return the number of nodes below the root."""
    return sum(1 + size_of(below) for below in shape)


def depth_of(shape: Shape) -> int:
    """Return the number of levels below the root."""
    return 1 + max(map(depth_of, shape)) if shape else 0


def pruned_paths(
    paths: Sequence[Sequence[int]], budget: int, acceptance: float
) -> list[tuple[int, ...]]:
    """Cut deterministic candidate texts so that together they have few distinct prefixes.

    Parameters
    ----------
    paths : sequence of sequence of int
        Candidates, best first.
    budget : int
        Most distinct prefixes, that is nodes of the merged tree.
    acceptance : float
        Chance that a token of the best path is kept, in (0, 1); the next path is
        followed with that share of what is left, and so on.

    Returns
    -------
    list of tuple of int
        Beginnings of the paths, in their order; those without a node of their own are
        left out.
    """
    worths = [
        ((1 - acceptance) ** rank * acceptance ** (depth + 1), -rank, -depth)
        for rank, path in enumerate(paths)
        for depth in range(len(path))
    ]
    lengths = [0] * len(paths)
    prefixes: set[tuple[int, ...]] = set()
    for _, minus_rank, minus_depth in sorted(worths, reverse=True):
        prefix = tuple(paths[-minus_rank][: 1 - minus_depth])
        if prefix not in prefixes:
            if len(prefixes) == budget or lengths[-minus_rank] < -minus_depth:
                continue
            prefixes.add(prefix)
        lengths[-minus_rank] = 1 - minus_depth
    return [tuple(path[:length]) for path, length in zip(paths, lengths, strict=True) if length]
