"""An engine with a drafter behind the front, and whether it has given everything back."""

from __future__ import annotations

from engine_kit import NEAR, TABLE, held

from draftproof.backends.table import PagedStore, TableBackend
from draftproof.engine import Engine, EngineCore
from draftproof.proposers import DraftModelProposer

OPTIONS = {"temperature": 0.9, "max_tokens": 25, "seed": 3}


def fresh(target=None, **options):
    core = EngineCore(
        target or TableBackend(TABLE, PagedStore(prefix_caching=False)),
        proposers=[DraftModelProposer(TableBackend(NEAR))],
        kappa=3,
        **options,
    )
    return Engine(core)


def is_clean(engine):
    core = engine.core
    return (
        held(core) == (0, 0)
        and core.proposers["draft-model"].num_requests == 0
        and engine._turns._queues == {}
        and core._sessions == core._results == {}
        and not core._inbox
        and not core._to_abort
    )
