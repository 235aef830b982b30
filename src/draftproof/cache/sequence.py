"""What the cache keeps of one open sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.cache.branches import Branches
from draftproof.cache.prefix import PrefixNode
from draftproof.errors import InvariantError

__all__ = ["SequenceState", "TokenIds"]

TokenIds = Sequence[int] | NDArray[np.integer]


@dataclass(slots=True, eq=False)
class SequenceState:
    """Tokens, pages and bounds of one open sequence.

    Parameters
    ----------
    tokens : ndarray of int32
        Buffer whose first ``length`` entries are the cached tokens.
    pages : ndarray of int32
        Buffer whose first ``num_pages`` entries are the page table.
    node : PrefixNode
        The prefix that the final full pages spell.
    length : int
        Number of cached tokens.
    num_pages : int
        Number of pages listed, reserved ones included.
    num_final_pages : int
        How many full pages ``node`` stands for.
    writable_end : int
        The slots of positions ``length`` up to here are known to be exclusive.
    branches : Branches, optional
        Shape of the last row while it branches; ``length`` then counts slots.
    num_evicted : int
        How many of the first listed pages were given up, since a sliding window has left
        them behind. They are not held; what their entries say means nothing.
    window : int
        Width of that window.
    """

    tokens: NDArray[np.int32]
    pages: NDArray[np.int32]
    node: PrefixNode
    length: int = 0
    num_pages: int = 0
    num_final_pages: int = 0
    writable_end: int = 0
    branches: Branches | None = None
    num_evicted: int = 0
    window: int = 0

    def table(self, num_pages: int) -> NDArray[np.int32]:
        """Return the first pages; for those that were given up, the first that was not."""
        pages = self.pages[:num_pages]
        if self.num_evicted:
            pages = pages.copy()
            pages[: self.num_evicted] = pages[min(self.num_evicted, num_pages - 1)]
        return pages

    def reaches_back(self, length: int, page_size: int) -> bool:
        """Say whether a text of that length would see none of the pages that were given up."""
        return not length or max(0, length - self.window + 1) >= self.num_evicted * page_size

    def refuse_branches(self) -> None:
        """Raise while the tokens are not one text.

        Raises
        ------
        InvariantError
            If the last row branched and was not truncated since.
        """
        if self.branches is not None:
            raise InvariantError(
                f"the row at {self.branches.begin} branched, expected a truncate to one path first"
            )

    def add_tokens(self, token_ids: TokenIds) -> None:
        """Move the length over new tokens."""
        end = self.length + len(token_ids)
        self.tokens = _with_room(self.tokens, end)
        self.tokens[self.length : end] = token_ids
        self.length = end

    def add_pages(self, pages: Sequence[int]) -> None:
        """List more pages."""
        end = self.num_pages + len(pages)
        self.pages = _with_room(self.pages, end)
        self.pages[self.num_pages : end] = pages
        self.num_pages = end

    def page_tokens(self, index: int, page_size: int) -> bytes:
        """Return the tokens of a full page as the prefix cache names them."""
        return self.tokens[index * page_size : (index + 1) * page_size].tobytes()


def _with_room(array: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return the array, or a copy at least twice as large that has ``size`` entries."""
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), dtype=np.int32)
    grown[: len(array)] = array
    return grown
