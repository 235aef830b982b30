"""A cache with contents: what a model would read through the page tables.

The simulation keeps the memory that the bookkeeping speaks about. A slot holds a digest
of the whole prefix that was visible when it was written, as keys and values do: it is
computed from the slot before it, read through the page table. So a slot that was shared,
copied, published or overwritten wrongly spoils everything written after it, and the
comparison with a fresh prefill of the same tokens shows it.
"""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.cache import PagedCache
from draftproof.errors import CapacityError, RollbackError

EMPTY = 17
MASK = (1 << 62) - 1


def digest(before: int, token: int) -> int:
    return hash((before, token)) & MASK


def prefill(tokens) -> list[int]:
    """Return what a fresh run writes for these tokens, slot by slot."""
    out, value = [], EMPTY
    for token in tokens:
        value = digest(value, token)
        out.append(value)
    return out


class Simulation:
    """Drives a cache, keeps its memory, and checks it against a plain model."""

    def __init__(
        self, make_cache=PagedCache, num_pages=7, page_size=3, *, integrity=True, window=0, **kwargs
    ):
        #: Tokens that a token sees, itself included; 0 for all. Pages behind are given up.
        self.window = window
        self.passed: dict[int, int] = {}  # tokens of given-up pages
        self.cache = make_cache(num_pages, page_size, 64, **kwargs)
        self.integrity = integrity
        self.num_pages, self.page_size = num_pages, page_size
        self.memory = np.zeros((num_pages, page_size), dtype=np.int64)
        self.copies = []
        self.tokens: dict[int, list[int]] = {}
        self.promised: dict[int, int] = {}  # length up to which room was granted
        self.committed: set[tuple[int, ...]] = set()  # full-page prefixes declared final
        self.used_ids: set[int] = set()
        self.counters = self.cache.counters()

    # -- the operations of an engine ------------------------------------------------

    def open(self, tokens) -> int:
        hits = self.counters.prefix_hit_tokens
        seq = self.cache.open(tokens)
        assert seq not in self.used_ids, "a sequence id came back"
        restored = self.cache.length(seq)
        size = self.page_size
        assert restored % size == 0, "a part of a page was restored"
        assert restored <= max(0, len(tokens) - 1), "no token is left to compute"
        known = 0
        while tuple(tokens[: known + size]) in self.committed and known + size < len(tokens):
            known += size
        assert restored <= known, "tokens that were never final were restored"
        assert self.cache.counters().prefix_hit_tokens == hits + restored
        if self.counters.num_evictions == 0 and self.cache.prefix_caching:
            assert restored == known, "a published prefix was not found"
        self._track(seq, list(tokens[:restored]))
        return seq

    def peek(self, tokens) -> None:
        """Open and close while a pass is under way: only written pages may be restored."""
        seq = self.cache.open(tokens)
        restored = self.cache.length(seq)
        table = self.cache.page_table(seq).tolist()
        read = self._memory_now()[table].reshape(-1)[:restored].tolist()
        assert read == prefill(tokens[:restored]), "restored contents are wrong, or not written yet"
        self.cache.close(seq)

    def fork(self, seq: int) -> int:
        child = self.cache.fork(seq)
        assert child not in self.used_ids, "a sequence id came back"
        self.passed[child] = self.passed[seq]
        self._track(child, list(self.tokens[seq]))
        return child

    def close(self, seq: int) -> None:
        self.cache.close(seq)
        del self.tokens[seq], self.promised[seq]
        self.check()

    def reserve(self, seq: int, n: int) -> bool:
        before = self._visible()
        length, size = len(self.tokens[seq]), self.page_size
        num_copies = self.cache.counters().num_copies
        granted = self.cache.reserve(seq, n)
        if granted:
            self.promised[seq] = max(self.promised[seq], length + n)
        else:
            usage = before[0]
            room = usage.free_pages + usage.evictable_pages
            at_most = -(-(length + n) // size) - -(-length // size) + 1
            assert at_most > room, f"refused although {room} pages are left for {at_most}"
            copied = length % size and not self._is_exclusive(seq)
            assert copied or at_most - 1 > room, "refused although no copy is needed"
            assert self._visible() == before, "a refused reservation changed something"
            assert self.cache.counters().num_copies == num_copies
        self.check()
        return granted

    def run_pass(self, rows, between=None) -> list[int]:
        """Append rows of (sequence, tokens), run the pass, and return the rows that ran."""
        ran, starts = [], {}
        for seq, new in rows:
            before = self._visible()
            start = len(self.tokens[seq])
            try:
                self.cache.append(seq, new)
            except CapacityError:
                assert start + len(new) > self.promised[seq], "a granted reservation failed"
                assert self._visible() == before, "a refused append changed something"
                continue
            self.tokens[seq] = self.tokens[seq] + list(new)
            starts[seq] = start
            ran.append(seq)
        if between is not None:
            between()
        self._carry_out_copies(self.memory, self._drained())
        self._write(ran, starts)
        self.check()
        return ran

    def truncate(self, seq: int, length: int) -> None:
        if length and self._first_seen(length) < self.passed[seq]:
            before = self._visible()
            with pytest.raises(RollbackError, match="cannot go back"):
                self.cache.truncate(seq, length)
            assert self._visible() == before, "a refused rollback changed something"
            return
        self.cache.truncate(seq, length)
        self.passed[seq] = min(self.passed[seq], -(-length // self.page_size) * self.page_size)
        self.tokens[seq] = self.tokens[seq][:length]
        self.promised[seq] = length
        self.check()

    def commit(self, seq: int) -> None:
        self.cache.commit(seq)
        size, tokens = self.page_size, self.tokens[seq]
        for end in range(size, len(tokens) + 1, size):
            self.committed.add(tuple(tokens[:end]))
        if self.window:
            self.cache.evict(seq, self.window)
            passed = self._first_seen(len(tokens)) // size * size
            self.passed[seq] = max(self.passed[seq], passed)
        self.check()

    def finish(self) -> None:
        """Close everything; all pages must come back and be usable at once."""
        for seq in list(self.tokens):
            self.close(seq)
        usage = self.cache.usage()
        assert usage.held_pages == 0, "pages leaked"
        assert usage.held_bytes == 0
        slots = self.num_pages * self.page_size
        seq = self.open([])
        assert not self.reserve(seq, slots + 1)
        assert self.reserve(seq, slots), "pages were lost"
        self.run_pass([(seq, [1] * slots)])
        self.close(seq)

    # -- the checks -------------------------------------------------------------------

    def check(self) -> None:
        cache = self.cache
        if self.integrity:
            cache.check_integrity()
        memory = self._memory_now()
        seqs = list(self.tokens)
        indices, begins = cache.block_table(seqs)
        assert indices.dtype == begins.dtype == np.int32
        assert cache.lengths(seqs).tolist() == [len(self.tokens[seq]) for seq in seqs], "length"
        for row, seq in enumerate(seqs):
            tokens = self.tokens[seq]
            assert cache.length(seq) == len(tokens)
            assert cache.tokens(seq).tolist() == tokens, "token ids"
            table = cache.page_table(seq).tolist()
            assert len(table) == -(-len(tokens) // self.page_size), "page table of another length"
            first = self.passed[seq] // self.page_size
            assert len(set(table[first:])) == len(table[first:]), "a page stands twice in a table"
            assert indices[begins[row] : begins[row + 1]].tolist() == table
            seen = slice(self._first_seen(len(tokens)), len(tokens))
            read = memory[table].reshape(-1)[seen].tolist()
            assert read == prefill(tokens)[seen], f"contents of {tokens}"
        self._check_usage(indices)

    def _check_usage(self, indices) -> None:
        usage, counters = self.cache.usage(), self.cache.counters()
        assert usage.total_pages == self.num_pages
        assert usage.free_pages + usage.held_pages + usage.evictable_pages == self.num_pages
        assert usage.held_bytes == 64 * usage.held_pages
        assert usage.num_sequences == len(self.tokens)
        listed = set(indices.tolist())
        reserved = sum(
            -(-self.promised[seq] // self.page_size) - -(-len(tokens) // self.page_size)
            for seq, tokens in self.tokens.items()
            if self.promised[seq] > len(tokens)
        )
        assert usage.held_pages == len(listed) + reserved, "pages leaked or lost"
        for name in ("prefix_query_tokens", "prefix_hit_tokens", "num_evictions", "num_copies"):
            assert getattr(counters, name) >= getattr(self.counters, name) >= 0, "a counter fell"
        self.counters = counters

    # -- inside -----------------------------------------------------------------------

    def _first_seen(self, length) -> int:
        """Return the first position that a token at a position sees."""
        return max(0, length - self.window + 1) if self.window else 0

    def _track(self, seq, tokens) -> None:
        self.passed.setdefault(seq, 0)
        self.used_ids.add(seq)
        self.tokens[seq] = tokens
        self.promised[seq] = len(tokens)
        self.check()

    def _memory_now(self):
        """Return the memory as it will be when the scheduled copies are done."""
        self.copies += self.cache.drain_copies()
        if not self.copies:
            return self.memory
        memory = self.memory.copy()
        self._carry_out_copies(memory, self.copies)
        return memory

    def _drained(self):
        copies, self.copies = self.copies + self.cache.drain_copies(), []
        return copies

    def _carry_out_copies(self, memory, copies) -> None:
        for src, dst, num_slots in copies:
            memory[dst, :num_slots] = memory[src, :num_slots]

    def _write(self, ran, starts) -> None:
        """Write the new slots of all rows, as one pass does."""
        size = self.page_size
        for seq in ran:
            table = self.cache.page_table(seq).tolist()
            for position in range(starts[seq], len(self.tokens[seq])):
                before = EMPTY
                if position:
                    last = position - 1
                    before = int(self.memory[table[last // size], last % size])
                value = digest(before, self.tokens[seq][position])
                self.memory[table[position // size], position % size] = value

    def _visible(self):
        return (
            self.cache.usage(),
            {seq: self.cache.page_table(seq).tolist() for seq in self.tokens},
            {seq: self.cache.length(seq) for seq in self.tokens},
        )

    def _is_exclusive(self, seq) -> bool:
        """Say whether nobody else can read the last page: no sequence, no later prefix."""
        page = self.cache.page_table(seq).tolist()[-1]
        others = (self.cache.page_table(other).tolist() for other in self.tokens if other != seq)
        return all(page not in table for table in others)


@pytest.fixture(scope="session")
def simulation_class():
    return Simulation


@pytest.fixture
def simulate():
    def make(*args, **kwargs):
        return Simulation(*args, **kwargs)

    return make
