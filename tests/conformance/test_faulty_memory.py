"""The backend kit fails every planted fault of sharing, room, limits and other memories."""

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
from draftproof.errors import CapacityError, ContextOverflowError
from draftproof.testing import ConformanceError, check_backend

TABLE = MixedTable(MarkovTable(7, None, seed=1), PositionTable(7, seed=2), 0.5)
LIMIT = 200


def paged(cls=TableBackend, num_pages=64, page_size=4):
    return cls(TABLE, PagedStore(num_pages, page_size), context_length=LIMIT)


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


FAULTS = {
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
