"""How the rows of a batch are presented to the paged attention.

A short row of n tokens is presented as n rows of one token each over the same pages,
each one token longer than the one before. The runtime writes all keys and values of a
pass before it reads any, so every token still sees those before it. This is exact, and
cheaper than a row of several tokens, for which the runtime repacks the whole context.
It also rounds like plain decoding. A token's logits are the same to the bit whatever
travels with it, with two exceptions: a pass of one token, or of fewer tokens than
threads, which share a token's context then; and int8 weights in a pass of about a
hundred tokens or more, which use another kernel. The first one is removed by padding.

A row that branches stays in one piece, and the runtime is told which of its tokens see
which. It costs what a chain of as many tokens costs in one piece.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.openvino.runner import PassTables
from draftproof.core.types import FlatBatch

__all__ = ["SPLIT_WIDTH", "branching_rows", "pass_tables"]

#: Widest row that is presented token by token. Wider ones are cheaper in one piece.
SPLIT_WIDTH: Final = 16

Ints = NDArray[np.int32]


def pass_tables(
    batch: FlatBatch,
    past_lens: Ints,
    page_table: tuple[Ints, Ints],
    page_size: int,
    least_tokens: int = 0,
) -> PassTables:
    """Return what the runtime reads for a batch.

    Parameters
    ----------
    batch : FlatBatch
        B rows.
    past_lens : ndarray of int32, shape (B,)
        Cached tokens of each row before the pass.
    page_table : tuple of ndarray of int32
        Pages of all rows after the pass, flat, and where each row's begin (B + 1).
    page_size : int
        Token slots of a page.
    least_tokens : int, default 0
        Repeat the last token until the pass has this many. The copies write what the
        token itself writes, to the same slot. A lone wanted row is repeated too.

    Returns
    -------
    PassTables
        The same tokens and wanted rows in the same order, perhaps with copies of the
        last ones behind them.
    """
    pages, page_begins = page_table
    row_begins = batch.row_begins
    counts = np.diff(row_begins)
    longest = int((past_lens + counts).max())
    branching = branching_rows(batch)
    wide = (counts > SPLIT_WIDTH) | branching
    sees, source = _visibility(batch, branching), np.arange(len(counts))
    if ((counts > 1) & ~wide).any():
        parts = np.where(wide, 1, counts)
        source = np.repeat(source, parts)
        first = np.cumsum(parts) - parts
        past_lens = past_lens[source] + (np.arange(len(source)) - first[source])
        widths = np.where(wide, counts, 1)[source]
        row_begins = _begins(widths)
        covered = -(-(past_lens + widths) // page_size)
        begins = _begins(covered)
        pages = pages[np.arange(begins[-1]) + np.repeat(page_begins[source] - begins[:-1], covered)]
        page_begins = begins
    token_ids, positions, wanted = batch.token_ids, batch.positions, batch.logits_rows
    if least_tokens and len(wanted) == 1:
        wanted = _extend(wanted, 1)
    missing = least_tokens - len(batch)
    if missing > 0 and not wide.any():
        token_ids, positions = _extend(token_ids, missing), _extend(positions, missing)
        last = pages[page_begins[-2] :]
        past_lens = _extend(past_lens, missing)
        row_begins = np.arange(least_tokens + 1, dtype=np.int32)
        page_begins = np.append(
            page_begins, page_begins[-1] + _begins(np.full(missing, len(last)))[1:]
        )
        pages = np.append(pages, np.tile(last, missing))
    return PassTables(
        token_ids=token_ids,
        positions=positions,
        past_lens=past_lens.astype(np.int32),
        row_begins=row_begins,
        block_indices=pages,
        block_begins=page_begins.astype(np.int32),
        max_context_len=longest,
        logits_rows=wanted,
        sees=sees,
        sees_begins=_begins(np.where(branching, counts**2, 0)[source])
        if len(sees)
        else np.empty(0, dtype=np.int32),
    )


def branching_rows(batch: FlatBatch) -> NDArray[np.bool_]:
    """Say which rows branch, (B,); a row may bring parents and be a chain."""
    branches = np.zeros(len(batch.row_begins) - 1, dtype=np.bool_)
    if batch.parents is not None:
        chain = np.arange(-1, len(batch) - 1)
        chain[batch.row_begins[:-1]] = -1
        bends = np.flatnonzero(batch.parents != chain)
        branches[np.searchsorted(batch.row_begins, bends, side="right") - 1] = True
    return branches


def _visibility(batch: FlatBatch, branching: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return for each branching row which of its tokens see which, flat."""
    parts = [np.empty(0, dtype=np.uint8)]
    for row in np.flatnonzero(branching).tolist():
        assert batch.parents is not None  # narrows the type
        begin, end = batch.row_begins[row : row + 2].tolist()
        matrix = np.eye(end - begin, dtype=np.uint8)
        for index, parent in enumerate(batch.parents[begin:end].tolist()):
            if index:
                matrix[index] |= matrix[parent - begin]
        parts.append(matrix.reshape(-1))
    return np.concatenate(parts)


def _begins(counts: NDArray[np.integer]) -> Ints:
    """Return where each of some consecutive pieces begins, and where the last one ends."""
    begins = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=begins[1:])
    return begins


def _extend(values: Ints, count: int) -> Ints:
    """Repeat the last value ``count`` more times."""
    return np.append(values, np.repeat(values[-1:], count))
