"""The moves of pages between sequences, the prefix cache and the free list.

Three rules make sharing safe. A slot is written only by the one sequence that reserved
it, when the page is not published and no other sequence reads that slot. Only full pages
of final tokens are published, after the pass that wrote them. A page is found again by
its tokens and its whole prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftproof.cache.pool import PagePool
from draftproof.cache.prefix import NO_PAGE, PrefixIndex
from draftproof.cache.sequence import SequenceState, TokenIds
from draftproof.cache.values import PageCopy, SlotMove

__all__ = ["PageLedger"]


class PageLedger:
    """Moves pages; knows sequences by their state, not by their id.

    Parameters
    ----------
    num_pages : int
        Pages of the pool.
    page_size : int
        Token slots of a page.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.pool = PagePool(num_pages)
        self.prefixes = PrefixIndex()
        #: Copies to make before the next pass, in order.
        self.copies: list[PageCopy] = []
        self.num_copies = 0
        self.num_evictions = 0

    def pages_for(self, num_tokens: int) -> int:
        """Return how many pages a number of tokens covers."""
        return -(-num_tokens // self.page_size)

    def create(self) -> SequenceState:
        """Return the state of an empty sequence."""
        root = self.prefixes.root
        root.num_users += 1
        return SequenceState(np.empty(64, dtype=np.int32), np.empty(8, dtype=np.int32), root)

    def restore(self, state: SequenceState, token_ids: TokenIds) -> None:
        """Give an empty sequence the published pages that the tokens begin with.

        One token at least is left out: its logits have to be computed.
        """
        size = self.page_size
        limit = (len(token_ids) - 1) // size
        tokens = np.array(token_ids[: limit * size], dtype=np.int32)
        node, pages = state.node, []
        for index in range(limit):
            child = self.prefixes.find(node, tokens[index * size : (index + 1) * size].tobytes())
            if child is None or child.page == NO_PAGE:
                break
            node = child
            self.pool.hold(node.page)
            pages.append(node.page)
        self.prefixes.move_user(state.node, node)
        state.node, state.num_final_pages = node, len(pages)
        state.add_pages(pages)
        state.add_tokens(tokens[: len(pages) * size])
        state.writable_end = state.length

    def share(self, source: SequenceState) -> SequenceState:
        """Return a second sequence over the cached tokens of a first.

        A reservation of the first stays good, in the shared last page too: it writes
        only behind the shared tokens, and a rollback to before them ends it.
        """
        source.refuse_branches()
        num_pages = self.pages_for(source.length)
        child = SequenceState(
            tokens=source.tokens[: source.length].copy(),
            pages=source.pages[:num_pages].copy(),
            node=source.node,
            length=source.length,
            num_pages=num_pages,
            num_final_pages=source.num_final_pages,
            writable_end=source.length,
            num_evicted=source.num_evicted,
            window=source.window,
        )
        for page in child.pages[child.num_evicted :].tolist():
            self.pool.hold(page)
        child.node.num_users += 1
        return child

    def reserve(self, state: SequenceState, num_tokens: int) -> bool:
        """Make the slots of the next tokens exclusive; False changes nothing."""
        state.refuse_branches()
        end = state.length + num_tokens
        if end <= state.writable_end:
            return True
        num_new = max(0, self.pages_for(end) - state.num_pages)
        must_copy = self.must_copy(state)
        if num_new + must_copy > self.pool.num_available:
            # A published page that nobody else holds can be written after all, once it
            # can no longer be found. That saves the page that its copy would take.
            if not must_copy or num_new > self.pool.num_available or not self._take_over(state):
                return False
            must_copy = False
        if must_copy:
            self._copy_last_page(state)
        if num_new:
            state.add_pages([self._take() for _ in range(num_new)])
        state.writable_end = state.num_pages * self.page_size
        return True

    def gather(
        self, state: SequenceState, length: int, keep: Sequence[int]
    ) -> tuple[list[SlotMove], int]:
        """Move the tokens of some rising slots together behind a length.

        Returns the moves that memory has to make, and the length with those tokens. In
        the order given, no move overwrites what a later one reads.
        """
        size, slots = self.page_size, np.fromiter(keep, dtype=np.int64)
        end = length + len(slots)
        state.tokens[length:end] = state.tokens[slots]
        moves = [
            SlotMove(
                int(state.pages[source // size]),
                source % size,
                int(state.pages[target // size]),
                target % size,
            )
            for target, source in enumerate(slots.tolist(), length)
            if target != source
        ]
        return moves, end

    def rewind(self, state: SequenceState, length: int) -> None:
        """Move the length back and give up every page beyond it."""
        state.branches = None
        node, depth = state.node, state.num_final_pages
        while depth * self.page_size > length and node.parent is not None:
            node, depth = node.parent, depth - 1
        if node is not state.node:
            self.prefixes.move_user(state.node, node)
            state.node, state.num_final_pages = node, depth
        state.length = state.writable_end = length
        self._drop_pages(state, self.pages_for(length))

    def publish(self, state: SequenceState) -> None:
        """Publish the full pages that are not final yet."""
        state.refuse_branches()
        num_full = state.length // self.page_size
        if num_full == state.num_final_pages:
            return
        node = state.node
        for index in range(state.num_final_pages, num_full):
            node = self.prefixes.extend(node, state.page_tokens(index, self.page_size))
            self.prefixes.publish(node, int(state.pages[index]))
            self.pool.touch(node.page)
        self.prefixes.move_user(state.node, node)
        state.node, state.num_final_pages = node, num_full

    def evict(self, state: SequenceState, window: int, spare: int, *, published: bool) -> None:
        """Give up the pages that no token after the length, less some, will see.

        Where pages are published, none goes that is not: others may still find it.
        """
        state.refuse_branches()
        state.window = window
        num_passed = max(0, state.length - spare - window + 1) // self.page_size
        if published:
            num_passed = min(num_passed, state.num_final_pages)
        for page in state.pages[state.num_evicted : num_passed][::-1].tolist():
            self.pool.release(page, keep=self.prefixes.is_published(page))
        state.num_evicted = max(state.num_evicted, num_passed)

    def release(self, state: SequenceState) -> None:
        """Give up everything a sequence holds."""
        # Prefixes that lost their page to an eviction get ours, so that what lies
        # deeper can be reached again.
        node = state.node
        for index in range(state.num_final_pages - 1, -1, -1):
            if node.page == NO_PAGE and index >= state.num_evicted:
                self.prefixes.publish(node, int(state.pages[index]))
            if node.parent is not None:
                node = node.parent
        self._drop_pages(state, 0)
        self.prefixes.leave(state.node)

    def must_copy(self, state: SequenceState) -> bool:
        """Say whether the next token would land in a page that may not be written."""
        if state.length % self.page_size == 0 or state.length < state.writable_end:
            return False
        page = int(state.pages[state.num_pages - 1])
        return self.pool.references[page] > 1 or self.prefixes.is_published(page)

    def _take(self) -> int:
        """Take a page out of the pool, evicting one if there is no free one."""
        page, evicted = self.pool.take()
        if evicted:
            self.prefixes.forget(page)
            self.num_evictions += 1
        return page

    def _take_over(self, state: SequenceState) -> bool:
        """Unpublish the last page, unless someone else holds it."""
        page = int(state.pages[state.num_pages - 1])
        if self.pool.references[page] > 1:
            return False
        self.prefixes.forget(page)
        self.num_evictions += 1
        return True

    def _copy_last_page(self, state: SequenceState) -> None:
        """Replace the partly filled last page by a copy that is ours alone."""
        index = state.num_pages - 1
        source = int(state.pages[index])
        page = self._take()
        self.copies.append(PageCopy(source, page, state.length % self.page_size))
        self.num_copies += 1
        state.pages[index] = page
        self.pool.release(source, keep=self.prefixes.is_published(source))

    def _drop_pages(self, state: SequenceState, num_kept: int) -> None:
        """Give back the pages from an index on."""
        if num_kept >= state.num_pages:
            return
        # Last first: a page is then evicted before the pages it depends on.
        held = max(num_kept, state.num_evicted)
        for page in state.pages[held : state.num_pages][::-1].tolist():
            self.pool.release(page, keep=self.prefixes.is_published(page))
        state.num_pages = num_kept
        state.num_evicted = min(state.num_evicted, num_kept)
