"""Page tables of ragged sequences: reserve, append, roll back, share.

How a pass uses it::

    cache.reserve(seq, kappa + 1)          # before drafting; False: preempt someone
    cache.append(seq, tokens)              # for each row
    copies = cache.drain_copies()          # carried out in order, before the pass
    indices, begins = cache.block_table(seqs)
    ...                                    # the pass writes the slots of the new tokens
    cache.truncate(seq, accepted_length)   # rejected drafts: the length goes back
    cache.commit(seq)                      # after the pass, so the pages are written

Three rules make sharing safe. Only a page that one sequence lists and that is not
published is written. Only full pages of final tokens are published, after the pass that
wrote them. A page is found again by its tokens and its whole prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.cache.integrity import check_pages, check_prefixes
from draftproof.cache.pool import PagePool
from draftproof.cache.prefix import NO_PAGE, PrefixIndex, PrefixNode
from draftproof.cache.values import CacheCounters, CacheUsage, PageCopy
from draftproof.errors import CapacityError, ConfigError, InvariantError

__all__ = ["PagedCache"]

TokenIds = Sequence[int] | NDArray[np.integer]


@dataclass(slots=True, eq=False)
class SequenceState:
    """What the cache keeps of one open sequence; buffers have room to grow."""

    tokens: NDArray[np.int32]
    pages: NDArray[np.int32]
    #: Final full pages end at this node of the prefix index.
    node: PrefixNode
    #: How many full pages that node stands for.
    num_final_pages: int = 0
    length: int = 0
    #: Pages listed, the reserved ones included.
    num_pages: int = 0
    #: The slots of positions ``length`` up to here are known to be exclusive.
    writable_end: int = 0


class PagedCache:
    """Bookkeeping of a fixed pool of pages shared by many sequences.

    Parameters
    ----------
    num_pages : int
        Pages of the pool; at least 1.
    page_size : int
        Token slots of a page; at least 1.
    bytes_per_page : int
        Bytes of one page over all layers, keys and values; for reports only.
    prefix_caching : bool
        Whether final full pages can be found again by later sequences.

    Raises
    ------
    ConfigError
        If a size is out of range.

    Notes
    -----
    A sequence id that is not open raises InvariantError in every method. The work of
    a step is proportional to the tokens it adds or drops, never to the length.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int = 32,
        bytes_per_page: int = 0,
        prefix_caching: bool = True,
    ) -> None:
        for name, value, least in (
            ("num_pages", num_pages, 1),
            ("page_size", page_size, 1),
            ("bytes_per_page", bytes_per_page, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}, expected at least {least}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.bytes_per_page = bytes_per_page
        self.prefix_caching = prefix_caching
        self._pool = PagePool(num_pages)
        self._prefixes = PrefixIndex()
        self._sequences: dict[int, SequenceState] = {}
        self._next_id = 0
        self._copies: list[PageCopy] = []
        self._prefix_query_tokens = 0
        self._prefix_hit_tokens = 0
        self._num_evictions = 0
        self._num_copies = 0

    # -- life of a sequence ------------------------------------------------------

    def open(self, token_ids: TokenIds = ()) -> int:
        """Start a sequence, with the longest cached prefix of its tokens.

        Parameters
        ----------
        token_ids : sequence of int
            Tokens that will follow. Full pages of them that are published are
            restored, at most ``len(token_ids) - 1`` tokens, so that at least one
            token is left to compute. ``length`` says how many.

        Returns
        -------
        int
            The sequence id, never reused.
        """
        state = self._empty_state()
        if self.prefix_caching and len(token_ids) > 0:
            self._prefix_query_tokens += len(token_ids)
            self._restore(state, token_ids)
            self._prefix_hit_tokens += state.length
        return self._register(state)

    def fork(self, seq: int) -> int:
        """Start a sequence that shares all cached tokens of another.

        The last page is shared even when it is partly filled; whoever writes to it
        first gets a copy. For that reason a fork ends the reservation of ``seq``: its
        unused pages go back to the pool. Do not fork between ``append`` and the pass.

        Parameters
        ----------
        seq : int
            The sequence to share.

        Returns
        -------
        int
            The new sequence id.
        """
        source = self._state(seq)
        self._drop_pages(source, self._pages_for(source.length))
        source.writable_end = source.length
        child = SequenceState(
            tokens=source.tokens.copy(),
            pages=source.pages.copy(),
            node=source.node,
            num_final_pages=source.num_final_pages,
            length=source.length,
            num_pages=source.num_pages,
            writable_end=source.length,
        )
        for page in child.pages[: child.num_pages].tolist():
            self._pool.hold(page)
        child.node.num_users += 1
        return self._register(child)

    def close(self, seq: int) -> None:
        """End a sequence and give back what it holds alone.

        Published pages stay findable until their room is needed, the deepest page of
        a prefix going first.

        Parameters
        ----------
        seq : int
            The sequence to end.
        """
        state = self._state(seq)
        self._republish(state)
        self._drop_pages(state, 0)
        self._prefixes.leave(state.node)
        del self._sequences[seq]

    # -- growing and rolling back ------------------------------------------------

    def reserve(self, seq: int, n: int) -> bool:
        """Make sure that the next ``n`` tokens have slots of their own.

        Free pages are used first, then idle pages of the prefix cache, least recently
        used first. A shared or published page that the next token would land in is
        replaced by a copy. A reservation lasts until ``truncate``, ``fork`` or
        ``close``.

        Parameters
        ----------
        seq : int
            The sequence that will grow.
        n : int
            Number of tokens counted from its length; at least 0.

        Returns
        -------
        bool
            False when there is no room; nothing has changed then.
        """
        state = self._state(seq)
        if n < 0:
            raise InvariantError(f"reserve of {n} tokens, expected at least 0")
        end = state.length + n
        if end <= state.writable_end:
            return True
        num_new = max(0, self._pages_for(end) - state.num_pages)
        copies = self._must_copy(state)
        available = self._pool.num_available
        if num_new + copies > available:
            if not copies or num_new > available or not self._take_over(state):
                return False
            copies = False
        if copies:
            self._copy_last_page(state)
        if num_new:
            state.pages = _with_room(state.pages, state.num_pages + num_new)
            for index in range(state.num_pages, state.num_pages + num_new):
                state.pages[index] = self._take()
            state.num_pages += num_new
        state.writable_end = state.num_pages * self.page_size
        return True

    def append(self, seq: int, token_ids: TokenIds) -> None:
        """Move the length forward over new tokens, reserving room when there is none.

        Parameters
        ----------
        seq : int
            The sequence that grows.
        token_ids : sequence of int
            The tokens whose slots the next pass writes.

        Raises
        ------
        CapacityError
            If there is no room; nothing has changed then.
        """
        state = self._state(seq)
        count = len(token_ids)
        end = state.length + count
        if end > state.writable_end and not self.reserve(seq, count):
            msg = (
                f"sequence {seq} needs {count} slots after {state.length} tokens, "
                f"{self._pool.num_available} of {self.num_pages} pages can be taken"
            )
            raise CapacityError(msg)
        state.tokens = _with_room(state.tokens, end)
        state.tokens[state.length : end] = token_ids
        state.length = end

    def truncate(self, seq: int, length: int) -> None:
        """Drop the cached tokens from position ``length`` on, and the reservation.

        Pages wholly beyond ``length`` go back to the pool, those that were only
        reserved too. Tokens that were committed may be dropped as well: a published
        page keeps its contents, because it is copied before anything is written to
        it, so what others find in it stays true.

        Parameters
        ----------
        seq : int
            The sequence to roll back.
        length : int
            The new length, from 0 to the current one.

        Raises
        ------
        InvariantError
            If the new length is negative or above the current one.
        """
        state = self._state(seq)
        if not 0 <= length <= state.length:
            msg = f"truncate of sequence {seq} to {length}, expected 0 to {state.length}"
            raise InvariantError(msg)
        node, depth = state.node, state.num_final_pages
        while depth * self.page_size > length and node.parent is not None:
            node, depth = node.parent, depth - 1
        if node is not state.node:
            self._prefixes.move_user(state.node, node)
            state.node, state.num_final_pages = node, depth
        state.length = length
        self._drop_pages(state, self._pages_for(length))
        state.writable_end = length

    def commit(self, seq: int) -> None:
        """Declare all cached tokens final and publish the pages they fill.

        Call it after the pass that wrote the tokens, and after rejected drafts were
        truncated. When the same contents are published already, the sequence keeps
        its own page, and the first one stays the published one.

        Parameters
        ----------
        seq : int
            The sequence whose tokens are final.
        """
        state = self._state(seq)
        num_full = state.length // self.page_size
        if not self.prefix_caching or num_full == state.num_final_pages:
            return
        node = state.node
        for index in range(state.num_final_pages, num_full):
            node = self._prefixes.extend(node, self._page_tokens(state.tokens, index))
            self._prefixes.publish(node, int(state.pages[index]))
            self._pool.touch(node.page)
        self._prefixes.move_user(state.node, node)
        state.node, state.num_final_pages = node, num_full

    # -- reading -----------------------------------------------------------------

    def length(self, seq: int) -> int:
        """Return the number of cached tokens."""
        return self._state(seq).length

    def lengths(self, seqs: Sequence[int]) -> NDArray[np.int32]:
        """Return the numbers of cached tokens, int32 of shape (B,)."""
        return np.array([self._state(seq).length for seq in seqs], dtype=np.int32)

    def tokens(self, seq: int) -> NDArray[np.int32]:
        """Return a copy of the cached token ids, int32 of shape (length,)."""
        state = self._state(seq)
        return state.tokens[: state.length].copy()

    def page_table(self, seq: int) -> NDArray[np.int32]:
        """Return the page ids that cover the length, first to last.

        Parameters
        ----------
        seq : int
            The sequence to look up.

        Returns
        -------
        ndarray of int32, shape (ceil(length / page_size),)
            A read-only view, valid until the sequence changes. Token ``i`` is in slot
            ``i % page_size`` of page ``table[i // page_size]``.
        """
        state = self._state(seq)
        view = state.pages[: self._pages_for(state.length)]
        view.flags.writeable = False
        return view

    def block_table(self, seqs: Sequence[int]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return the page tables of several sequences, flat.

        Parameters
        ----------
        seqs : sequence of int, length B
            The sequences, in the order of the rows.

        Returns
        -------
        block_indices : ndarray of int32, shape (P,)
            The page tables one after another.
        block_indices_begins : ndarray of int32, shape (B + 1,)
            Row ``b`` is ``block_indices[begins[b]:begins[b + 1]]``.
        """
        tables = []
        begins = [0]
        for seq in seqs:
            state = self._state(seq)
            count = -(-state.length // self.page_size)
            tables.append(state.pages[:count])
            begins.append(begins[-1] + count)
        indices = np.concatenate(tables) if tables else np.zeros(0, dtype=np.int32)
        return indices, np.array(begins, dtype=np.int32)

    def drain_copies(self) -> list[PageCopy]:
        """Return the copies to make before the next pass, and forget them.

        They must be made in order: a page that one copy reads may be written by a
        later one.

        Returns
        -------
        list of PageCopy
            Triples (source page, destination page, number of slots).
        """
        copies, self._copies = self._copies, []
        return copies

    # -- reports -----------------------------------------------------------------

    def usage(self) -> CacheUsage:
        """Return where the pages are now."""
        free, idle = len(self._pool.free), len(self._pool.idle)
        held = self.num_pages - free - idle
        return CacheUsage(
            total_pages=self.num_pages,
            free_pages=free,
            held_pages=held,
            evictable_pages=idle,
            num_sequences=len(self._sequences),
            total_bytes=self.num_pages * self.bytes_per_page,
            held_bytes=held * self.bytes_per_page,
        )

    def counters(self) -> CacheCounters:
        """Return the counts since the cache was made."""
        return CacheCounters(
            prefix_query_tokens=self._prefix_query_tokens,
            prefix_hit_tokens=self._prefix_hit_tokens,
            num_evictions=self._num_evictions,
            num_copies=self._num_copies,
        )

    def max_concurrency(self, tokens_per_sequence: int, kappa: int = 0) -> int:
        """Return how many sequences fit at once when they share nothing.

        Parameters
        ----------
        tokens_per_sequence : int
            Cached tokens of each sequence between steps; at least 0.
        kappa : int
            Drafted tokens per step; a step writes ``kappa + 1`` slots past the cached
            tokens. 0 is decoding without speculation.

        Returns
        -------
        int
            Sequences that can each reserve a step at that length.
        """
        if tokens_per_sequence < 0 or kappa < 0:
            msg = f"{tokens_per_sequence} tokens and kappa {kappa}, expected at least 0 of each"
            raise ConfigError(msg)
        return self.num_pages // self._pages_for(tokens_per_sequence + kappa + 1)

    def check_integrity(self) -> None:
        """Recompute every promise from scratch, at the cost of a walk over all pages.

        Raises
        ------
        InvariantError
            If a page is lost, listed twice or miscounted, if a reservation is not
            exclusive, or if a published page is not found under its own tokens.
        """
        states = list(self._sequences.values())
        check_pages(self._pool, states, self._prefixes, self.page_size)
        check_prefixes(self._pool, states, self._prefixes, self.page_size)

    # -- inside ------------------------------------------------------------------

    def _state(self, seq: int) -> SequenceState:
        state = self._sequences.get(seq)
        if state is None:
            raise InvariantError(f"sequence {seq} is not open")
        return state

    def _empty_state(self) -> SequenceState:
        root = self._prefixes.root
        root.num_users += 1
        return SequenceState(np.empty(64, dtype=np.int32), np.empty(8, dtype=np.int32), root)

    def _register(self, state: SequenceState) -> int:
        seq = self._next_id
        self._next_id += 1
        self._sequences[seq] = state
        return seq

    def _pages_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.page_size)

    def _page_tokens(self, tokens: NDArray[np.int32], index: int) -> bytes:
        return tokens[index * self.page_size : (index + 1) * self.page_size].tobytes()

    def _restore(self, state: SequenceState, token_ids: TokenIds) -> None:
        """Share the published pages that the tokens begin with."""
        limit = (len(token_ids) - 1) // self.page_size
        tokens = np.array(token_ids[: limit * self.page_size], dtype=np.int32)
        pages: list[int] = []
        node = state.node
        for index in range(limit):
            child = self._prefixes.find(node, self._page_tokens(tokens, index))
            if child is None or child.page == NO_PAGE:
                break
            node = child
            self._pool.hold(node.page)
            pages.append(node.page)
        if not pages:
            return
        self._prefixes.move_user(state.node, node)
        state.node, state.num_final_pages, state.num_pages = node, len(pages), len(pages)
        state.pages = np.array(pages, dtype=np.int32)
        state.length = state.writable_end = len(pages) * self.page_size
        state.tokens = tokens[: state.length].copy()

    def _republish(self, state: SequenceState) -> None:
        """Give own pages to nodes of the chain that lost theirs to an eviction."""
        node = state.node
        for index in range(state.num_final_pages - 1, -1, -1):
            if node.page == NO_PAGE:
                self._prefixes.publish(node, int(state.pages[index]))
            if node.parent is not None:
                node = node.parent

    def _take(self) -> int:
        page, evicted = self._pool.take()
        if evicted:
            self._prefixes.forget(page)
            self._num_evictions += 1
        return page

    def _drop_pages(self, state: SequenceState, num_kept: int) -> None:
        """Give back the pages from an index on, last first."""
        # Last first: a page is then evicted before the pages it depends on.
        for page in state.pages[num_kept : state.num_pages][::-1].tolist():
            self._pool.release(page, keep=self._prefixes.is_published(page))
        state.num_pages = min(state.num_pages, num_kept)

    def _must_copy(self, state: SequenceState) -> bool:
        """Say whether the next token would land in a page that may not be written."""
        if state.length % self.page_size == 0 or state.length < state.writable_end:
            return False
        page = int(state.pages[state.length // self.page_size])
        return self._pool.references[page] > 1 or self._prefixes.is_published(page)

    def _take_over(self, state: SequenceState) -> bool:
        """Unpublish the last page when nobody else holds it; it may then be written."""
        page = int(state.pages[state.num_pages - 1])
        if self._pool.references[page] > 1:
            return False
        self._prefixes.forget(page)
        self._num_evictions += 1
        return True

    def _copy_last_page(self, state: SequenceState) -> None:
        """Replace the partly filled last page by a copy that is ours alone."""
        index = state.num_pages - 1
        source = int(state.pages[index])
        page = self._take()
        self._copies.append(PageCopy(source, page, state.length % self.page_size))
        self._num_copies += 1
        state.pages[index] = page
        self._pool.release(source, keep=self._prefixes.is_published(source))


def _with_room(array: NDArray[np.int32], size: int) -> NDArray[np.int32]:
    """Return the array, or a copy at least twice as large that has ``size`` entries."""
    if size <= len(array):
        return array
    grown = np.empty(max(size, 2 * len(array)), dtype=np.int32)
    grown[: len(array)] = array
    return grown
