"""What every backend over `PagedCache` does with a batch before its model runs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftproof.cache import PagedCache
from draftproof.core.types import FlatBatch, ModelInfo
from draftproof.errors import CapacityError, ContextOverflowError, InvariantError

__all__ = ["append_batch", "check_batch", "check_context"]


def check_context(batch: FlatBatch, info: ModelInfo) -> None:
    """Refuse a token past the context length.

    Parameters
    ----------
    batch : FlatBatch
        At least one token. In a tree a token may stand at a lower position than its slot.
    info : ModelInfo
        The model.

    Raises
    ------
    ContextOverflowError
        If a token would land past the context length.
    """
    longest = int(batch.positions.max()) + 1
    if longest > info.context_length:
        msg = f"{longest} tokens in one sequence, expected at most {info.context_length}"
        raise ContextOverflowError(msg)


def check_batch(
    batch: FlatBatch, past_lens: NDArray[np.int32], counts: NDArray[np.int32], info: ModelInfo
) -> None:
    """Refuse a batch that would write to the wrong place or read past a table.

    Parameters
    ----------
    batch : FlatBatch
        At least one token.
    past_lens : ndarray of int32, shape (B,)
        Cached length of each row's sequence.
    counts : ndarray of int32, shape (B,)
        Tokens of each row.
    info : ModelInfo
        The model.

    Raises
    ------
    InvariantError
        If a position, a parent, a token id or a wanted row is wrong.
    """
    expected = _positions(batch, past_lens, counts)
    if not np.array_equal(batch.positions, expected):
        wrong = int(np.argmax(batch.positions != expected))
        msg = f"token {wrong} has position {batch.positions[wrong]}, expected {expected[wrong]}"
        raise InvariantError(msg)
    lowest, highest = int(batch.token_ids.min()), int(batch.token_ids.max())
    if lowest < 0 or highest >= info.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise InvariantError(f"token id {wrong}, expected 0 to {info.vocab_size - 1}")
    rows = batch.logits_rows
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(batch):
        raise InvariantError(f"logits of rows {rows.tolist()} of {len(batch)} tokens wanted")


def append_batch(cache: PagedCache, batch: FlatBatch, counts: NDArray[np.int32]) -> None:
    """Move all lengths forward, or none.

    Parameters
    ----------
    cache : PagedCache
        The books.
    batch : FlatBatch
        The rows.
    counts : ndarray of int32, shape (B,)
        Tokens of each row.

    Raises
    ------
    CapacityError
        If there is no room for a row.
    """
    for sequence_id, count in zip(batch.sequence_ids, counts.tolist(), strict=True):
        if not cache.reserve(sequence_id, count):
            usage = cache.usage()
            msg = (
                f"sequence {sequence_id} needs room for {count} tokens, "
                f"{usage.held_pages} of {usage.total_pages} pages are held"
            )
            raise CapacityError(msg)
    begins = batch.row_begins.tolist()
    for row, sequence_id in enumerate(batch.sequence_ids):
        piece = slice(begins[row], begins[row + 1])
        parents = None
        if batch.parents is not None:
            parents = [-1, *(batch.parents[piece][1:] - piece.start).tolist()]
        cache.append(sequence_id, batch.token_ids[piece], parents)


def _positions(
    batch: FlatBatch, past_lens: NDArray[np.int32], counts: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return where each token stands: after its parent, or after the cached ones."""
    expected = np.arange(len(batch), dtype=np.int32)
    expected += np.repeat(past_lens - batch.row_begins[:-1], counts)
    if batch.parents is None:
        return expected
    for row in range(len(counts)):
        begin, end = batch.row_begins[row : row + 2].tolist()
        if int(batch.parents[begin]) != -1:
            raise InvariantError(f"token {begin} has parent {batch.parents[begin]}, expected -1")
        for token, parent in enumerate(batch.parents[begin + 1 : end].tolist(), begin + 1):
            if not begin <= parent < token:
                raise InvariantError(
                    f"token {token} has parent {parent}, expected {begin} to {token - 1}"
                )
            expected[token] = expected[parent] + 1
    return expected
