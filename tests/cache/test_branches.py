"""Rows that branch in the page books: what stays is one path, in its own slots."""

import numpy as np
import pytest

from draftproof.cache import Branches, PagedCache, SlotMove, branches_of, check_path
from draftproof.errors import InvariantError

PARENTS = [-1, 0, 0, 1, 2, 2]


def branched(page_size=4, prompt=(7, 7, 7), **options):
    cache = PagedCache(32, page_size, **options)
    seq = cache.open()
    cache.append(seq, prompt)
    cache.append(seq, [1, 2, 5, 3, 3, 6], PARENTS)
    return cache, seq


def test_a_row_that_is_a_chain_has_no_branches():
    assert branches_of(5, None) is None
    assert branches_of(5, [-1, 0, 1]) is None
    assert branches_of(5, [-1, 0, 0]) == Branches(5, (-1, 0, 0))
    assert [Branches(5, (-1, 0, 0)).parent(slot) for slot in (4, 5, 6, 7)] == [3, 4, 5, 5]


@pytest.mark.parametrize("keep", [(), (3,), (3, 4), (3, 4, 5)])
def test_after_a_chain_only_what_follows_can_be_kept(keep):
    check_path(None, 3, 6, keep)
    for wrong in ((4,), (3, 5), (*keep, 9), (2,), (-1,)):
        with pytest.raises(InvariantError, match="one path"):
            check_path(None, 3, 6, wrong)


def test_moves_name_pages_and_slots_and_books_follow():
    cache, seq = branched()
    pages = cache.page_table(seq).tolist()
    # Slots 3 to 8 hold the row; the path 1, 5, 6 is in slots 3, 5 and 8.
    moves = cache.truncate(seq, 4, (5, 8))
    assert moves == [SlotMove(pages[1], 1, pages[1], 0), SlotMove(pages[2], 0, pages[1], 1)]
    assert cache.tokens(seq).tolist() == [7, 7, 7, 1, 5, 6]
    assert cache.page_table(seq).tolist() == pages[:2]
    cache.check_integrity()


def test_what_is_in_place_does_not_move():
    cache, seq = branched()
    page = int(cache.page_table(seq)[1])
    assert cache.truncate(seq, 4, (4, 6)) == [SlotMove(page, 2, page, 1)]
    assert cache.truncate(seq, 4, (4,)) == []


@pytest.mark.parametrize("page_size", [1, 2, 3, 4, 32])
def test_random_trees_leave_what_a_fresh_sequence_holds(page_size):
    rng = np.random.default_rng(page_size)
    cache = PagedCache(400, page_size)
    memory = np.full((400, page_size), -1)
    seq, text = cache.open(), []
    for _ in range(60):
        size = int(rng.integers(1, 9))
        row = rng.integers(0, 50, size).tolist()
        parents = [-1, *(int(rng.integers(0, node)) for node in range(1, size))]
        begin = len(text)
        cache.append(seq, row, parents)
        table = cache.page_table(seq)
        for copy in cache.drain_copies():
            memory[copy.dst_page] = memory[copy.src_page]
        for slot, token in enumerate(row, begin):
            memory[table[slot // page_size], slot % page_size] = token
        path, node = [], int(rng.integers(0, size))
        while node >= 0:
            path.append(node)
            node = parents[node]
        path = path[::-1]
        twin = None
        for move in cache.truncate(seq, begin, [begin + node for node in path]):
            memory[move.dst_page, move.dst_slot] = memory[move.src_page, move.src_slot]
        text += [row[node] for node in path]
        if rng.random() < 0.3:
            cache.commit(seq)
        if rng.random() < 0.2:
            twin = cache.fork(seq)
        assert cache.tokens(seq).tolist() == text
        held = np.arange(len(text))
        table = cache.page_table(seq)
        assert memory[table[held // page_size], held % page_size].tolist() == text
        cache.check_integrity()
        if twin is not None:
            cache.close(twin)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda cache, seq: cache.append(seq, [1]),
        lambda cache, seq: cache.reserve(seq, 1),
        lambda cache, seq: cache.fork(seq),
        lambda cache, seq: cache.commit(seq),
    ],
)
def test_a_branched_sequence_is_truncated_before_anything_else(attempt):
    cache, seq = branched()
    with pytest.raises(InvariantError, match="branched"):
        attempt(cache, seq)
    cache.truncate(seq, 4)
    attempt(cache, seq)
    cache.check_integrity()


def test_a_branched_sequence_can_be_closed():
    cache, seq = branched()
    cache.close(seq)
    assert cache.usage().held_pages == 0


def test_published_pages_are_those_of_the_kept_path():
    cache, seq = branched()
    cache.truncate(seq, 4, (5, 8))
    cache.append(seq, [9, 9])
    cache.commit(seq)
    assert cache.length(cache.open([7, 7, 7, 1, 5, 6, 9, 9, 0])) == 8
    assert cache.length(cache.open([7, 7, 7, 1, 2, 5, 3, 3, 0])) == 4
