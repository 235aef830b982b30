"""A flat batch as calls of the library: what is replayed, what branches, whose logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.llama_cpp.native import LlamaContext
from draftproof.backends.llama_cpp.paths import Path, leaf_paths, longest_common
from draftproof.backends.llama_cpp.slots import SlotPool
from draftproof.backends.llama_cpp.texts import Text, Texts
from draftproof.core.types import FlatBatch

__all__ = ["score_batch"]

#: Replayed tokens that may travel with drafts. More are computed in a call of their own,
#: so that the state to go back to is one after them.
_MAX_REPLAY: Final = 8

Ints = NDArray[np.int32]


class _Call:
    """Tokens of one call; ``places`` says where the logits of each belong, -1 for none."""

    def __init__(self) -> None:
        self._token_ids: list[Ints] = []
        self._positions: list[Ints] = []
        self._slots: list[Ints] = []
        self._counts: list[Ints] = []
        self._places: list[Ints] = []

    def __bool__(self) -> bool:
        """Say whether there are tokens."""
        return bool(self._token_ids)

    def add(
        self,
        token_ids: Sequence[int] | Ints,
        positions: Sequence[int] | Ints,
        slots: Sequence[Sequence[int]],
        places: Sequence[int] | Ints,
    ) -> None:
        """Append tokens of one text; one entry of ``slots`` stands for all of them."""
        count = len(token_ids)
        if not count:
            return
        sets = slots if len(slots) == count else [slots[0]] * count
        self._token_ids.append(np.asarray(token_ids, dtype=np.int32))
        self._positions.append(np.asarray(positions, dtype=np.int32))
        self._places.append(np.asarray(places, dtype=np.int32))
        if len(slots) == 1 and len(slots[0]) == 1:
            self._slots.append(np.full(count, slots[0][0], dtype=np.int32))
            self._counts.append(np.ones(count, dtype=np.int32))
            return
        self._slots.append(np.array([slot for one in sets for slot in one], dtype=np.int32))
        self._counts.append(np.array([len(one) for one in sets], dtype=np.int32))

    def add_replay(self, text: Text, length: int, slots: Sequence[int]) -> None:
        """Append the tokens that a text's sequences lack."""
        missing = text.token_ids[text.cached : length]
        places = np.full(len(missing), -1, dtype=np.int32)
        self.add(missing, np.arange(text.cached, length, dtype=np.int32), [slots], places)

    def run(self, context: LlamaContext) -> tuple[NDArray[np.float32], Ints]:
        """Return the logits, a view that the next call overwrites, and their places."""
        places = np.concatenate(self._places)
        wanted = places >= 0
        logits = context.decode(
            np.concatenate(self._token_ids),
            np.concatenate(self._positions),
            np.concatenate(self._slots),
            np.concatenate(self._counts),
            wanted.astype(np.int8),
        )
        return logits, places[wanted]


