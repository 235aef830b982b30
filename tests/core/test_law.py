"""Laws draw what they score, and subtract without losing mass."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftproof.core.law import DenseLaw, Law, OneHotLaw, SparseLaw
from draftproof.core.rng import CoinSource
from draftproof.errors import InvariantError

LAST = 1 - 2.0**-53

finite_weights = st.one_of(
    st.just(0.0),
    st.sampled_from([1.0, 0.5, 2.0**-149, 2.0**-126, 1e-20, 3.0]),
    st.floats(2.0**-149, 2.0**100, width=32),
)


@st.composite
def laws(draw, size: int | None = None) -> Law:
    size = size or draw(st.integers(1, 9))
    form = draw(st.sampled_from(["dense32", "dense64", "sparse", "one-hot"]))
    if form == "one-hot":
        return OneHotLaw(draw(st.integers(0, size - 1)), size)
    weights = draw(arrays(np.float32, size, elements=finite_weights))
    if not weights.any():
        weights[draw(st.integers(0, size - 1))] = 1.0
    if form == "sparse":
        ids = np.flatnonzero(weights)
        order = draw(st.permutations(range(len(ids))))
        return SparseLaw(ids[order], weights[ids][order], size)
    return DenseLaw(weights.astype(np.float64) if form == "dense64" else weights)


@given(laws())
def test_scores_of_all_kinds_agree_and_sum_to_one(law: Law) -> None:
    dense = law.dense()
    assert dense.dtype == np.float64
    assert dense.sum() == pytest.approx(1.0, abs=1e-12)
    assert [law.prob(t) for t in range(law.vocab_size)] == dense.tolist()
    ids = np.arange(law.vocab_size)[::-1]
    assert (law.probs_at(ids) == dense[::-1]).all()
    assert law.prob(-1) == law.prob(law.vocab_size) == 0.0
    assert law.is_one_hot == isinstance(law, OneHotLaw)


@given(laws(), st.one_of(st.sampled_from([0.0, 2.0**-53, 0.5, LAST]), st.floats(0, LAST)))
def test_a_draw_is_the_inverse_of_the_cumulative_law(law: Law, u: float) -> None:
    token = law.draw(u)
    dense = law.dense()
    assert dense[token] > 0
    assert dense[:token].sum() <= u + 1e-12
    assert dense[: token + 1].sum() >= u - 1e-12


@given(laws(), st.integers(0, 2**64 - 1))
def test_a_race_is_the_argmin_and_never_a_token_without_mass(law: Law, seed: int) -> None:
    noise = CoinSource(seed).round(0).noise(0, law.vocab_size)
    winner = law.race(noise)
    dense = law.dense()
    assert dense[winner] > 0
    held = np.flatnonzero(dense)
    assert noise[winner] / dense[winner] <= (noise[held] / dense[held]).min() * (1 + 1e-12)


@given(st.data(), st.integers(1, 9))
def test_accepted_and_residual_mass_make_the_law(data, size: int) -> None:
    p, q = data.draw(laws(size)), data.draw(laws(size))
    scale = data.draw(st.sampled_from([1.0, 0.75, 1e-6]))
    mass, residual = p.residual_with_mass(q, scale)
    excess = np.maximum(scale * p.dense() - q.dense(), 0.0)
    assert mass == pytest.approx(excess.sum(), abs=1e-12)
    assert p.residual_mass(q, scale) == mass
    if mass > 0:
        rebuilt = np.minimum(scale * p.dense(), q.dense()) + mass * residual.dense()
        assert rebuilt == pytest.approx(scale * p.dense(), abs=1e-12)
    else:
        assert residual is p
    assert p.prob(p.residual(q, scale).draw(LAST)) > 0


def breakpoints(law: Law, low: float, high: float, depth: int = 0) -> list[tuple[float, int]]:
    """Find by bisection where the drawn token changes."""
    a, b = law.draw(low), law.draw(high)
    middle = (low + high) / 2
    if a == b and depth >= 12:
        return []
    if middle in (low, high):
        return [] if a == b else [(high, b)]
    return breakpoints(law, low, middle, depth + 1) + breakpoints(law, middle, high, depth + 1)


@pytest.mark.parametrize("form", ["float32", "float64", "sparse", "long"])
def test_the_measure_of_every_draw_is_the_probability(form: str) -> None:
    weights = np.array([0, 0.3, 1e-4, 0, 2.5, 0.7, 1e-3, 0], dtype=np.float64)
    if form == "long":  # the law reaches over several blocks
        weights = np.concatenate([np.zeros(300), weights, np.zeros(500), weights, np.zeros(5)])
    dense = DenseLaw(weights.astype(np.float32 if form == "float32" else np.float64))
    ids = np.flatnonzero(weights)
    law = SparseLaw(ids, weights[ids], len(weights)) if form == "sparse" else dense
    edges = breakpoints(law, 0.0, LAST)
    tokens = [law.draw(0.0), *(token for _, token in edges)]
    bounds = [0.0, *(edge for edge, _ in edges), 1.0]
    measure = np.zeros(law.vocab_size)
    for token, (a, b) in zip(tokens, pairwise(bounds), strict=True):
        measure[token] += b - a
    assert measure == pytest.approx(law.dense(), abs=1e-15)


def test_the_race_follows_the_law_over_a_grid_of_noise() -> None:
    # Two tokens: E0/p0 < E1/p1 over the midpoints of a 400 by 400 grid of quantiles.
    law = DenseLaw(np.array([0.3, 0.7]))
    quantiles = -np.log1p(-(np.arange(400) + 0.5) / 400)
    wins = sum(law.race(np.array([a, b])) == 0 for a in quantiles for b in quantiles[::4])
    assert wins / (400 * 100) == pytest.approx(0.3, abs=0.01)


def test_ties_in_a_race_go_to_the_lowest_id() -> None:
    assert DenseLaw(np.array([0, 1, 1.0])).race(np.ones(3)) == 1
    assert SparseLaw([2, 1], [1, 1], 4).race(np.ones(4)) == 1


def test_rejection_at_equal_laws_falls_back_to_the_target() -> None:
    p = np.array([0.3, 0.25, 0.2, 0.25])
    law = DenseLaw(p)
    assert law.residual(DenseLaw(p)) is law
    above = DenseLaw(np.nextafter(p, [1, 0, 1, 0]))
    for a, b in [(law, above), (above, law)]:
        mass, residual = a.residual_with_mass(b)
        assert mass < 1e-15
        for u in (0.0, 0.5, LAST):
            assert a.prob(residual.draw(u)) > 0


def test_disjoint_one_hot_and_tiny_residuals() -> None:
    left, right = DenseLaw(np.array([1.0, 0, 0])), DenseLaw(np.array([0, 0.5, 0.5]))
    assert left.residual_with_mass(right)[0] == 1.0
    assert (right.residual(left).dense() == right.dense()).all()
    assert OneHotLaw(0, 3).residual(OneHotLaw(0, 3)).draw(0.5) == 0
    assert OneHotLaw(0, 3).residual(OneHotLaw(1, 3)).draw(0.5) == 0
    assert left.residual(OneHotLaw(0, 3)) is left
    mass, residual = DenseLaw(np.array([1e-20, 1.0])).residual_with_mass(OneHotLaw(1, 2))
    assert (mass, residual.draw(LAST)) == (pytest.approx(1e-20), 0)
    assert left.residual_with_mass(right, 0.0) == (0, left)
    assert left.residual_with_mass(right, math.nan)[1] is left


def test_removing_a_token_keeps_the_sums_of_long_rows_right() -> None:
    weights = np.random.default_rng(1).random(1000).astype(np.float32)
    law = DenseLaw(weights)
    for token in (0, 255, 256, 999):
        residual = law.residual(OneHotLaw(token, 1000))
        expected = weights.astype(np.float64)
        expected[token] = 0
        assert residual.dense() == pytest.approx(expected / expected.sum(), rel=1e-12)
        assert residual.prob(token) == 0.0
    assert law.dense() == pytest.approx(weights / weights.sum(dtype=np.float64), rel=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: DenseLaw([]),
        lambda: DenseLaw([[1.0]]),
        lambda: DenseLaw([0.0, 0.0]),
        lambda: DenseLaw([1.0, -0.5]),
        lambda: DenseLaw([1.0, math.nan]),
        lambda: DenseLaw([1.0, math.inf]),
        lambda: SparseLaw([0, 1], [1.0], 3),
        lambda: SparseLaw([0, 0], [1.0, 1.0], 3),
        lambda: SparseLaw([3], [1.0], 3),
        lambda: SparseLaw([-1, 1], [1.0, 1.0], 3),
        lambda: SparseLaw([0, 1], [1.0, -1.0], 3),
        lambda: OneHotLaw(3, 3),
        lambda: OneHotLaw(-1, 3),
        lambda: OneHotLaw(0, 3).residual(OneHotLaw(0, 4)),
    ],
)
def test_what_is_no_law_is_refused(make) -> None:
    with pytest.raises(InvariantError):
        make()


@settings(max_examples=30)
@given(st.integers(1, 700), st.integers(0, 2**32), st.floats(0, LAST))
def test_blocks_of_any_length_draw_like_one_long_sum(size: int, seed: int, u: float) -> None:
    weights = np.random.default_rng(seed).random(size)
    law = DenseLaw(weights)
    cumulative = np.cumsum(weights)
    expected = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    token = law.draw(u)
    near = abs(cumulative[min(token, expected)] / cumulative[-1] - u) < 1e-12
    assert token == min(expected, size - 1) or near


def test_a_law_says_what_it_is() -> None:
    law = SparseLaw([5, 2], [1, 1], 9)
    assert repr(law) == "SparseLaw(<2 of 9 tokens>)"
    assert law.ids.tolist() == [2, 5]
    assert repr(DenseLaw([1.0, 1.0])) == "DenseLaw(<2 tokens, float64>)"
    assert repr(OneHotLaw(1, 2)) == "OneHotLaw(1, 2)"
