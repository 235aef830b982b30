"""The backend kit passes what is right and fails every planted fault."""

import numpy as np
import pytest

from draftproof.backends.table import (
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    RecurrentStore,
    TableBackend,
    WindowStore,
)
from draftproof.core.types import FlatBatch
from draftproof.errors import BackendError, CapacityError, ContextOverflowError, RollbackError
from draftproof.testing import BACKEND_CHECKS, ConformanceError, check_backend

# A law of all tokens and all positions: whatever is wrong in memory shows in the logits.
TABLE = MixedTable(MarkovTable(7, None, seed=1), PositionTable(7, seed=2), 0.5)
LIMIT = 200


def paged(cls=TableBackend, num_pages=64, page_size=4):
    return cls(TABLE, PagedStore(num_pages, page_size), context_length=LIMIT)


STORES = {
    "paged": lambda: PagedStore(64, 4),
    "large pages": lambda: PagedStore(8, 32),
    "odd pages": lambda: PagedStore(90, 3),
    "no prefix cache": lambda: PagedStore(64, 4, prefix_caching=False),
    "window": lambda: WindowStore(5),
    "window of one": lambda: WindowStore(2),
    "recurrent": lambda: RecurrentStore(),
    "snapshots": lambda: RecurrentStore(3),
}


@pytest.mark.parametrize("name", STORES)
def test_table_models_conform_to_the_bit(name):
    report = check_backend(
        lambda: TableBackend(TABLE, STORES[name](), context_length=LIMIT), tolerance=0.0
    )
    report.require()
    assert report.largest_difference == 0.0
    skipped = {result.name for result in report if result.status == "skipped"}
    if name in ("paged", "large pages", "odd pages", "no prefix cache"):
        assert skipped == {"unwindable_state_is_refused"}
    if name == "recurrent":
        assert "unwindable_state_is_refused" not in skipped


def test_warm_check_really_restores():
    made = []

    def make():
        made.append(paged())
        return made[-1]

    check_backend(make, names=["warm_equals_cold"]).require()
    assert max(b.store.cache.counters().prefix_hit_tokens for b in made) > 0


# -- planted faults ----------------------------------------------------------------


class TruncatesOneShort(TableBackend):
    """Keeps one rejected token, and says so."""

    def truncate(self, sequence_id, length):
        super().truncate(sequence_id, min(length + 1, self.length(sequence_id)))


class TruncatesOneTooFar(TableBackend):
    """Rewinds rejected + 1 tokens (KV-1 b)."""

    def truncate(self, sequence_id, length):
        shorter = max(0, length - 1) if length < self.length(sequence_id) else length
        super().truncate(sequence_id, shorter)


class _Shifted(TableBackend):
    """Base of faults that lie about the length: the inner sequence is longer."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = {}

    def length(self, sequence_id):
        return super().length(sequence_id) - self.extra.get(sequence_id, 0)

    def _check(self, batch):
        lengths = {s: n for s, n in self.extra.items() if n}
        if not lengths:
            super()._check(batch)

    def close(self, sequence_id):
        self.extra.pop(sequence_id, None)
        super().close(sequence_id)


class KeepsARejectedToken(_Shifted):
    """Reports the right length after a rollback but still attends to one dropped token."""

    def truncate(self, sequence_id, length):
        held = self.length(sequence_id)
        if length < held:
            self.extra[sequence_id] = self.extra.get(sequence_id, 0) + 1
        super().truncate(sequence_id, length + self.extra.get(sequence_id, 0))


class RollsAllRowsBack(TableBackend):
    """One shared offset: all open sequences lose as many tokens as one does (KV-3)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.open_ids = set()

    def open(self, token_ids=()):
        sequence_id = super().open(token_ids)
        self.open_ids.add(sequence_id)
        return sequence_id

    def close(self, sequence_id):
        self.open_ids.discard(sequence_id)
        super().close(sequence_id)

    def truncate(self, sequence_id, length):
        dropped = self.length(sequence_id) - length
        for other in self.open_ids - {sequence_id}:
            super().truncate(other, max(0, self.length(other) - dropped))
        super().truncate(sequence_id, length)


