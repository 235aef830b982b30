"""Hand hidden states of committed tokens to the drafters that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import HiddenReader, HiddenStates, ModelBackend, Proposer
from draftproof.engine.patience import Patience
from draftproof.engine.scheduler import RowPlan

__all__ = ["observe_rows"]


def observe_rows(
    plans: Sequence[RowPlan],
    paths: Mapping[int, Sequence[int]],
    target: ModelBackend,
    proposers: Mapping[str, Proposer],
    patience: Patience,
) -> None:
    """Tell every drafter that reads hidden states what the last pass said of its rows.

    Pending tokens are told in any case, drafts only along the kept path, so that a drafter
    never sees the state of a token that was rejected. A drafter that fails here drafts
    from what it was told before, or nothing.

    Parameters
    ----------
    plans : sequence of RowPlan
        The rows of the pass, in its order.
    paths : mapping of int to sequence of int
        For each row that goes on, by its index: the accepted drafts, some of which a stop
        may have cut off. Rows that failed or ended are missing.
    target : ModelBackend
        The model, whose cache holds what is committed by now.
    proposers : mapping of str to Proposer
        Drafters by name.
    patience : Patience
        Says which drafters are told, and learns how it went.
    """
    if not target.info.hidden_size or not isinstance(target, HiddenStates):
        return  # first what is cheap: this is asked after every pass
    readers = [(name, held) for name, held in proposers.items() if isinstance(held, HiddenReader)]
    readers = [(name, held) for name, held in readers if not patience.is_paused(name)]
    if not readers:
        return
    hidden = target.hidden()
    told: list[tuple[RowPlan, NDArray[np.float32]]] = []
    begin = 0
    for index, plan in enumerate(plans):
        end = begin + len(plan.pending) + len(plan.draft)
        if index in paths:
            told.append((plan, _committed(plan, paths[index], hidden[begin:end], target)))
        begin = end
    for name, reader in readers:
        start = perf_counter()
        num_failed = 0
        for plan, states in told:
            try:
                reader.observe(plan.session.request_id, plan.start, states)
            except Exception as error:  # noqa: BLE001  a drafter may fail; decoding goes on
                num_failed += 1
                plan.session.add_note(f"drafter {name} failed to observe: {error!r}")
        note = patience.observed(name, perf_counter() - start, begin)
        is_bad = 0 < num_failed == len(told)
        note = patience.went(name, "failed to observe", is_bad=is_bad) or note
        if note:
            for plan, _states in told:
                plan.session.add_note(note)


def _committed(
    plan: RowPlan, path: Sequence[int], states: NDArray[np.float32], target: ModelBackend
) -> NDArray[np.float32]:
    """Return the rows of the pending tokens and of the path, as far as it is cached."""
    num_pending = len(plan.pending)
    num_kept = target.length(plan.sequence_id) - plan.start - num_pending
    kept = path[:num_kept]
    if tuple(kept) == tuple(range(len(kept))):
        return states[: num_pending + len(kept)]
    return states[[*range(num_pending), *(num_pending + node for node in kept)]]
