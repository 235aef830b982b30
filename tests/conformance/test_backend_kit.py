"""The backend kit passes what is right and says what it found."""

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
from draftproof.errors import BackendError, RollbackError
from draftproof.testing import BACKEND_CHECKS, check_backend

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
        assert skipped == {"unwindable_state_is_refused", "trees_are_refused"}
    if name == "recurrent":
        assert "unwindable_state_is_refused" not in skipped
        assert "trees_are_refused" not in skipped


def test_warm_check_really_restores():
    made = []

    def make():
        made.append(paged())
        return made[-1]

    check_backend(make, names=["warm_equals_cold"]).require()
    assert max(b.store.cache.counters().prefix_hit_tokens for b in made) > 0


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
    assert len(BACKEND_CHECKS) == 24
    assert issubclass(RollbackError, BackendError)