class _Rewrites(TableBackend):
    """Base of faults in what a pass feeds."""

    def _append(self, batch):
        return super()._append(self.rewritten(batch))

    def rewritten(self, batch):
        return batch


class PositionsOffAfterRollback(_Rewrites):
    """Positions continue from the longest length seen, not from the current one (KV-4)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rolled_back = set()

    def truncate(self, sequence_id, length):
        if length < self.length(sequence_id):
            self.rolled_back.add(sequence_id)
        super().truncate(sequence_id, length)

    def rewritten(self, batch):
        positions = batch.positions.copy()
        for row, sequence_id in enumerate(batch.sequence_ids):
            if sequence_id in self.rolled_back:
                positions[batch.row_begins[row] : batch.row_begins[row + 1]] += 1
        return FlatBatch(
            batch.sequence_ids, batch.row_begins, batch.token_ids, positions, batch.logits_rows
        )


class PositionsOfTheFirstRow(_Rewrites):
    """All rows get positions that start where the first row starts (KV-3)."""

    def rewritten(self, batch):
        positions = batch.positions.copy()
        for row in range(1, len(batch.sequence_ids)):
            begin, end = batch.row_begins[row], batch.row_begins[row + 1]
            positions[begin:end] = np.arange(end - begin) + positions[0]
        return FlatBatch(
            batch.sequence_ids, batch.row_begins, batch.token_ids, positions, batch.logits_rows
        )


class StaleLastToken(_Rewrites):
    """The last token of a block is the one of the previous pass."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.previous = 0

    def rewritten(self, batch):
        tokens = batch.token_ids.copy()
        if len(tokens) > 1:
            tokens[-1], self.previous = self.previous, tokens[-1]
        return FlatBatch(
            batch.sequence_ids, batch.row_begins, tokens, batch.positions, batch.logits_rows
        )


class FirstRowsInsteadOfLast(_Rewrites):
    """Returns the logits of a row's first tokens, as many as were wanted."""

    def rewritten(self, batch):
        rows = batch.logits_rows.copy()
        for row in range(len(batch.sequence_ids)):
            begin, end = batch.row_begins[row], batch.row_begins[row + 1]
            inside = (rows >= begin) & (rows < end)
            rows[inside] = begin + np.arange(inside.sum())
        return FlatBatch(
            batch.sequence_ids, batch.row_begins, batch.token_ids, batch.positions, rows
        )


class RowsInSequenceOrder(TableBackend):
    """Sorts the logits of a pass by sequence id, not by row."""

    def _append(self, batch):
        logits = super()._append(batch)
        owners = np.searchsorted(batch.row_begins, batch.logits_rows, side="right") - 1
        keys = [batch.sequence_ids[owner] for owner in owners]
        return logits[np.argsort(keys, kind="stable")]


class SeesItsNeighbour(TableBackend):
    """The second row's logits are mixed with the first row's."""

    def _append(self, batch):
        logits = super()._append(batch)
        if len(batch.sequence_ids) > 1 and len(logits) > 1:
            logits[-1] = 0.99 * logits[-1] + 0.01 * logits[0]
        return logits


class ReturnsHalfPrecision(TableBackend):
    def forward(self, batch):
        return super().forward(batch).astype(np.float16)


class ReturnsNan(TableBackend):
    def _append(self, batch):
        logits = super()._append(batch)
        if len(batch) > 4:
            logits[-1:] = np.nan
        return logits


class PublishesDrafts(TableBackend):
    """Declares tokens final as soon as they are computed (KV-5)."""

    def _append(self, batch):
        logits = super()._append(batch)
        for sequence_id in batch.sequence_ids:
            self.store.commit(sequence_id)
        return logits


