"""Rows that branch: which of their slots may stay together.

A slot is a place in memory, in order of appending. On a chain it is also the position.
After a row that branched it is not, until a rollback leaves one path and moves it
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.errors import InvariantError

__all__ = ["Branches", "branches_of", "check_path"]


@dataclass(frozen=True, slots=True)
class Branches:
    """The shape of a row that branched.

    Parameters
    ----------
    begin : int
        Slot of its first token.
    parents : tuple of int
        Index within the row of each token's parent, -1 for the first.
    """

    begin: int
    parents: tuple[int, ...]

    def parent(self, slot: int) -> int:
        """Return the slot of the token before a token; -1 before the first."""
        index = slot - self.begin
        if not 0 < index < len(self.parents):
            return slot - 1
        return self.begin + self.parents[index]


def branches_of(begin: int, parents: Sequence[int] | None) -> Branches | None:
    """Return the shape of a row, None if it is a chain.

    Parameters
    ----------
    begin : int
        Slot of the first token.
    parents : sequence of int, optional
        Index within the row of each token's parent, -1 for the first; None for a chain.

    Returns
    -------
    Branches or None
        What ``check_path`` needs to know.
    """
    if parents is None or all(parent == index - 1 for index, parent in enumerate(parents)):
        return None
    return Branches(begin, tuple(int(parent) for parent in parents))


def check_path(
    branches: Branches | None, length: int, num_slots: int, keep: Sequence[int] = ()
) -> None:
    """Refuse a rollback that would leave tokens which are no text.

    Parameters
    ----------
    branches : Branches, optional
        Shape of the last row, None for a chain.
    length : int
        How many slots stay in place.
    num_slots : int
        How many slots are held now.
    keep : sequence of int
        Slots that stay as well.

    Raises
    ------
    InvariantError
        If ``length`` is out of range, or if what stays is not one path: a token
        without the token before it, or two that come after the same one.
    """
    if not 0 <= length <= num_slots:
        raise InvariantError(f"truncate to {length}, expected 0 to {num_slots}")
    before = (length if branches is None else min(length, branches.begin)) - 1
    for slot in (*range(before + 1, length), *keep):
        parent = slot - 1 if branches is None else branches.parent(slot)
        if parent != before or slot >= num_slots:
            raise InvariantError(
                f"truncate to {length} and keep {tuple(keep)} of {num_slots} slots: slot {slot} "
                f"follows slot {parent}, expected one path and {before} before it"
            )
        before = slot
