"""How many cells of the memory are free, held and promised.

The library places tokens by itself and says nothing about room until a pass fails. These
books name cells by numbers of their own, so that sharing is counted once and a granted
reservation holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from draftproof.errors import InvariantError

__all__ = ["CellBooks"]


class CellBooks:
    """Users of each cell, and the cells that have none.

    Parameters
    ----------
    num_cells : int
        Cells of the memory.
    """

    def __init__(self, num_cells: int) -> None:
        self.num_cells = num_cells
        self._users = np.zeros(num_cells, dtype=np.int32)
        self._free = list(range(num_cells - 1, -1, -1))
        #: Free cells that reservations may still ask for.
        self.num_promised = 0

    @property
    def num_free(self) -> int:
        """Cells that nobody has."""
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Cells that nobody has or was promised."""
        return len(self._free) - self.num_promised

    def take(self, count: int) -> list[int]:
        """Give out free cells, each to one user."""
        if count > len(self._free):
            raise InvariantError(f"{count} cells taken, {len(self._free)} are free")
        if not count:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        self._users[taken] = 1
        return taken

    def share(self, cells: Sequence[int]) -> None:
        """Count one more user of each cell."""
        self._users[list(cells)] += 1

    def drop(self, cells: Sequence[int]) -> None:
        """Count one user less of each cell; the cells nobody has become free."""
        if not cells:
            return
        places = np.array(cells, dtype=np.intp)
        self._users[places] -= 1
        self._free.extend(places[self._users[places] == 0].tolist())

    def num_alone(self, texts: Iterable[Sequence[int]]) -> int:
        """Return how many cells would be free if these users gave up all of theirs."""
        left = self._users.copy()
        touched = np.zeros(self.num_cells, dtype=np.bool_)
        for cells in texts:
            places = np.array(cells, dtype=np.intp)
            left[places] -= 1
            touched[places] = True
        return int(np.count_nonzero(touched & (left == 0)))
