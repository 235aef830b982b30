"""The random lives prove nothing unless they go red on each of these faults."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from draftproof.cache import PageCopy, PagedCache
from draftproof.cache.ledger import PageLedger
from draftproof.cache.pool import PagePool
from draftproof.cache.prefix import PrefixIndex
from draftproof.errors import InvariantError


class PublishesDrafts(PagedCache):
    """Pages are published when they are appended: unwritten, and drafts too."""

    def append(self, seq, token_ids):
        super().append(seq, token_ids)
        super().commit(seq)


class RollsAllRowsBackAlike(PagedCache):
    """The first row's rollback is applied to every row of the round."""

    amount = None

    def append(self, seq, token_ids):
        self.amount = None
        super().append(seq, token_ids)

    def truncate(self, seq, length):
        if self.amount is None:
            self.amount = self.length(seq) - length
        super().truncate(seq, max(0, self.length(seq) - self.amount))


class RewindsOneTooMany(PagedCache):
    """A rejection takes back the rejected tokens plus one."""

    def truncate(self, seq, length):
        super().truncate(seq, max(0, length - (length < self.length(seq))))


class RewindsOneTooFew(PagedCache):
    def truncate(self, seq, length):
        super().truncate(seq, length + (length < self.length(seq)))


class RestoresTheWholePrompt(PagedCache):
    def open(self, token_ids=()):
        return super().open([*token_ids, 0] if token_ids else ())


class ReturnsCopiesTwice(PagedCache):
    def drain_copies(self):
        return list(self._ledger.copies)


class CopiesOneSlotTooFew(PagedCache):
    def drain_copies(self):
        return [PageCopy(src, dst, slots - 1) for src, dst, slots in super().drain_copies()]


class WritesSharedPages(PageLedger):
    """No copy on write at all."""

    def must_copy(self, state):
        return False


class WritesPublishedPages(PageLedger):
    """A page that nobody else lists is written although it can be found by its contents."""

    def must_copy(self, state):
        must = super().must_copy(state)
        return must and self.pool.references[int(state.pages[state.num_pages - 1])] > 1


class TakesOverSharedPages(PageLedger):
    """When room is short a page is written although others hold it."""

    def _take_over(self, state):
        page = int(state.pages[state.num_pages - 1])
        if self.prefixes.is_published(page):
            self.prefixes.forget(page)
            self.num_evictions += 1
        return True


class KeepsAReferenceAtClose(PageLedger):
    """A partly filled last page is not given back."""

    def release(self, state):
        if state.length % self.page_size:
            state.num_pages -= 1
        super().release(state)


class KeepsReservedPagesAtClose(PageLedger):
    def release(self, state):
        state.num_pages = self.pages_for(state.length)
        super().release(state)


class ForksTheReservation(PageLedger):
    """Both sequences believe that the free slots of the shared page are theirs."""

    def share(self, source):
        child = super().share(source)
        child.writable_end = child.num_pages * self.page_size
        return child


class KeepsTheReservationAfterRollback(PageLedger):
    """A rollback into a shared page leaves it writable."""

    def rewind(self, state, length):
        end = state.writable_end
        super().rewind(state, length)
        state.writable_end = min(end, state.num_pages * self.page_size)


class KeepsFinalPagesAfterRollback(PageLedger):
    """The prefix of a sequence is not rewound, so later pages hang under a wrong one."""

    def rewind(self, state, length):
        node, depth = state.node, state.num_final_pages
        super().rewind(state, length)
        if node is not state.node:
            self.prefixes.move_user(state.node, node)
            state.node, state.num_final_pages = node, depth


class ReservesOneSlotTooFew(PageLedger):
    def reserve(self, state, num_tokens):
        return super().reserve(state, max(0, num_tokens - 1))


class SeesOnePageTooMany(PageLedger):
    """The capacity that a reservation is held against is off by one."""

    off_by = 1

    def reserve(self, state, num_tokens):
        honest, off_by = self.pool, self.off_by

        class Pool(PagePool):
            num_available = property(lambda self: honest.num_available + off_by)

        self.pool = Pool(0)
        self.pool.__dict__ = honest.__dict__
        try:
            return super().reserve(state, num_tokens)
        finally:
            self.pool = honest


