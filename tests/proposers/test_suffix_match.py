"""The index finds what a search over all pairs of positions finds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.proposers._suffix_match import SuffixMatch, SuffixMatchIndex


def brute_force(tokens, min_n, max_n):
    best = None
    for end in range(1, len(tokens)):
        length = 0
        while length < min(max_n, end) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= min_n and (best is None or length >= best.length):
            best = SuffixMatch(end, length)
    return best


texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v), max_size=60))


# 1, 3 and 2**63 + 1 are bad bases: with them, different n-grams collide all the time, and
# the search that uses no hash has to answer.
@pytest.mark.parametrize("multiplier", [None, 1, 3, 2**63 + 1])
@given(texts, st.integers(1, 4), st.integers(0, 40), st.integers(1, 9))
def test_longest_is_the_newest_of_the_longest(multiplier, tokens, min_n, extra, piece):
    options = {} if multiplier is None else {"multiplier": multiplier}
    index = SuffixMatchIndex(min_n, min_n + extra, **options)
    for begin in range(0, len(tokens), piece):
        index.extend(tokens[begin : begin + piece])
        held = tokens[: begin + piece]
        assert index.longest() == brute_force(held, min_n, min_n + extra)
    assert index.tokens.tolist() == tokens


def test_tokens_hash_alike_one_by_one_and_at_once():
    tokens = np.random.default_rng(1).integers(0, 2**31, 200).tolist()
    whole, single = SuffixMatchIndex(2, 5), SuffixMatchIndex(2, 5)
    whole.extend(tokens)
    for token in tokens:
        single.extend([token])
    for name in ("_prefix", "_scale", "_keys", "_tokens"):
        assert np.array_equal(getattr(whole, name)[:200], getattr(single, name)[:200])
    assert whole._power == single._power


@pytest.mark.parametrize("name", ["constant", "runs", "fibonacci", "random"])
def test_repetitive_texts_longer_than_a_block_of_hits(name):
    rng = np.random.default_rng(3)
    if name == "constant":
        tokens = [7] * 1500
    elif name == "runs":
        tokens = [t for _ in range(40) for t in [7] * int(rng.integers(1, 60)) + [8]] + [7] * 50
    elif name == "fibonacci":
        older, tokens = [0], [0, 1]
        while len(tokens) < 1500:
            older, tokens = tokens, tokens + older
    else:
        tokens = rng.integers(0, 3, 1500).tolist()
    for min_n, max_n in [(1, 3), (2, 500), (5, 37)]:
        index = SuffixMatchIndex(min_n, max_n)
        index.extend(tokens)
        assert index.longest() == brute_force(tokens, min_n, max_n)


def test_ids_near_the_end_of_int32_are_told_apart():
    index = SuffixMatchIndex(1, 2)
    index.extend([2**31 - 1, 5, 0, 2**31 - 1])
    assert index.longest() == SuffixMatch(1, 1)
