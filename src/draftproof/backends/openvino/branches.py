"""Rows that branch, presented as chains over pages of their own.

Each path to a leaf becomes a chain. Its page table lists the pages that hold whole
pages of committed text, then pages of its own: the first begins as a copy of the page
that is partly full, so that every token lies in the slot in which plain decoding would
put it, and is computed by the same kernel over the same slots. The logits are those of
plain decoding to the bit. What paths share is computed once for each of them: that is
the price. After the pass keys and values are copied to the slots that the books know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.openvino.rows import SPLIT_WIDTH, branching_rows, pass_tables
from draftproof.backends.openvino.runner import PassTables
from draftproof.cache import PageCopy, SlotMove
from draftproof.core.types import FlatBatch

__all__ = ["SCRATCH_PAGES", "BranchPass", "branch_passes"]

#: Most tokens of a pass to which paths are added: larger ones round differently.
_MAX_TOKENS: Final = 96

#: Pages that the paths of a pass may take: two for each path of the widest row, and more
#: than one path can need, however small the pages.
SCRATCH_PAGES: Final = 2 * SPLIT_WIDTH

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BranchPass:
    """One pass of the runtime, and what is copied before and after it.

    Parameters
    ----------
    tables : PassTables
        The pass.
    copies : list of PageCopy
        To be made before it.
    moves : list of SlotMove
        To be made after it.
    places : list of int
        Where the logits of its wanted tokens belong among those of the batch.
    """

    tables: PassTables
    copies: list[PageCopy]
    moves: list[SlotMove]
    places: list[int]


@dataclass(slots=True)
class _Piece:
    """A chain of tokens with its own page table, and how many scratch pages it takes."""

    row: int
    tokens: list[int]
    num_scratch: int = 0
    #: Tokens that no earlier piece computes.
    owned: list[int] = field(default_factory=list)


def branch_passes(
    batch: FlatBatch,
    past_lens: Ints,
    page_table: tuple[Ints, Ints],
    page_size: int,
    least_tokens: int,
    scratch: Sequence[int],
) -> Iterator[BranchPass]:
    """Return the passes that score a batch in which rows branch.

    Parameters
    ----------
    batch : FlatBatch
        B rows; those that branch and have at most ``SPLIT_WIDTH`` tokens are cut into
        paths, the others are presented as ever.
    past_lens : ndarray of int32, shape (B,)
        Cached tokens of each row before the pass.
    page_table : tuple of ndarray of int32
        Pages of all rows after the pass, flat, and where each row's begin (B + 1).
    page_size : int
        Token slots of a page.
    least_tokens : int
        Padding of small passes, see `draftproof.backends.openvino.rows.pass_tables`.
    scratch : sequence of int
        Pages for the paths of one pass, ``SCRATCH_PAGES`` of them.

    Yields
    ------
    BranchPass
        In order. Mostly one; more where the paths of many rows need more pages.
    """
    for group in _groups(_pieces(batch, past_lens, page_size), len(scratch)):
        yield _pass(group, batch, past_lens, page_table, page_size, least_tokens, scratch)


def _pieces(batch: FlatBatch, past_lens: Ints, page_size: int) -> list[_Piece]:
    """Cut a batch into chains and paths, the chains first."""
    pieces: list[_Piece] = []
    paths: list[_Piece] = []
    branching = branching_rows(batch)
    for row, begin in enumerate(batch.row_begins[:-1].tolist()):
        end = int(batch.row_begins[row + 1])
        if not branching[row] or end - begin > SPLIT_WIDTH:
            pieces.append(_Piece(row, list(range(begin, end)), 0, list(range(begin, end))))
            continue
        assert batch.parents is not None  # narrows the type
        parents = batch.parents[begin:end].tolist()
        computed: set[int] = set()
        for leaf in sorted(set(range(begin, end)) - set(parents)):
            path, token = [], leaf
            while token >= begin:
                path.append(token)
                token = parents[token - begin]
            path.reverse()
            past = int(past_lens[row])
            num_scratch = -(-(past + len(path)) // page_size) - past // page_size
            owned = [token for token in path if token not in computed]
            computed.update(path)
            paths.append(_Piece(row, path, num_scratch, owned))
    return pieces + paths


def _groups(pieces: Sequence[_Piece], num_scratch: int) -> list[list[_Piece]]:
    """Put pieces into passes of bounded size; all chains travel in the first."""
    groups: list[list[_Piece]] = [[]]
    pages = tokens = 0
    for piece in pieces:
        pages, tokens = pages + piece.num_scratch, tokens + len(piece.tokens)
        if piece.num_scratch and groups[-1] and (pages > num_scratch or tokens > _MAX_TOKENS):
            groups.append([])
            pages, tokens = piece.num_scratch, len(piece.tokens)
        groups[-1].append(piece)
    return groups


def _pass(
    group: Sequence[_Piece],
    batch: FlatBatch,
    past_lens: Ints,
    page_table: tuple[Ints, Ints],
    page_size: int,
    least_tokens: int,
    scratch: Sequence[int],
) -> BranchPass:
    """Lay out one pass."""
    pages, page_begins = page_table
    tables: list[list[int]] = []
    copies: list[PageCopy] = []
    moves: list[SlotMove] = []
    home: dict[int, int] = {}
    begins, used = [0], 0
    for piece in group:
        begin, past = int(page_begins[piece.row]), int(past_lens[piece.row])
        own = pages[begin : page_begins[piece.row + 1]].tolist()
        table = own
        first, filled = divmod(past, page_size)
        if piece.num_scratch:
            table = [*own[:first], *scratch[used : used + piece.num_scratch]]
            used += piece.num_scratch
            if filled:
                copies.append(PageCopy(own[first], table[first], filled))
        row_begin = int(batch.row_begins[piece.row])
        owned = set(piece.owned)
        for depth, token in enumerate(piece.tokens):
            if token not in owned:
                continue
            home[token] = begins[-1] + depth
            if piece.num_scratch:
                page, slot = divmod(past + depth, page_size)
                to_page, to_slot = divmod(past + token - row_begin, page_size)
                moves.append(SlotMove(table[page], slot, own[to_page], to_slot))
        tables.append(table)
        begins.append(begins[-1] + len(piece.tokens))
    tokens = [token for piece in group for token in piece.tokens]
    wanted = [
        (at, home[token]) for at, token in enumerate(batch.logits_rows.tolist()) if token in home
    ]
    chains = FlatBatch(
        tuple(range(len(group))),
        np.asarray(begins, dtype=np.int32),
        batch.token_ids[tokens],
        batch.positions[tokens],
        np.asarray([index for _, index in wanted], dtype=np.int32),
        _parents(group, batch),
    )
    flat = np.asarray([page for table in tables for page in table], dtype=np.int32)
    ends = np.cumsum([0, *map(len, tables)]).astype(np.int32)
    pasts = past_lens[[piece.row for piece in group]]
    return BranchPass(
        pass_tables(chains, pasts, (flat, ends), page_size, least_tokens),
        copies,
        moves,
        [at for at, _ in wanted],
    )


def _parents(group: Sequence[_Piece], batch: FlatBatch) -> Ints:
    """Return the parents for the rows that still branch: those too wide to be cut."""
    assert batch.parents is not None  # narrows the type
    parents: list[int] = []
    for piece in group:
        begin = len(parents)
        if piece.num_scratch:
            parents += [-1, *range(begin, begin + len(piece.tokens) - 1)]
        else:
            shift = begin - piece.tokens[0]
            parents += [-1, *(batch.parents[piece.tokens[1:]] + shift).tolist()]
    return np.asarray(parents, dtype=np.int32)