class PublishesBeforeWriting(TableBackend):
    """Pages that drafts filled stay published under those drafts after a rollback."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.published = {}

    def open(self, token_ids=()):
        for text, source in sorted(self.published.items(), key=lambda item: -len(item[0])):
            usable = min(len(text), len(token_ids) - 1, self.length(source))
            if len(text) > 4 and usable > 4 and tuple(token_ids[: len(text)]) == text:
                copy = self.fork(source)
                super().truncate(copy, usable)
                return copy
        return super().open(())

    def _append(self, batch):
        logits = super()._append(batch)
        for sequence_id in batch.sequence_ids:
            text = tuple(self.store.cache.tokens(sequence_id).tolist())
            self.published.setdefault(text, sequence_id)
        return logits

    def close(self, sequence_id):
        self.published = {t: s for t, s in self.published.items() if s != sequence_id}
        super().close(sequence_id)


class RestoresByLengthOnly(TableBackend):
    """A warm request gets whatever the last one left, when it is as long."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.kept = None

    def commit(self, sequence_id):
        super().commit(sequence_id)
        self.kept = self.fork(sequence_id)

    def open(self, token_ids=()):
        if self.kept is None or len(token_ids) < 2:
            return super().open(())
        sequence_id = self.fork(self.kept)
        super().truncate(sequence_id, min(len(token_ids) - 1, self.length(sequence_id)))
        return sequence_id


class RestoresTheWholePrompt(TableBackend):
    """Leaves no token to compute."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.texts = {}

    def commit(self, sequence_id):
        super().commit(sequence_id)
        text = tuple(self.store.cache.tokens(sequence_id).tolist())
        self.texts[text] = self.fork(sequence_id)

    def open(self, token_ids=()):
        found = self.texts.get(tuple(token_ids))
        return super().open(token_ids) if found is None else self.fork(found)


class NoCopyStore(PagedStore):
    """Copy on write without the copy: a fork reads slots that were never written."""

    def append(self, sequence_id, token_ids, positions, wanted, span):
        self.cache.append(sequence_id, token_ids)
        self.cache.drain_copies()
        self.cache.truncate(sequence_id, self.cache.length(sequence_id) - len(token_ids))
        return super().append(sequence_id, token_ids, positions, wanted, span)


class WritesSharedPagesStore(PagedStore):
    """A fork writes into the page that it shares: the copy is made the wrong way round."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.before = {}

    def reserve(self, sequence_id, num_tokens):
        self.before.setdefault(sequence_id, self.cache.page_table(sequence_id).copy())
        return super().reserve(sequence_id, num_tokens)

    def append(self, sequence_id, token_ids, positions, wanted, span):
        begin = self.cache.length(sequence_id)
        before = self.before.pop(sequence_id)
        contexts = super().append(sequence_id, token_ids, positions, wanted, span)
        after, size = self.cache.page_table(sequence_id), self.cache.page_size
        page = begin // size
        if begin % size and before[page] != after[page]:
            for slots in (self._tokens, self._positions):
                slots[before[page]] = slots[after[page]]
        return contexts


class ForkIsAnAlias(TableBackend):
    def fork(self, sequence_id):
        return sequence_id


class RefusalTruncates(TableBackend):
    """A refused reservation loses the last token."""

    def reserve(self, sequence_id, num_tokens):
        granted = super().reserve(sequence_id, num_tokens)
        if not granted:
            super().truncate(sequence_id, self.length(sequence_id) - 1)
        return granted


class RefusalKeepsPages(TableBackend):
    """A refused reservation keeps the pages that it could get."""

    def reserve(self, sequence_id, num_tokens):
        granted = super().reserve(sequence_id, num_tokens)
        if not granted:
            super().reserve(sequence_id, 16)
        return granted


class GrantsWithoutTaking(TableBackend):
    """Says yes to a reservation without making it."""

    def reserve(self, sequence_id, num_tokens):
        if super().reserve(sequence_id, num_tokens):
            super().truncate(sequence_id, self.length(sequence_id))
            return True
        return False


