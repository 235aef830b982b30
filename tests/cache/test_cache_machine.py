"""Random lives of many sequences in a pool that is far too small.

The machine drives the simulation of ``conftest.py``: at every moment every slot that a
page table reaches holds what a fresh prefill of that sequence would have written.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from draftproof.cache import PagedCache, PageCopy
from draftproof.cache.ledger import PageLedger
from draftproof.cache.pool import PagePool
from draftproof.cache.prefix import PrefixIndex
from draftproof.errors import InvariantError

# Two token ids and short pages: prefixes meet again all the time.
token_ids = st.integers(0, 1)
prompts = st.lists(token_ids, min_size=1, max_size=10)
picks = st.integers(0, 5)


class CacheMachine(RuleBasedStateMachine):
    """What an engine does to its cache, in any order."""

    def __init__(self, simulation):
        super().__init__()
        self.sim = simulation
        self.preempted = []

    def pick(self, index):
        return list(self.sim.tokens)[index % len(self.sim.tokens)]

    def some_open(self):
        return bool(self.sim.tokens)

    @rule(prompt=prompts, chunk=st.integers(1, 10), peek=st.booleans())
    def submit(self, prompt, chunk, peek):
        """Open and prefill in chunks; another request with the prompt may open meanwhile."""
        if len(self.sim.tokens) > 5:
            return
        seq = self.sim.open(prompt)
        while rest := prompt[len(self.sim.tokens[seq]) :][:chunk]:
            between = (lambda: self.sim.peek([*prompt, 1, 1, 1])) if peek else None
            if not self.sim.run_pass([(seq, rest)], between):
                self.sim.close(seq)
                self.preempted.append(prompt)
                return
            self.sim.commit(seq)

    @precondition(some_open)
    @rule(
        rows=st.lists(
            st.tuples(picks, st.lists(token_ids, max_size=5), st.integers(0, 5), token_ids),
            min_size=1,
            max_size=3,
            unique_by=lambda row: row[0],
        ),
        fate=st.sampled_from(["verified", "verified", "verified", "aborted", "failed"]),
    )
    def speculate(self, rows, fate):
        """Run one round over several rows, each with its own drafts and acceptance."""
        plan = {}
        for index, drafts, accepted, pending in rows:
            seq = self.pick(index)
            if seq not in plan and self.sim.reserve(seq, len(drafts) + 1):
                plan[seq] = [pending, *drafts], min(accepted, len(drafts))
        starts = {seq: len(self.sim.tokens[seq]) for seq in plan}
        ran = self.sim.run_pass([(seq, new) for seq, (new, _) in plan.items()])
        assert ran == list(plan), "a granted reservation failed"
        for number, seq in enumerate(ran):
            if fate == "aborted" and number == 0:
                self.sim.close(seq)
            elif fate == "failed":
                self.sim.truncate(seq, starts[seq])
            else:
                self.sim.truncate(seq, starts[seq] + 1 + plan[seq][1])
                self.sim.commit(seq)

    @precondition(some_open)
    @rule(index=picks, n=st.integers(0, 24))
    def reserve(self, index, n):
        self.sim.reserve(self.pick(index), n)

    @precondition(some_open)
    @rule(index=picks, new=st.lists(token_ids, max_size=4))
    def extend_uncommitted(self, index, new):
        self.sim.run_pass([(self.pick(index), new)])

    @precondition(some_open)
    @rule(index=picks)
    def commit(self, index):
        self.sim.commit(self.pick(index))

    @precondition(some_open)
    @rule(index=picks, cut=st.integers(0, 8))
    def roll_back(self, index, cut):
        """Go back any distance, also below what was committed."""
        seq = self.pick(index)
        self.sim.truncate(seq, max(0, len(self.sim.tokens[seq]) - cut))

    @precondition(some_open)
    @rule(index=picks, cut=st.integers(1, 4), new=st.lists(token_ids, min_size=1, max_size=4))
    def change_context(self, index, cut, new):
        """Commit, go back, write something else, and ask for the old tokens again."""
        seq = self.pick(index)
        self.sim.commit(seq)
        old = list(self.sim.tokens[seq])
        self.sim.truncate(seq, max(0, len(old) - cut))
        self.sim.run_pass([(seq, new)])
        self.sim.close(self.sim.open([*old, 1]))

    @precondition(some_open)
    @rule(index=picks)
    def fork(self, index):
        if len(self.sim.tokens) < 6:
            self.sim.fork(self.pick(index))

    @precondition(some_open)
    @rule(index=picks)
    def abort(self, index):
        self.sim.close(self.pick(index))

    @precondition(some_open)
    @rule(index=picks)
    def preempt(self, index):
        seq = self.pick(index)
        self.preempted.append(self.sim.tokens[seq])
        self.sim.close(seq)

    @precondition(lambda self: self.preempted and len(self.sim.tokens) < 6)
    @rule()
    def resume(self):
        tokens = self.preempted.pop()
        seq = self.sim.open(tokens)
        self.sim.run_pass([(seq, tokens[len(self.sim.tokens[seq]) :])])
        self.sim.commit(seq)

    @rule()
    def flood(self):
        """Take every page there is, so that idle ones are evicted and written over."""
        seq = self.sim.open([])
        usage = self.sim.cache.usage()
        count = (usage.free_pages + usage.evictable_pages) * self.sim.page_size
        assert self.sim.reserve(seq, count), "free and evictable pages could not be taken"
        self.sim.run_pass([(seq, [1] * count)])
        self.sim.close(seq)

    @precondition(lambda self: len(self.sim.tokens) < 2)
    @rule()
    def finish(self):
        self.sim.finish()


def run(make_simulation, **changes):
    run_state_machine_as_test(
        lambda: CacheMachine(make_simulation()),
        settings=settings(
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **{"max_examples": 100, "stateful_step_count": 40, **changes},
        ),
    )


@pytest.mark.parametrize(
    ("num_pages", "page_size", "prefix_caching"),
    [(7, 3, True), (12, 2, True), (5, 1, True), (7, 3, False)],
)
def test_every_reachable_slot_holds_what_a_fresh_prefill_writes(
    simulation_class, num_pages, page_size, prefix_caching
):
    run(
        lambda: simulation_class(
            PagedCache, num_pages, page_size, prefix_caching=prefix_caching
        )
    )


# -- planted faults ------------------------------------------------------------------
# The machine above proves nothing unless it goes red on each of these.


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
    """A rejection leaves one rejected token behind."""

    def truncate(self, seq, length):
        super().truncate(seq, length + (length < self.length(seq)))


class RestoresTheWholePrompt(PagedCache):
    """No token of the prompt is left to compute."""

    def open(self, token_ids=()):
        return super().open([*token_ids, 0] if token_ids else ())


class ReturnsCopiesTwice(PagedCache):
    """Copies that were carried out are handed out again later."""

    def drain_copies(self):
        return list(self._ledger.copies)


class CopiesOneSlotTooFew(PagedCache):
    def drain_copies(self):
        return [PageCopy(src, dst, slots - 1) for src, dst, slots in super().drain_copies()]


class FaultyLedger(PagedCache):
    """A cache whose ledger, pool or prefix index is replaced."""

    ledger, pool, prefixes = PageLedger, PagePool, PrefixIndex

    def __init__(self, num_pages, page_size, *args, **kwargs):
        super().__init__(num_pages, page_size, *args, **kwargs)
        self._ledger = self.ledger(num_pages, page_size)
        self._ledger.pool = self.pool(num_pages)
        self._ledger.prefixes = self.prefixes()


class WritesSharedPages(FaultyLedger):
    """No copy on write at all."""

    class ledger(PageLedger):
        def must_copy(self, state):
            return False


class WritesPublishedPages(FaultyLedger):
    """A page that nobody else lists is written although it can be found by its contents."""

    class ledger(PageLedger):
        def must_copy(self, state):
            must = super().must_copy(state)
            return must and self.pool.references[int(state.pages[state.num_pages - 1])] > 1


class TakesOverSharedPages(FaultyLedger):
    """When room is short a published page is written although others hold it."""

    class ledger(PageLedger):
        def _take_over(self, state):
            page = int(state.pages[state.num_pages - 1])
            if self.prefixes.is_published(page):
                self.prefixes.forget(page)
            return True


class KeepsAReferenceAtClose(FaultyLedger):
    """A partly filled last page is not given back."""

    class ledger(PageLedger):
        def release(self, state):
            if state.length % self.page_size:
                state.num_pages -= 1
            super().release(state)


class KeepsReservedPagesAtClose(FaultyLedger):
    """Pages that were only reserved are not given back."""

    class ledger(PageLedger):
        def release(self, state):
            state.num_pages = self.pages_for(state.length)
            super().release(state)


class ForksTheReservation(FaultyLedger):
    """Both sequences believe that the free slots of the shared page are theirs."""

    class ledger(PageLedger):
        def share(self, source):
            child = super().share(source)
            child.writable_end = child.num_pages * self.page_size
            return child


class KeepsTheReservationAfterRollback(FaultyLedger):
    """A rollback into a shared page leaves it writable."""

    class ledger(PageLedger):
        def rewind(self, state, length):
            end = state.writable_end
            super().rewind(state, length)
            state.writable_end = min(end, state.num_pages * self.page_size)


class KeepsFinalPagesAfterRollback(FaultyLedger):
    """The prefix of a sequence is not rewound, so later pages hang under a wrong one."""

    class ledger(PageLedger):
        def rewind(self, state, length):
            node, depth = state.node, state.num_final_pages
            super().rewind(state, length)
            if node is not state.node:
                self.prefixes.move_user(state.node, node)
                state.node, state.num_final_pages = node, depth


class ReservesOneSlotTooFew(FaultyLedger):
    class ledger(PageLedger):
        def reserve(self, state, num_tokens):
            return super().reserve(state, max(0, num_tokens - 1))


class SeesOnePageTooMany(FaultyLedger):
    class pool(PagePool):
        @property
        def num_available(self):
            return super().num_available + 1


class SeesOnePageTooFew(FaultyLedger):
    class pool(PagePool):
        @property
        def num_available(self):
            return max(0, super().num_available - 1)


class FreesPublishedPages(FaultyLedger):
    """Published pages go to the free list and are written while they can be found."""

    class pool(PagePool):
        def release(self, page, *, keep):
            super().release(page, keep=False)

        def hold(self, page):
            if page in self.free:
                self.free.remove(page)
                self.idle[page] = None
            super().hold(page)


class NeverKeepsPages(FaultyLedger):
    """Nothing is ever published: safe, but no prefix is found again."""

    class ledger(PageLedger):
        def publish(self, state):
            return


class FindsEvictedPages(FaultyLedger):
    """An evicted page is still found under the tokens it held."""

    class ledger(PageLedger):
        def _take(self):
            page, evicted = self.pool.take()
            self.num_evictions += evicted
            return page


class KeysWithoutParent(FaultyLedger):
    """A page is found by its own tokens, whatever came before them."""

    class prefixes(PrefixIndex):
        def key(self, parent, tokens):
            return 0, tokens


class KeysCollide(FaultyLedger):
    """A digest that maps different pages to one name, and is trusted."""

    class prefixes(PrefixIndex):
        def key(self, parent, tokens):
            return parent.serial, bytes([sum(tokens) % 2])


FAULTS = [
    PublishesDrafts,
    RollsAllRowsBackAlike,
    RewindsOneTooMany,
    RewindsOneTooFew,
    RestoresTheWholePrompt,
    ReturnsCopiesTwice,
    CopiesOneSlotTooFew,
    WritesSharedPages,
    WritesPublishedPages,
    TakesOverSharedPages,
    KeepsAReferenceAtClose,
    KeepsReservedPagesAtClose,
    ForksTheReservation,
    KeepsTheReservationAfterRollback,
    KeepsFinalPagesAfterRollback,
    ReservesOneSlotTooFew,
    SeesOnePageTooMany,
    SeesOnePageTooFew,
    FreesPublishedPages,
    NeverKeepsPages,
    FindsEvictedPages,
    KeysWithoutParent,
    KeysCollide,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_caught_by_what_a_caller_can_see(simulation_class, fault):
    """The cache's own integrity check is off here: contents and counts must do."""
    with pytest.raises((AssertionError, InvariantError, IndexError, KeyError)):
        run(
            lambda: simulation_class(fault, integrity=False),
            max_examples=400,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            report_multiple_bugs=False,
        )
