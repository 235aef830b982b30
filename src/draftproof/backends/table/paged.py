"""The memory of a table model in pages.

Tokens and positions are read back out of the slots that the page table names. Pages,
forks and rollback are thus exercised with contents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table.stores import Context
from draftproof.backends.table.tree_rows import KeepFault, TreeRow, moves_with_fault
from draftproof.cache import PagedCache

__all__ = ["PagedStore"]


class PagedStore:
    """Tokens in the slots of ``draftproof.cache.PagedCache``.

    Parameters
    ----------
    num_pages : int, default 256
        Pages of the pool.
    page_size : int, default 4
        Token slots per page; small, so that short tests cross pages.
    prefix_caching : bool, default True
        Whether committed pages are shared with later sequences.
    keep_fault : {"stays-in-place", "reversed"}, optional
        What a rollback to one path of a tree gets wrong: a fault for tests.
    """

    rewindable = True
    trees = True

    def __init__(
        self,
        num_pages: int = 256,
        page_size: int = 4,
        *,
        prefix_caching: bool = True,
        keep_fault: KeepFault | None = None,
    ) -> None:
        #: The bookkeeping, for assertions on pages and counters.
        self.cache = PagedCache(
            num_pages, page_size, bytes_per_page=16 * page_size, prefix_caching=prefix_caching
        )
        self._keep_fault = keep_fault
        # -1 is no token: reading a slot that was never written changes the law.
        self._tokens = np.full((num_pages, page_size), -1, dtype=np.int64)
        self._positions = np.full((num_pages, page_size), -1, dtype=np.int64)

    @property
    def page_size(self) -> int:
        """Tokens per shareable page, 0 when nothing is shared."""
        return self.cache.page_size if self.cache.prefix_caching else 0

    @property
    def num_open(self) -> int:
        """How many sequences are open."""
        return self.cache.usage().num_sequences

    @property
    def num_held(self) -> int:
        """How many pages open sequences hold."""
        return self.cache.usage().held_pages

    def open(self, token_ids: Sequence[int]) -> int:
        """Start a sequence with the longest published prefix of its tokens."""
        return self.cache.open(token_ids)

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that shares all pages of another."""
        return self.cache.fork(sequence_id)

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens of a sequence."""
        return self.cache.length(sequence_id)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Reserve slots, or change nothing and return False."""
        return self.cache.reserve(sequence_id, num_tokens)

    def append(
        self,
        sequence_id: int,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        wanted: Sequence[int],
        span: int | None,
        tree: TreeRow | None = None,
    ) -> list[Context]:
        """Write tokens to their slots and read the wanted contexts back.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        token_ids : ndarray of int32, shape (n,)
            The tokens.
        positions : ndarray of int32, shape (n,)
            Their positions.
        wanted : sequence of int
            Rising indices into ``token_ids``.
        span : int or None
            How many of the last tokens each context needs; None for all.
        tree : TreeRow, optional
            Which tokens of the row each one sees, where the row branches.

        Returns
        -------
        list of Context
            One per wanted index.
        """
        begin = self.cache.length(sequence_id)
        self.cache.append(sequence_id, token_ids, None if tree is None else tree.parents)
        for copy in self.cache.drain_copies():
            for slots in (self._tokens, self._positions):
                slots[copy.dst_page, : copy.num_slots] = slots[copy.src_page, : copy.num_slots]
        table = self.cache.page_table(sequence_id)
        size = self.cache.page_size
        index = np.arange(begin, begin + len(token_ids))
        self._tokens[table[index // size], index % size] = token_ids
        self._positions[table[index // size], index % size] = positions
        contexts = []
        for offset in wanted:
            held = np.arange(begin + offset + 1)
            if tree is not None:
                held = np.append(held[:begin], begin + np.asarray(tree.sees[offset]))
            if span is not None:
                held = held[max(0, len(held) - span) :]
            pages, slots_read = table[held // size], held % size
            contexts.append(
                Context(self._tokens[pages, slots_read], self._positions[pages, slots_read])
            )
        return contexts

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop the tokens from position ``length`` on, but for one path of the last row."""
        moves = [
            ((move.src_page, move.src_slot), (move.dst_page, move.dst_slot))
            for move in self.cache.truncate(sequence_id, length, keep)
        ]
        for source, target in moves_with_fault(moves, self._keep_fault):
            self._tokens[target] = self._tokens[source]
            self._positions[target] = self._positions[source]

    def commit(self, sequence_id: int) -> None:
        """Publish the full pages of a sequence."""
        self.cache.commit(sequence_id)

    def close(self, sequence_id: int) -> None:
        """Give the sequence's pages back."""
        self.cache.close(sequence_id)
