"""Faults of the target's memory: what a rollback, a window or a shared prefix leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table import Context, PagedStore, TableBackend
from draftproof.core.types import FlatBatch
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import EngineParts
from draftproof.testing.faults.scenes import SCENES

__all__ = ["CACHE_FAULTS", "drifting", "right_cut"]

#: (cells of a sequence, its length, the new length) to the cells that stay.
_Cut: TypeAlias = Callable[["_DriftingStore", "list[_Cell]", int], "list[_Cell]"]
_Cell = tuple[int, int]


@dataclass(slots=True)
class _Sequence:
    """What the memory says it holds, and what it holds."""

    length: int = 0
    cells: list[_Cell] = field(default_factory=list)


class _DriftingStore:
    """A memory that may hold something else than the length it reports.

    With the right cut, and no window, it is a right memory.
    """

    rewindable = True
    trees = False
    page_size = 0

    def __init__(self, cut: _Cut, window: int | None = None) -> None:
        self._cut = cut
        self._window = window
        self._sequences: dict[int, _Sequence] = {}
        self._last_handle = 0
        #: How many tokens the first rollback of this pass dropped.
        self.first_drop: int | None = None

    @property
    def num_open(self) -> int:
        return len(self._sequences)

    @property
    def num_held(self) -> int:
        return len(self._sequences)

    def open(self, token_ids: Sequence[int]) -> int:
        del token_ids
        self._last_handle += 1
        self._sequences[self._last_handle] = _Sequence()
        return self._last_handle

    def fork(self, sequence_id: int) -> int:
        raise NotImplementedError

    def length(self, sequence_id: int) -> int:
        return self._sequences[sequence_id].length

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        del sequence_id, num_tokens
        return True

    def append(
        self, sequence_id: int, token_ids: NDArray[np.int32], positions: NDArray[np.int32],
        wanted: Sequence[int], span: int | None, tree: Any = None,
    ) -> list[Context]:  # fmt: skip
        del span, tree
        self.first_drop = None
        held = self._sequences[sequence_id]
        before = len(held.cells)
        held.cells += zip(token_ids.tolist(), positions.tolist(), strict=True)
        held.length += len(token_ids)
        contexts = []
        for offset in wanted:
            seen = held.cells[: before + offset + 1]
            first = 0 if self._window is None else max(0, len(seen) - self._window)
            tokens, places = zip(*seen[first:], strict=True)
            contexts.append(Context(np.array(tokens), np.array(places)))
        if self._window is not None:
            # Too early: some of these tokens may still be taken back.
            del held.cells[: -self._window]
        return contexts

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        del keep
        held = self._sequences[sequence_id]
        dropped = held.length - length
        held.cells = self._cut(self, held.cells, dropped)
        held.length = length

    def commit(self, sequence_id: int) -> None:
        pass

    def close(self, sequence_id: int) -> None:
        del self._sequences[sequence_id]


def right_cut(_: object, cells: list[_Cell], dropped: int) -> list[_Cell]:
    """Drop the cells that were taken back.

    Parameters
    ----------
    cells : list of (token, position)
        What a sequence holds.
    dropped : int
        How many were taken back.

    Returns
    -------
    list of (token, position)
        What stays.
    """
    return cells[: len(cells) - dropped]


def _one_too_few(_: _DriftingStore, cells: list[_Cell], dropped: int) -> list[_Cell]:
    return cells[: len(cells) - max(0, dropped - 1)]


def _one_too_many(_: _DriftingStore, cells: list[_Cell], dropped: int) -> list[_Cell]:
    return cells[: max(1, len(cells) - dropped - (dropped > 0))]


def _nothing(_: _DriftingStore, cells: list[_Cell], dropped: int) -> list[_Cell]:
    del dropped
    return cells


def _as_the_first_row(store: _DriftingStore, cells: list[_Cell], dropped: int) -> list[_Cell]:
    if store.first_drop is None:
        store.first_drop = dropped
    return cells[: max(1, len(cells) - store.first_drop)]


def drifting(cut: _Cut, window: int | None = None) -> Callable[[EngineParts], EngineParts]:
    """Return the defect of a memory that may hold something else than it reports.

    Parameters
    ----------
    cut : callable
        What a rollback leaves; `right_cut` is right.
    window : int, optional
        Evict all but so many tokens at once in every pass, which is too early.

    Returns
    -------
    callable of EngineParts
        The defect.
    """
    return lambda parts: replace(
        parts, target=TableBackend(parts.target.table, _DriftingStore(cut, window))
    )


class _PrefixByLength(PagedStore):
    """Gives a new request the memory of an earlier one of the same length."""

    def __init__(self) -> None:
        super().__init__(page_size=1)
        self._first: list[int] = []

    def open(self, token_ids: Sequence[int]) -> int:
        if not self._first:
            self._first = list(token_ids)
            return super().open(token_ids)
        return super().open([*self._first[: len(token_ids) - 1], token_ids[-1]])


class _PositionsShifted(TableBackend):
    """Scores drafts at positions one too high, and remembers them there."""

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        starts = batch.row_begins[:-1]
        shifted = batch.positions + 1
        shifted[starts] = batch.positions[starts]
        return super().forward(replace(batch, positions=shifted))


class _LateLogits(TableBackend):
    """Hands out rows of logits in the order of a buffer that is one row behind."""

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        logits = super().forward(batch)
        return np.concatenate([logits[:1], logits[:-1]])


_TOKEN = SCENES["token rule"]

#: Faults of the target's memory and passes.
CACHE_FAULTS: tuple[EngineFault, ...] = (
    EngineFault(
        "rejected token stays in the cache", "cache", _TOKEN, drifting(_one_too_few),
        "phantom token: a rollback drops one token too few", case="KV-1",
    ),
    EngineFault(
        "rollback drops one too many", "cache", _TOKEN, drifting(_one_too_many),
        "rejected + 1 tokens are taken back", case="KV-1",
    ),
    EngineFault(
        "state never rewound", "cache", _TOKEN, drifting(_nothing),
        "a recurrent memory says that it rewinds, and does nothing", case="KV-6",
    ),
    EngineFault(
        "every row rolled back alike", "cache", SCENES["in company"],
        drifting(_as_the_first_row),
        "a batch moves all rows by what the first row dropped", case="KV-3",
    ),
    EngineFault(
        "window not restored", "cache", SCENES["window"], drifting(right_cut, 3),
        "drafts evict tokens that are needed again once they are rejected", case="KV-2",
    ),
    EngineFault(
        "prefix cache keyed by length", "cache", SCENES["after another"],
        lambda parts: replace(
            parts, target=TableBackend(parts.target.table, _PrefixByLength())
        ),
        "a request is served pages of another text", case="KV-5",
    ),
    EngineFault(
        "draft positions shifted in the target", "cache", SCENES["self-drafting"],
        lambda parts: replace(parts, target=_PositionsShifted(parts.target.table)),
        "the positions of drafts begin one too high", case="KV-4",
    ),
    EngineFault(
        "logits one row late", "laws", SCENES["in company"],
        lambda parts: replace(parts, target=_LateLogits(parts.target.table)),
        "rows of a pass get their neighbour's logits", case="RB-2",
    ),
)  # fmt: skip