class SeesOnePageTooFew(SeesOnePageTooMany):
    off_by = -1


class NeverPublishes(PageLedger):
    """Safe, but no prefix is found again."""

    def publish(self, state):
        return


class FindsEvictedPages(PageLedger):
    """An evicted page is still found under the tokens it held."""

    def _take(self):
        page, evicted = self.pool.take()
        self.num_evictions += evicted
        return page


class EvictsByDraftedLength(PageLedger):
    """The window is counted from tokens that a rejection may still take back."""

    def evict(self, state, window, spare, *, published):
        super().evict(state, max(1, window - 2), spare, published=published)


class EvictsTwice(PageLedger):
    """Pages that were given up are given up again when the sequence ends."""

    def release(self, state):
        state.num_evicted = 0
        super().release(state)


class ForksGivenUpPages(PageLedger):
    """A fork believes that it holds pages that its source gave up."""

    def share(self, source):
        child = super().share(source)
        child.num_evicted = 0
        return child


class FreesPublishedPages(PagePool):
    """Published pages go to the free list and are written while they can be found."""

    def release(self, page, *, keep):
        super().release(page, keep=False)

    def hold(self, page):
        if page in self.free:
            self.free.remove(page)
            self.idle[page] = None
        super().hold(page)


class KeysWithoutParent(PrefixIndex):
    """A page is found by its own tokens, whatever came before them."""

    def key(self, parent, tokens):
        return 0, tokens


class KeysCollide(PrefixIndex):
    """A digest that gives different pages one name, and is trusted."""

    def key(self, parent, tokens):
        return parent.serial, bytes([sum(tokens) % 2])


FAULTS = [
    *(PublishesDrafts, RollsAllRowsBackAlike, RewindsOneTooMany, RewindsOneTooFew),
    *(RestoresTheWholePrompt, ReturnsCopiesTwice, CopiesOneSlotTooFew),
    *(WritesSharedPages, WritesPublishedPages, TakesOverSharedPages),
    *(KeepsAReferenceAtClose, KeepsReservedPagesAtClose, ForksTheReservation),
    *(KeepsTheReservationAfterRollback, KeepsFinalPagesAfterRollback),
    *(ReservesOneSlotTooFew, SeesOnePageTooMany, SeesOnePageTooFew),
    *(NeverPublishes, FindsEvictedPages, FreesPublishedPages, KeysWithoutParent, KeysCollide),
]


def with_fault(fault):
    """Return what makes a cache that has the fault in the part it is a subclass of."""
    if issubclass(fault, PagedCache):
        return fault

    def make(num_pages, page_size, *args, **kwargs):
        cache = PagedCache(num_pages, page_size, *args, **kwargs)
        if issubclass(fault, PageLedger):
            cache._ledger = fault(num_pages, page_size)
        elif issubclass(fault, PagePool):
            cache._ledger.pool = fault(num_pages)
        else:
            cache._ledger.prefixes = fault()
        return cache

    return make


@pytest.mark.parametrize(
    "fault", [EvictsByDraftedLength, EvictsTwice, ForksGivenUpPages], ids=lambda each: each.__name__
)
def test_a_planted_fault_of_the_window_is_caught(live, simulation_class, fault):
    with pytest.raises((AssertionError, InvariantError, IndexError, KeyError)):
        live(
            lambda: simulation_class(with_fault(fault), 9, 2, integrity=False, window=4),
            max_examples=2000,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
        )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught_by_what_a_caller_can_see(live, simulation_class, fault):
    """The cache's own integrity check is off here: contents and counts must do."""
    with pytest.raises((AssertionError, InvariantError, IndexError, KeyError)):
        live(
            lambda: simulation_class(with_fault(fault), integrity=False),
            max_examples=2000,  # most are caught within 50
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
        )