def score_batch(
    context: LlamaContext,
    texts: Texts,
    rows: Sequence[Text],
    batch: FlatBatch,
    past_lens: Sequence[int],
    scratch: int | None,
) -> NDArray[np.float32]:
    """Compute the tokens of a batch that the books hold already.

    Parameters
    ----------
    context : LlamaContext
        The library.
    texts : Texts
        All texts.
    rows : sequence of Text, length B
        The text of each row.
    batch : FlatBatch
        The rows.
    past_lens : sequence of int, length B
        The length of each text before its row.
    scratch : int or None
        A sequence for leaves that got none; None where rows do not branch.

    Returns
    -------
    ndarray of float32, shape (M, V)
        Logits in the order of the batch; a view of the library's memory where one call
        was enough.
    """
    places = np.full(len(batch), -1, dtype=np.int32)
    places[batch.logits_rows] = np.arange(len(batch.logits_rows), dtype=np.int32)
    begins = batch.row_begins.tolist()
    spans = [slice(begins[row], begins[row + 1]) for row in range(len(rows))]
    if context.model.recurrent:
        drafting = [int(np.count_nonzero(places[span] >= 0)) > 1 for span in spans]
        _keep_states(context, texts, rows, past_lens, drafting)
    call = _Call()
    left: list[tuple[Text, int, slice, tuple[int, ...]]] = []
    for text, length, span in zip(rows, past_lens, spans, strict=True):
        if text.branches is None:
            assert text.slot is not None  # narrows the type: there was room
            call.add_replay(text, length, [text.slot])
            slots = [[text.slot]]
            call.add(batch.token_ids[span], batch.positions[span], slots, places[span])
        else:
            without = _branch(context, texts.slots, text)
            left += [(text, length, span, leaf) for leaf in without]
            _add_tree(call, text, length, batch, span, places)
    logits, found = call.run(context)
    for text, length in zip(rows, past_lens, strict=True):
        text.cached = length if text.branches is not None else len(text)
    if not left:
        return logits
    assert scratch is not None  # narrows the type: rows branch
    scored = np.empty((len(batch.logits_rows), logits.shape[1]), dtype=np.float32)
    scored[found] = logits
    missing = set(range(len(scored))).difference(found.tolist())
    for text, length, span, leaf in left:
        _score_leaf(context, scratch, text, length, batch, span, leaf, places, missing, scored)
    return scored


def _keep_states(
    context: LlamaContext,
    texts: Texts,
    rows: Sequence[Text],
    past_lens: Sequence[int],
    drafting: Sequence[bool],
) -> None:
    """Keep the states of texts that draft, after what they have to replay."""
    replay = _Call()
    for text, length, drafts in zip(rows, past_lens, drafting, strict=True):
        if drafts and length - text.cached > _MAX_REPLAY and text.slot is not None:
            replay.add_replay(text, length, [text.slot])
            text.cached = length
    if replay:
        replay.run(context)
    for text, drafts in zip(rows, drafting, strict=True):
        if drafts:
            texts.keep_state(text)


def _branch(context: LlamaContext, slots: SlotPool, text: Text) -> list[tuple[int, ...]]:
    """Give the leaves of a text's last row sequences; return those for which none was left."""
    assert text.branches is not None  # narrows the types
    assert text.slot is not None
    first, *others = leaf_paths(text.branches.parents)
    text.paths = [Path(text.slot, first)]
    without = []
    for leaf in others:
        slot = slots.take_spare()
        if slot is None:
            without.append(leaf)
            continue
        context.share(text.slot, slot, text.cached)
        text.paths.append(Path(slot, leaf))
    return without


def _add_tree(
    call: _Call, text: Text, length: int, batch: FlatBatch, span: slice, places: Ints
) -> None:
    """Append a row that branches, as far as its leaves have sequences."""
    holders: dict[int, list[int]] = {}
    for path in text.paths:
        for node in path.indices:
            holders.setdefault(node, []).append(path.slot)
    nodes = np.array(sorted(holders), dtype=np.intp) + span.start
    call.add_replay(text, length, [path.slot for path in text.paths])
    call.add(
        batch.token_ids[nodes],
        batch.positions[nodes],
        [holders[node] for node in sorted(holders)],
        places[nodes],
    )


def _score_leaf(
    context: LlamaContext,
    scratch: int,
    text: Text,
    length: int,
    batch: FlatBatch,
    span: slice,
    leaf: tuple[int, ...],
    places: Ints,
    missing: set[int],
    scored: NDArray[np.float32],
) -> None:
    """Score the nodes of a leaf without a sequence; nothing of them is kept."""
    path, common = longest_common(text.paths, leaf)
    context.share(path.slot, scratch, length + common)
    nodes = np.array(leaf[common:], dtype=np.intp) + span.start
    # What an earlier leaf has scored is computed again, but not asked for.
    wanted = np.array([place if place in missing else -1 for place in places[nodes].tolist()])
    call = _Call()
    call.add(batch.token_ids[nodes], batch.positions[nodes], [[scratch]], wanted)
    try:
        logits, found = call.run(context)
    finally:
        context.drop(scratch, 0)
    scored[found] = logits
    missing.difference_update(found.tolist())
