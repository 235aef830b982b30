"""The backend kit fails every planted fault of scoring, positions and rollback."""

import numpy as np
import pytest

from draftproof.backends.table import (
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    TableBackend,
)
from draftproof.core.types import FlatBatch
from draftproof.testing import ConformanceError, check_backend

TABLE = MixedTable(MarkovTable(7, None, seed=1), PositionTable(7, seed=2), 0.5)
LIMIT = 200


def paged(cls=TableBackend, num_pages=64, page_size=4):
    return cls(TABLE, PagedStore(num_pages, page_size), context_length=LIMIT)


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
    AcceptsAnyStart: "wrong_start_is_refused",
    ForgetsOnCommit: "lengths_are_counted",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_planted_fault_is_caught_by_the_check_that_is_meant_to(fault):
    report = check_backend(lambda: paged(fault), names=[FAULTS[fault]])
    assert [result.name for result in report.failures] == [FAULTS[fault]]
    with pytest.raises(ConformanceError, match=FAULTS[fault]):
        report.require()
