"""Single promises of the cache, one at a time."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest

import draftproof.cache
from draftproof.cache import CacheCounters, CacheUsage, PagedCache
from draftproof.errors import CapacityError, ConfigError, InvariantError


def filled(cache, tokens):
    seq = cache.open()
    cache.append(seq, tokens)
    cache.commit(seq)
    return seq


def test_public_names():
    assert draftproof.cache.__all__ == [
        "Branches",
        "CacheCounters",
        "CacheUsage",
        "PageCopy",
        "PagedCache",
        "SlotMove",
        "branches_of",
        "check_path",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "num_pages is 0, expected at least 1"),
        ((4, 0), "page_size is 0, expected at least 1"),
        ((4, 4, -1), "bytes_per_page is -1, expected at least 0"),
    ],
)
def test_sizes_are_checked(arguments, message):
    with pytest.raises(ConfigError, match=message):
        PagedCache(*arguments)


@pytest.mark.parametrize(
    "call",
    [
        lambda cache, seq: cache.fork(seq),
        lambda cache, seq: cache.close(seq),
        lambda cache, seq: cache.reserve(seq, 1),
        lambda cache, seq: cache.append(seq, [1]),
        lambda cache, seq: cache.truncate(seq, 0),
        lambda cache, seq: cache.commit(seq),
        lambda cache, seq: cache.length(seq),
        lambda cache, seq: cache.lengths([seq]),
        lambda cache, seq: cache.tokens(seq),
        lambda cache, seq: cache.page_table(seq),
        lambda cache, seq: cache.block_table([seq]),
    ],
)
def test_a_closed_sequence_is_named(call):
    cache = PagedCache(2, 4)
    seq = cache.open()
    cache.close(seq)
    with pytest.raises(InvariantError, match=f"sequence {seq} is not open"):
        call(cache, seq)
    assert cache.open() != seq


def test_lengths_out_of_range_are_refused():
    cache = PagedCache(4, 4)
    seq = filled(cache, [1, 2, 3])
    for length in (-1, 4):
        with pytest.raises(InvariantError, match=f"to {length}, expected 0 to 3"):
            cache.truncate(seq, length)
    with pytest.raises(InvariantError, match="reserve of -1 tokens"):
        cache.reserve(seq, -1)
    with pytest.raises(ConfigError, match="-1 tokens and kappa 0"):
        cache.max_concurrency(-1)


def test_an_empty_sequence_and_an_empty_batch():
    cache = PagedCache(2, 4)
    seq = cache.open([])
    cache.append(seq, [])
    assert cache.reserve(seq, 0)
    assert cache.page_table(seq).shape == (0,)
    assert cache.tokens(seq).dtype == np.int32
    indices, begins = cache.block_table([])
    assert indices.shape == (0,)
    assert begins.tolist() == [0]
    assert cache.lengths([]).shape == (0,)


def test_page_tables_lie_one_after_another():
    cache = PagedCache(8, 4)
    one, two, three = filled(cache, [1] * 5), cache.open(), filled(cache, [2] * 9)
    indices, begins = cache.block_table([three, two, one])
    assert begins.tolist() == [0, 3, 3, 5]
    assert indices.tolist() == [*cache.page_table(three), *cache.page_table(one)]
    assert indices.dtype == begins.dtype == cache.page_table(one).dtype == np.int32
    assert cache.lengths([three, two, one]).tolist() == [9, 0, 5]
    with pytest.raises(ValueError, match="read-only"):
        cache.page_table(one)[0] = 3


def test_tokens_may_be_an_array():
    cache = PagedCache(4, 2)
    seq = filled(cache, np.array([5, 6, 7], dtype=np.int64))
    cache.close(seq)
    seq = cache.open(np.array([5, 6, 7], dtype=np.int32))
    assert cache.tokens(seq).tolist() == [5, 6]


def test_a_refused_append_changes_nothing():
    cache = PagedCache(3, 4)
    seq = filled(cache, [1] * 6)
    other = cache.open()
    assert cache.reserve(other, 4)
    before = cache.usage()
    assert not cache.reserve(seq, 3)
    with pytest.raises(CapacityError, match="needs 3 slots after 6 tokens"):
        cache.append(seq, [1, 2, 3])
    assert cache.usage() == before
    assert cache.tokens(seq).tolist() == [1] * 6
    cache.append(seq, [1, 2])
    cache.check_integrity()


def test_a_reservation_is_given_up_by_a_rollback_but_not_by_a_fork():
    cache = PagedCache(8, 4)
    seq = filled(cache, [1] * 6)
    assert cache.reserve(seq, 10)
    assert cache.usage().held_pages == 4
    child = cache.fork(seq)
    assert cache.usage().held_pages == 4
    cache.append(seq, [2, 2])
    assert cache.drain_copies() == []
    cache.append(child, [3])
    assert [copy.num_slots for copy in cache.drain_copies()] == [2]
    cache.truncate(seq, 8)
    assert cache.usage().held_pages == 3
    cache.check_integrity()


def test_a_copy_names_source_destination_and_slots():
    cache = PagedCache(8, 4)
    seq = filled(cache, [1] * 7)
    child = cache.fork(seq)
    shared = int(cache.page_table(seq)[-1])
    cache.append(child, [2])
    own = int(cache.page_table(child)[-1])
    assert cache.page_table(seq)[-1] == shared != own
    assert cache.drain_copies() == [(shared, own, 3)]
    assert cache.drain_copies() == []
    cache.append(seq, [3])  # the page is its own again: no copy
    assert cache.drain_copies() == []
    assert cache.counters().num_copies == 1


def test_the_last_room_is_found_by_giving_up_the_published_copy():
    """A page that only its writer holds needs no second page to be written again."""
    cache = PagedCache(2, 4)
    seq = filled(cache, [1] * 8)
    cache.truncate(seq, 6)
    cache.append(seq, [2, 2])
    assert cache.drain_copies() == []
    cache.commit(seq)
    cache.close(seq)
    assert cache.length(cache.open([1] * 9)) == 4
    assert cache.length(cache.open([1, 1, 1, 1, 1, 1, 2, 2, 0])) == 8
    cache.check_integrity()


def test_the_least_recently_used_prefix_goes_first_and_its_end_before_its_start():
    cache = PagedCache(6, 2)
    for tokens in ([1] * 4, [2] * 4, [3] * 4):
        cache.close(filled(cache, tokens))
    assert cache.usage().evictable_pages == 6
    cache.close(cache.open([1] * 5))  # used again: now the youngest
    seq = cache.open()
    assert cache.reserve(seq, 6)
    assert cache.counters().num_evictions == 3
    found = [cache.length(cache.open([token] * 5)) for token in (1, 2, 3)]
    assert found == [4, 0, 2]


def test_a_lost_start_of_a_prefix_comes_back_with_its_second_owner():
    cache = PagedCache(7, 2)
    first, second = filled(cache, [1] * 2), filled(cache, [1] * 6)
    cache.close(first)
    hog = cache.open()
    assert cache.reserve(hog, 6)
    twin = cache.open([1] * 7)
    assert cache.length(twin) == 6
    cache.close(twin)
    assert cache.reserve(hog, 8)
    assert cache.counters().num_evictions == 1
    assert cache.length(cache.open([1] * 7)) == 0  # its first page was the evicted one
    cache.close(second)
    assert cache.length(cache.open([1] * 7)) == 6
    cache.check_integrity()


def test_nothing_is_found_again_without_prefix_caching():
    cache = PagedCache(4, 2, prefix_caching=False)
    cache.close(filled(cache, [1] * 4))
    assert cache.length(cache.open([1] * 5)) == 0
    assert cache.usage() == CacheUsage(4, 4, 0, 0, 1, 0, 0)
    assert cache.counters() == CacheCounters()


def test_usage_counts_shared_pages_once_and_in_bytes():
    cache = PagedCache(10, 4, bytes_per_page=100)
    seq = filled(cache, [1] * 6)
    cache.fork(seq)
    assert cache.usage() == CacheUsage(10, 8, 2, 0, 2, 1000, 200)
    with pytest.raises(dataclasses.FrozenInstanceError):
        cache.usage().free_pages = 0


@pytest.mark.parametrize("tokens", [0, 1, 5, 11, 12, 13])
@pytest.mark.parametrize("kappa", [0, 1, 4, 7])
def test_max_concurrency_is_what_really_fits(tokens, kappa):
    cache = PagedCache(11, 4)
    fits = cache.max_concurrency(tokens, kappa)
    for number in range(fits + 1):
        seq = cache.open()
        granted = cache.reserve(seq, tokens + kappa + 1)
        assert granted == (number < fits)


def test_a_step_of_a_long_sequence_copies_nothing_long():
    """100,000 tokens are 400 kB; a hundred rounds allocate less than a tenth of it."""
    cache = PagedCache(4000, 32)
    seq = filled(cache, np.arange(100_000))
    for warm_up in (True, False):
        if not warm_up:
            tracemalloc.start()
        for _ in range(100):
            length = cache.length(seq)
            assert cache.reserve(seq, 5)
            cache.append(seq, [1, 2, 3, 4, 5])
            cache.truncate(seq, length + 2)
            cache.commit(seq)
            cache.page_table(seq)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40_000


def lose_a_page(cache, seq):
    cache._ledger.pool.free.pop()


def free_a_page_twice(cache, seq):
    cache._ledger.pool.free.append(cache._ledger.pool.free[0])


def free_a_held_page(cache, seq):
    cache._ledger.pool.free.append(int(cache.page_table(seq)[0]))


def miscount(cache, seq):
    cache._ledger.pool.references[int(cache.page_table(seq)[0])] += 1


def list_a_page_twice(cache, seq):
    state = cache._sequences[seq]
    state.pages[1] = state.pages[0]


def change_a_token(cache, seq):
    cache._sequences[seq].tokens[0] += 1


def share_a_reservation(cache, seq):
    child = cache._sequences[cache.fork(seq)]
    child.writable_end = child.num_pages * cache.page_size


def claim_slots_without_pages(cache, seq):
    cache._sequences[seq].writable_end += cache.page_size


def publish_under_another_name(cache, seq):
    prefixes = cache._ledger.prefixes
    node = next(iter(prefixes.nodes.values()))
    node.tokens = bytes(len(node.tokens))


def publish_no_page(cache, seq):
    prefixes = cache._ledger.prefixes
    prefixes.publish(prefixes.extend(prefixes.root, bytes(16)), 99)


def leave_an_empty_prefix(cache, seq):
    prefixes = cache._ledger.prefixes
    prefixes.extend(prefixes.root, bytes(16))


def miscount_users(cache, seq):
    cache._sequences[seq].node.num_users += 1


@pytest.mark.parametrize(
    "damage",
    [
        lose_a_page,
        free_a_page_twice,
        free_a_held_page,
        miscount,
        list_a_page_twice,
        change_a_token,
        share_a_reservation,
        claim_slots_without_pages,
        publish_under_another_name,
        publish_no_page,
        leave_an_empty_prefix,
        miscount_users,
    ],
)
def test_the_integrity_check_goes_red(damage):
    cache = PagedCache(8, 4)
    seq = filled(cache, [1] * 9)
    assert cache.reserve(seq, 3)
    cache.check_integrity()
    damage(cache, seq)
    with pytest.raises(InvariantError):
        cache.check_integrity()
