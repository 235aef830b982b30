"""A model that is a table of probabilities, with the memories that real models have."""

from draftproof.backends.table.backend import PassRecord, TableBackend
from draftproof.backends.table.laws import (
    ArrayTable,
    FunctionTable,
    MarkovTable,
    MixedTable,
    PositionTable,
    ProbabilityTable,
    seeded_probs,
)
from draftproof.backends.table.paged import PagedStore
from draftproof.backends.table.recurrent import RecurrentStore
from draftproof.backends.table.stores import Context, TokenStore
from draftproof.backends.table.window import WindowStore

__all__ = [
    "ArrayTable",
    "Context",
    "FunctionTable",
    "MarkovTable",
    "MixedTable",
    "PagedStore",
    "PassRecord",
    "PositionTable",
    "ProbabilityTable",
    "RecurrentStore",
    "TableBackend",
    "TokenStore",
    "WindowStore",
    "seeded_probs",
]