class OverflowAppendsTheFirstRow(TableBackend):
    def forward(self, batch):
        try:
            return super().forward(batch)
        except ContextOverflowError:
            begin, end = batch.row_begins[:2]
            self.store.append(
                batch.sequence_ids[0],
                batch.token_ids[begin:end],
                batch.positions[begin:end],
                [],
                None,
            )
            raise


class NoContextLimit(TableBackend):
    """Goes on past the context that it declares."""

    @property
    def info(self):
        return self._declared

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._declared = self._info
        self._info = TableBackend(self.table, context_length=10**6).info


class CapacityFailureAppends(TableBackend):
    """Runs out of room in the middle of a row and keeps what fitted."""

    def _check(self, batch):
        try:
            super()._check(batch)
        except CapacityError:
            self.store.append(
                batch.sequence_ids[0], batch.token_ids[:1], batch.positions[:1], [], None
            )
            raise


class CloseLeaks(TableBackend):
    """Never gives back a sequence that was forked."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.forked = set()

    def fork(self, sequence_id):
        self.forked.add(sequence_id)
        return super().fork(sequence_id)

    def close(self, sequence_id):
        if sequence_id not in self.forked:
            super().close(sequence_id)


class CloseFreesTheForksToo(TableBackend):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.child = {}

    def fork(self, sequence_id):
        self.child[sequence_id] = super().fork(sequence_id)
        return self.child[sequence_id]

    def close(self, sequence_id):
        child = self.child.pop(sequence_id, None)
        if child is not None:
            super().truncate(child, 0)
        super().close(sequence_id)


class AcceptsAnyStart(TableBackend):
    def _check(self, batch):
        for row in range(len(batch.sequence_ids)):
            begin = batch.row_begins[row]
            batch.positions[begin] = self.length(batch.sequence_ids[row])
        super()._check(batch)


class ForgetsOnCommit(TableBackend):
    """Commit drops the last token."""

    def commit(self, sequence_id):
        super().commit(sequence_id)
        super().truncate(sequence_id, max(0, self.length(sequence_id) - 1))


FAULTS = {
    TruncatesOneShort: "rollback_equals_fresh",
    TruncatesOneTooFar: "rollback_equals_fresh",
    KeepsARejectedToken: "rollback_equals_fresh",
    RollsAllRowsBack: "ragged_equals_solo",
    PositionsOffAfterRollback: "rollback_equals_fresh",
    PositionsOfTheFirstRow: "ragged_equals_solo",
    StaleLastToken: "block_equals_incremental",
    FirstRowsInsteadOfLast: "wanted_logits_are_the_last_ones",
    RowsInSequenceOrder: "ragged_equals_solo",
    SeesItsNeighbour: "wanted_logits_are_the_last_ones",
    ReturnsHalfPrecision: "block_equals_incremental",
    ReturnsNan: "block_equals_incremental",
    PublishesDrafts: "drafts_are_never_shared",
    PublishesBeforeWriting: "drafts_are_never_shared",
    RestoresByLengthOnly: "warm_equals_cold",
    RestoresTheWholePrompt: "warm_equals_cold",
    ForkIsAnAlias: "forks_share_and_part",
    RefusalTruncates: "refused_room_changes_nothing",
    RefusalKeepsPages: "refused_room_changes_nothing",
    GrantsWithoutTaking: "granted_room_is_kept",
    OverflowAppendsTheFirstRow: "context_overflow_appends_nothing",
    NoContextLimit: "context_overflow_appends_nothing",
    CapacityFailureAppends: "granted_room_is_kept",
    CloseLeaks: "closing_frees_everything",
    CloseFreesTheForksToo: "forks_share_and_part",
    AcceptsAnyStart: "wrong_start_is_refused",
    ForgetsOnCommit: "lengths_are_counted",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_caught_by_the_check_that_is_meant_to(fault):
    report = check_backend(lambda: paged(fault), names=[FAULTS[fault]])
    assert [result.name for result in report.failures] == [FAULTS[fault]]
    with pytest.raises(ConformanceError, match=FAULTS[fault]):
        report.require()


@pytest.mark.parametrize(
    ("store", "check"),
    [
        (NoCopyStore, "forks_share_and_part"),
        (WritesSharedPagesStore, "forks_roll_back_alone"),
    ],
)
def test_planted_store_fault_is_caught(store, check):
    report = check_backend(
        lambda: TableBackend(TABLE, store(64, 4), context_length=LIMIT), names=[check]
    )
    assert not report.is_conforming


class SilentRecurrent(RecurrentStore):
    """A recurrent state whose rollback does nothing but lower the length (KV-6)."""

    def truncate(self, sequence_id, length):
        self._sequences[sequence_id].length = length


class SilentRewindable(SilentRecurrent):
    """The same, and the model says that it can be rewound."""

    rewindable = True


class EvictsScheduledTokens(WindowStore):
    """Evicts by what was appended, before drafts are rolled back."""

    def append(self, sequence_id, token_ids, positions, wanted, span):
        contexts = super().append(sequence_id, token_ids, positions, wanted, span)
        super().commit(sequence_id)
        return contexts


class NeverEvictsBlocks(WindowStore):
    """Evicts one token per pass, however many arrive; sees all that is held (KV-2)."""

    def append(self, sequence_id, token_ids, positions, wanted, span):
        held = self._sequences[sequence_id]
        surplus = len(held.tokens) + 1 - self._window
        if surplus > 0:
            del held.tokens[:1], held.positions[:1]
            held.evicted += 1
        window, self._window = self._window, 10**6
        try:
            return super().append(sequence_id, token_ids, positions, wanted, span)
        finally:
            self._window = window

    def commit(self, sequence_id):
        pass


@pytest.mark.parametrize(
    ("make_store", "check"),
    [
        (SilentRecurrent, "unwindable_state_is_refused"),
        (SilentRewindable, "rollback_equals_fresh"),
        (lambda: EvictsScheduledTokens(5), "rollback_equals_fresh"),
        (lambda: NeverEvictsBlocks(5), "block_equals_incremental"),
    ],
)
def test_planted_fault_of_other_memories_is_caught(make_store, check):
    report = check_backend(
        lambda: TableBackend(TABLE, make_store(), context_length=LIMIT), names=[check]
    )
    assert [result.name for result in report.failures] == [check]


def test_kit_refuses_to_judge_a_model_that_hides_faults():
    report = check_backend(
        lambda: TableBackend(MarkovTable(7, 1, seed=1), context_length=LIMIT),
        names=["law_depends_on_its_input"],
    )
    assert not report.is_conforming
    assert "cannot judge" in report.failures[0].detail


def test_a_backend_that_raises_is_a_finding_not_a_crash():
    report = check_backend(
        lambda: TableBackend(TABLE, fail_calls={3: BackendError("runtime died")})
    )
    assert "runtime died" in report.failures[0].detail


def test_differences_below_the_tolerance_pass_and_are_reported():
    class Noisy(TableBackend):
        def _append(self, batch):
            return super()._append(batch) + np.float32(1e-5 * len(batch))

    report = check_backend(lambda: paged(Noisy), tolerance=1e-2)
    assert report.is_conforming
    assert 1e-5 < report.largest_difference < 1e-2
    strict = check_backend(lambda: paged(Noisy), tolerance=1e-6)
    assert not strict.is_conforming


def test_report_names_every_check():
    report = check_backend(paged, names=["lengths_are_counted"])
    assert [result.name for result in report] == ["lengths_are_counted"]
    assert "lengths_are_counted" in str(report)
    assert len(BACKEND_CHECKS) == 18
    assert issubclass(RollbackError, BackendError)
