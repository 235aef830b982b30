"""The sorted contexts find what a search over all places finds, whatever was forgotten."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.proposers._contexts import SEPARATOR, ContextIndex, ContextMatch, context_bytes

ALL = 10**9

texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v), max_size=80))
pieces = st.lists(st.integers(1, 90), min_size=1, max_size=12)


def agreement(left, right, depth):
    length = 0
    while length < min(depth, len(left), len(right)) and left[-1 - length] == right[-1 - length]:
        length += 1
    return length


def brute_force(tokens, context, depth, window):
    """Return the longest match and all of its places, by comparing every place."""
    first = max(1, len(tokens) - window)
    lengths = {
        place: agreement(tokens[:place], context, depth)
        for place in range(first, len(tokens))
        if tokens[place] != SEPARATOR
    }
    longest = max(lengths.values(), default=0)
    if longest == 0:
        return None
    return longest, {place for place, length in lengths.items() if length == longest}


def found(match):
    return None if match is None else (match.length, set(match.places))


def in_pieces(tokens, sizes):
    begin = 0
    for number in range(len(tokens) + 1):
        size = sizes[number % len(sizes)]
        yield tokens[begin : begin + size], tokens[: begin + size]
        begin += size
        if begin >= len(tokens):
            return


@given(texts, pieces, st.integers(1, 6), st.integers(1, 60))
def test_all_places_of_the_longest_match_are_found(tokens, sizes, depth, window):
    index = ContextIndex(depth, window)
    for piece, held in in_pieces(tokens, sizes):
        index.extend(piece)
        expected = brute_force(held, held, depth, window)
        assert found(index.longest(index.end, ALL)) == expected
        assert index.num_places == sum(p > 0 for p in range(max(0, len(held) - window), len(held)))
        assert len(index) == len(held)


@given(texts, texts, st.integers(1, 6), st.integers(1, 60))
def test_other_texts_are_looked_up_too(tokens, other, depth, window):
    index = ContextIndex(depth, window)
    index.extend(tokens)
    match = index.longest(context_bytes(other), ALL)
    assert found(match) == brute_force(tokens, other, depth, window)


@given(st.lists(texts, max_size=6), texts, st.integers(1, 60))
def test_no_match_crosses_a_separator_or_proposes_one(parts, other, window):
    index, joined = ContextIndex(5, window), []
    for part in parts:
        index.extend([*part, SEPARATOR])
        joined += [*part, SEPARATOR]
    match = index.longest(context_bytes(other), ALL)
    assert found(match) == brute_force(joined, other, 5, window)
    assert all(joined[place] != SEPARATOR for place in (match.places if match else ()))


@given(texts, pieces, st.integers(1, 60))
def test_pieces_change_nothing(tokens, sizes, window):
    index, whole = ContextIndex(4, window), ContextIndex(4, window)
    whole.extend(tokens)
    for piece, _ in in_pieces(tokens, sizes):
        index.extend(piece)
    for limit in (1, 2, 3, 5):
        assert index.longest(index.end, limit) == whole.longest(whole.end, limit)


@given(texts, st.integers(0, 80), st.integers(1, 60))
def test_a_changed_text_is_told_apart_as_far_as_the_window_reaches(tokens, place, window):
    index = ContextIndex(4, window)
    index.extend(tokens)
    assert index.starts(tokens)
    assert index.starts([*tokens, 1])
    assert not tokens or not index.starts(tokens[:-1])
    if place < len(tokens):
        changed = [*tokens[:place], tokens[place] + 1, *tokens[place + 1 :]]
        if place >= len(tokens) - window:
            assert not index.starts(changed)


def test_of_equal_contexts_the_newest_are_returned():
    index = ContextIndex(depth=3)
    index.extend([7] * 50)
    assert index.longest(index.end, 4) == ContextMatch(3, (49, 48, 47, 46))


@pytest.mark.parametrize("piece", [1, 7, 100, 5000])
@pytest.mark.parametrize("name", ["constant", "random", "fibonacci"])
def test_memory_is_bounded_and_old_text_is_gone(name, piece):
    # 24 bytes per place of the window and 16 KiB, however much was added.
    if name == "constant":
        tokens = [5] * 9000
    elif name == "random":
        tokens = np.random.default_rng(1).integers(0, 50, 9000).tolist()
    else:
        older, tokens = [0], [0, 1]
        while len(tokens) < 9000:
            older, tokens = tokens, tokens + older
    index = ContextIndex(depth=16, window=1000)
    index.extend([99, 98, 97])
    for begin in range(0, len(tokens), piece):
        index.extend(tokens[begin : begin + piece])
        assert index.num_bytes <= 24 * 1000 + 16384 + 6 * piece
        assert index.num_places <= 1000
    assert index.longest(context_bytes([99, 98])) is None
    match = index.longest(index.end, ALL)
    assert match is not None
    assert min(match.places) >= len(index) - 1000


def test_ids_at_the_ends_of_the_range_are_told_apart():
    index = ContextIndex()
    index.extend([2**32 - 2, 5, 0, 2**32 - 2])
    assert found(index.longest(index.end)) == (1, {1})
    with pytest.raises(OverflowError):
        index.extend([-1])
