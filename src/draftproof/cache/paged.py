"""Page tables of ragged sequences: reserve, append, roll back, share.

How a pass uses it::

    cache.reserve(seq, kappa + 1)          # before drafting; False: preempt someone
    cache.append(seq, tokens)              # for each row
    copies = cache.drain_copies()          # carried out in order, before the pass
    indices, begins = cache.block_table(seqs)
    ...                                    # the pass writes the slots of the new tokens
    cache.truncate(seq, accepted_length)   # rejected drafts: the length goes back
    cache.commit(seq)                      # after the pass, so the pages are written

Between the first ``append`` and the end of the pass the rows of the pass may not be
forked, truncated, committed or closed. A pass that failed is undone by ``truncate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from draftproof.cache.branches import branches_of, check_path
from draftproof.cache.integrity import check_pages, check_prefixes
from draftproof.cache.ledger import PageLedger
from draftproof.cache.sequence import SequenceState, TokenIds
from draftproof.cache.values import CacheCounters, CacheUsage, PageCopy, SlotMove
from draftproof.errors import CapacityError, ConfigError, InvariantError, RollbackError

__all__ = ["PagedCache"]


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
        self._ledger = PageLedger(num_pages, page_size)
        self._sequences: dict[int, SequenceState] = {}
        self._next_id = 0
        self._prefix_query_tokens = 0
        self._prefix_hit_tokens = 0

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
        state = self._ledger.create()
        if self.prefix_caching and len(token_ids) > 0:
            self._ledger.restore(state, token_ids)
            self._prefix_query_tokens += len(token_ids)
            self._prefix_hit_tokens += state.length
        return self._register(state)

    def fork(self, seq: int) -> int:
        """Start a sequence that shares all cached tokens of another.

        The last page is shared even when it is partly filled; whoever needs room in
        it gets a copy. What ``seq`` has reserved stays reserved for ``seq`` alone.

        Parameters
        ----------
        seq : int
            The sequence to share.

        Returns
        -------
        int
            The new sequence id.
        """
        return self._register(self._ledger.share(self._state(seq)))

    def close(self, seq: int) -> None:
        """End a sequence and give back what it holds alone.

        Published pages stay findable until their room is needed, the deepest page of
        a prefix going first.

        Parameters
        ----------
        seq : int
            The sequence to end.
        """
        self._ledger.release(self._state(seq))
        del self._sequences[seq]

    def reserve(self, seq: int, n: int) -> bool:
        """Make sure that the next ``n`` tokens have slots of their own.

        Free pages are used first, then idle pages of the prefix cache, least recently
        used first. A shared or published page that the next token would land in is
        replaced by a copy. A reservation lasts until ``truncate`` or ``close``.

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
        if n < 0:
            raise InvariantError(f"reserve of {n} tokens, expected at least 0")
        return self._ledger.reserve(self._state(seq), n)

    def append(self, seq: int, token_ids: TokenIds, parents: Sequence[int] | None = None) -> None:
        """Move the length forward over new tokens, reserving room when there is none.

        Parameters
        ----------
        seq : int
            The sequence that grows.
        token_ids : sequence of int
            The tokens whose slots the next pass writes.
        parents : sequence of int, optional
            Index of each token's parent among them, -1 for the first, where they
            branch. ``truncate`` must then come before anything else grows, shares or
            publishes the sequence.

        Raises
        ------
        CapacityError
            If there is no room; nothing has changed then.
        """
        state = self._state(seq)
        if not self._ledger.reserve(state, len(token_ids)):
            msg = (
                f"sequence {seq} needs {len(token_ids)} slots after {state.length} tokens, "
                f"but only {self._ledger.pool.num_available} of {self.num_pages} pages can be taken"
            )
            raise CapacityError(msg)
        state.branches = branches_of(state.length, parents)
        state.add_tokens(token_ids)

    def truncate(self, seq: int, length: int, keep: Sequence[int] = ()) -> list[SlotMove]:
        """Drop the cached tokens from position ``length`` on, and the reservation.

        Pages wholly beyond ``length`` go back to the pool, those that were only
        reserved too. Tokens that were committed may be dropped as well: a published
        page is copied before anything is written to it, so what others find in it
        stays true.

        Parameters
        ----------
        seq : int
            The sequence to roll back.
        length : int
            The new length, from 0 to the current one.
        keep : sequence of int
            Slots after it that stay as well: the rest of one path of a row that
            branched.

        Returns
        -------
        list of SlotMove
            What memory must copy, in order and before anything else is written.

        Raises
        ------
        InvariantError
            If the new length is negative or above the current one, or what stays is
            not one path; nothing has changed then.
        RollbackError
            If a text of the new length would see pages that `evict` gave up; nothing has
            changed then. Length 0 is always there.
        """
        state = self._state(seq)
        check_path(state.branches, length, state.length, keep)
        if not state.reaches_back(length, self.page_size):
            raise RollbackError(
                f"sequence {seq} cannot go back from {state.length} to {length} tokens: what a "
                f"window of {state.window} would see there was given up"
            )
        moves: list[SlotMove] = []
        if len(keep):
            moves, length = self._ledger.gather(state, length, keep)
        self._ledger.rewind(state, length)
        return moves

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
        if self.prefix_caching:
            self._ledger.publish(state)

    def evict(self, seq: int, window: int, spare: int = 0) -> None:
        """Give up the pages that no later token of a sequence will see.

        Only the tokens that are cached now count, so call it when rejected drafts were
        truncated. Published pages stay findable until their room is needed.

        Parameters
        ----------
        seq : int
            The sequence.
        window : int
            How many tokens a token of any layer sees, itself included; the same for all
            calls, at least 1.
        spare : int
            How many of the cached tokens a rollback may still take back.
        """
        self._ledger.evict(self._state(seq), window, spare, published=self.prefix_caching)

    def length(self, seq: int) -> int:
        """Return the number of cached tokens."""
        return self._state(seq).length

    def lengths(self, seqs: Sequence[int]) -> NDArray[np.int32]:
        """Return the numbers of cached tokens, int32 of shape (B,)."""
        return np.array([state.length for state in self._states(seqs)], dtype=np.int32)

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
            ``i % page_size`` of page ``table[i // page_size]``. For pages that `evict`
            gave up stands the first that is left: they hold nothing that may be seen.
        """
        state = self._state(seq)
        view = state.table(self._ledger.pages_for(state.length))
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
        states = self._states(seqs)
        counts = [-(-state.length // self.page_size) for state in states]
        tables = [state.table(count) for state, count in zip(states, counts, strict=True)]
        indices = np.concatenate(tables) if tables else np.zeros(0, dtype=np.int32)
        return indices, np.array([0, *accumulate(counts)], dtype=np.int32)

    def drain_copies(self) -> list[PageCopy]:
        """Return the copies to make before the next pass, and forget them.

        They must be made in order: a page that one copy reads may be written by a
        later one.

        Returns
        -------
        list of PageCopy
            Triples (source page, destination page, number of slots).
        """
        copies, self._ledger.copies = self._ledger.copies, []
        return copies

    def usage(self) -> CacheUsage:
        """Return where the pages are now."""
        pool = self._ledger.pool
        held = self.num_pages - pool.num_available
        return CacheUsage(
            total_pages=self.num_pages,
            free_pages=len(pool.free),
            held_pages=held,
            evictable_pages=len(pool.idle),
            num_sequences=len(self._sequences),
            total_bytes=self.num_pages * self.bytes_per_page,
            held_bytes=held * self.bytes_per_page,
        )

    def counters(self) -> CacheCounters:
        """Return the counts since the cache was made."""
        return CacheCounters(
            prefix_query_tokens=self._prefix_query_tokens,
            prefix_hit_tokens=self._prefix_hit_tokens,
            num_evictions=self._ledger.num_evictions,
            num_copies=self._ledger.num_copies,
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

        Raises
        ------
        ConfigError
            If a number is negative.
        """
        if tokens_per_sequence < 0 or kappa < 0:
            msg = f"{tokens_per_sequence} tokens and kappa {kappa}, expected at least 0 of each"
            raise ConfigError(msg)
        return self.num_pages // self._ledger.pages_for(tokens_per_sequence + kappa + 1)

    def check_integrity(self) -> None:
        """Recompute every promise from scratch, at the cost of a walk over all pages.

        Raises
        ------
        InvariantError
            If a page is lost, listed twice or miscounted, if a reservation is not
            exclusive, or if a published page is not found under its own tokens.
        """
        states = list(self._sequences.values())
        check_pages(self._ledger.pool, states, self._ledger.prefixes, self.page_size)
        check_prefixes(self._ledger.pool, states, self._ledger.prefixes, self.page_size)

    def _state(self, seq: int) -> SequenceState:
        state = self._sequences.get(seq)
        if state is None:
            raise InvariantError(f"sequence {seq} is not open")
        return state

    def _states(self, seqs: Sequence[int]) -> list[SequenceState]:
        # For whole batches: once per pass, where a call per row would be felt.
        try:
            return [self._sequences[seq] for seq in seqs]
        except KeyError as error:
            raise InvariantError(f"sequence {error.args[0]} is not open") from None

    def _register(self, state: SequenceState) -> int:
        seq = self._next_id
        self._next_id += 1
        self._sequences[seq] = state
        return seq
