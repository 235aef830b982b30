"""Rows that branch, as a table model reads them, and what can go wrong with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

__all__ = ["KeepFault", "TreeFault", "TreeRow", "moves_with_fault"]

#: What a pass gets wrong: ``"index-positions"`` gives a token its index as position, not
#: its depth; ``"sees-siblings"`` lets it see the children of its ancestors that came first.
TreeFault = Literal["index-positions", "sees-siblings"]

#: What a rollback to one path gets wrong: ``"stays-in-place"`` moves nothing, so that the
#: first slots stay whatever was kept; ``"reversed"`` moves the path in reverse order.
KeepFault = Literal["stays-in-place", "reversed"]


Slot = TypeVar("Slot")


class TreeRow(NamedTuple):
    """A row that branches.

    Parameters
    ----------
    parents : tuple of int
        Index within the row of each token's parent, -1 for the first.
    sees : tuple of tuple of int
        Rising indices within the row that each token sees, itself last.
    """

    parents: tuple[int, ...]
    sees: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, parents: Sequence[int], fault: TreeFault | None = None) -> TreeRow:
        """Let every token see its own ancestors and itself.

        Parameters
        ----------
        parents : sequence of int
            Index of each token's parent, smaller than its own; -1 for the first.
        fault : {"index-positions", "sees-siblings"}, optional
            What goes wrong.

        Returns
        -------
        TreeRow
            The row.
        """
        sees: list[tuple[int, ...]] = []
        for index, parent in enumerate(parents):
            before = sees[parent] if parent >= 0 else ()
            if fault == "sees-siblings":
                before += tuple(n for n in range(index) if parents[n] == parent >= 0)
            sees.append((*before, index))
        return cls(tuple(int(parent) for parent in parents), tuple(sees))


def moves_with_fault(
    moves: Sequence[tuple[Slot, Slot]], fault: KeepFault | None
) -> Sequence[tuple[Slot, Slot]]:
    """Return which slots a rollback reads and writes.

    Parameters
    ----------
    moves : sequence of (slot, slot)
        Where each token that stays is, first to last, and where it belongs.
    fault : {"stays-in-place", "reversed"}, optional
        What goes wrong.

    Returns
    -------
    sequence of (slot, slot)
        The same, or what the fault makes of them.
    """
    if fault == "stays-in-place":
        return [(target, target) for _, target in moves]
    if fault == "reversed":
        sources = [source for source, _ in reversed(moves)]
        return [(source, target) for source, (_, target) in zip(sources, moves, strict=True)]
    return moves
