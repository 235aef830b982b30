"""Random lives of many sequences in a pool that is far too small.

The machine drives the simulation of ``tests/cache/conftest.py``, which checks after every
move that each slot a page table reaches holds what a fresh prefill would have written.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

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
    @rule(
        index=picks,
        room=st.integers(0, 4),
        rows=st.tuples(*[st.lists(token_ids, max_size=4)] * 2),
    )
    def fork(self, index, room, rows):
        """Fork a sequence that may have reserved room, then go on with both in one pass."""
        if len(self.sim.tokens) < 6:
            seq = self.pick(index)
            self.sim.reserve(seq, room)
            child = self.sim.fork(seq)
            self.sim.run_pass(list(zip((child, seq), rows, strict=True)))

    @precondition(lambda self: 0 < len(self.sim.tokens) < 6)
    @rule(index=picks, more=st.lists(token_ids, max_size=2))
    def ask_again(self, index, more):
        """Send the tokens of a running sequence once more, perhaps with a few behind."""
        seq = self.pick(index)
        self.sim.commit(seq)
        tokens = self.sim.tokens[seq] + more
        twin = self.sim.open(tokens)
        self.sim.run_pass([(twin, tokens[len(self.sim.tokens[twin]) :])])

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

    @precondition(some_open)
    @rule(
        left=st.integers(0, 1),
        index=picks,
        cut=st.integers(0, 4),
        new=st.lists(token_ids, min_size=1, max_size=4),
    )
    def squeeze(self, left, index, cut, new):
        """Go back and write something else while nearly all room is taken."""
        seq = self.pick(index)
        self.sim.truncate(seq, max(0, len(self.sim.tokens[seq]) - cut))
        hog = self.sim.open([])
        usage = self.sim.cache.usage()
        count = usage.free_pages + usage.evictable_pages - left
        self.sim.reserve(hog, max(0, count) * self.sim.page_size)
        self.sim.run_pass([(seq, new)])
        self.sim.close(hog)

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


@pytest.fixture(scope="session")
def live():
    return run
