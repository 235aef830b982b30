"""Draft models over tables that the tests of the draft model share."""

from draftproof.backends.table import (
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    TableBackend,
)
from draftproof.core.policy import SamplingParams
from draftproof.proposers import DraftModelProposer

VOCAB = 9
TABLE = MixedTable(MarkovTable(VOCAB, None, seed=1), PositionTable(VOCAB, seed=2), 0.5)
OTHER = MarkovTable(VOCAB, None, seed=5)
GREEDY = SamplingParams(temperature=0.0)


def drafter(table=TABLE, store=None, *, limit=4096, **options):
    store = store or PagedStore(2000, 4)
    backend = TableBackend(
        table, store, context_length=limit, fail_calls=options.pop("fail_calls", None),
        fail_late=options.pop("fail_late", False),
    )  # fmt: skip
    return DraftModelProposer(backend, **options), backend


def target(limit=4096):
    return TableBackend(TABLE, PagedStore(2000, 4), context_length=limit)
