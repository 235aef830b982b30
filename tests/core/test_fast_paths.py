"""Every fast path of the laws equals its plain definition, token by token.

The definitions below are one line each and touch every entry. The sizes stand at the
edges of blocks, lanes and spans; the rows hold ties, zeros, -inf, denormals, peaks and
nothing but equals.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policy_kit import law_of

from draftproof.core import lanes, truncation
from draftproof.core.lanes import DEPTH, WIDTH, block_count, block_of, lane_peaks
from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw
from draftproof.core.noise import PositionNoise
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import CoinSource

SPAN = DEPTH * WIDTH
EDGES = [
    1, 2, 255, 256, 257, 511, 513, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4097, 5000,
    SPAN - 1, SPAN, SPAN + 1, SPAN + 1500, 2 * SPAN + 1,
]  # fmt: skip
sizes = st.one_of(st.sampled_from(EDGES), st.integers(1, 5000))
SHAPES = ["normal", "flat", "equal", "ties", "peaked", "masked", "two values", "low", "sorted"]


def logits_of(shape: str, size: int, seed: int) -> np.ndarray:
    """A row of float32 logits with at least one finite entry."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(size=size)
    row = {
        "normal": 3 * normal,
        "flat": 0.01 * normal,
        "equal": np.zeros(size),
        "ties": np.round(normal),
        "peaked": np.where(rng.random(size) < 2 / size, 30.0, normal),
        "masked": np.where(rng.random(size) < 0.7, -np.inf, 2 * normal),
        "two values": np.where(rng.random(size) < 0.5, 0.0, -1.0),
        "low": -99 + 4 * normal,  # beside the entry below: denormal weights and zeros
        "sorted": np.sort(4 * normal)[::-1],
    }[shape].astype(np.float32)
    if shape in ("low", "masked"):
        row[int(rng.integers(size))] = 0.0
    return row


rows = st.builds(logits_of, st.sampled_from(SHAPES), sizes, st.integers(0, 2**32))
noises = st.builds(
    lambda a, b, extra: ((a, b), extra),
    st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 70_000]),
)  # fmt: skip


def weights_of(logits: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        shifted = logits - logits.max()
        if temperature != 1.0:
            shifted *= np.float32(1.0 / temperature)
        return np.exp(shifted)


def plain_winner(noise: np.ndarray, weights: np.ndarray) -> int:
    times = np.full(len(weights), np.inf)
    np.divide(noise[: len(weights)], weights, out=times, where=weights > 0)
    return int(times.argmin())


def laws_of(logits: np.ndarray, temperature: float):
    """The same law in every form the race knows."""
    params = SamplingParams(temperature=temperature)
    weights = weights_of(logits, temperature)
    held = np.flatnonzero(weights)
    yield target_law(logits, params, History())
    yield target_law(logits, params, History(), is_stable=True)
    asked = target_law(logits, params, History(), is_stable=True)
    asked.prob(0)
    yield asked
    yield DenseLaw(weights)
    yield SparseLaw(held, weights[held], len(weights))


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 2**32), st.booleans())
def test_blocks_partition_a_row_and_peaks_are_their_maxima(size: int, seed: int, nan: bool) -> None:
    row = np.random.default_rng(seed).normal(size=size).astype(np.float32)
    if nan:
        row[seed % size] = np.nan
    count = block_count(size)
    blocks, depths = block_of(np.arange(size)), lanes.depth_of(np.arange(size))
    assert np.unique(blocks).tolist() == list(range(count))
    assert len(np.unique(blocks * DEPTH + depths)) == size
    assert depths.max() < DEPTH
    assert (np.sort(lanes.members(np.arange(count), size)) == np.arange(size)).all()
    expected = np.full(count, -np.inf, dtype=np.float32)
    with np.errstate(invalid="ignore"):
        np.maximum.at(expected, blocks, row)
    for found in (lane_peaks(row), lane_peaks(np.repeat(row, 2)[::2])):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=60, deadline=None)
@given(rows, noises, st.sampled_from([1.0, 0.3, 1.7]))
def test_all_forms_of_a_law_win_the_plain_race(logits: np.ndarray, named, temperature: float):
    keys, extra = named
    noise = PositionNoise(keys, len(logits) + extra)
    expected = plain_winner(noise[:], weights_of(logits, temperature))
    for law in laws_of(logits, temperature):
        # Anew, so that no answer leans on what another law left in the memo.
        assert law.race(PositionNoise(keys, len(logits) + extra)) == expected
        assert law.race(noise) == expected


@settings(max_examples=60, deadline=None)
@given(rows, noises, st.integers(0, 2**32))
def test_a_guess_changes_no_winner(logits: np.ndarray, named, other: int) -> None:
    keys, extra = named
    expected = plain_winner(PositionNoise(keys, len(logits) + extra)[:], weights_of(logits))
    best, size = int(logits.argmax()), len(logits)
    for guess in (expected, best, other % size, size - 1, size, size + 70_000):
        for law in laws_of(logits, 1.0):
            assert law.race_beside(PositionNoise(keys, size + extra), guess) == expected


@pytest.mark.parametrize("limit", ["_FIRST_BLOCKS", "_FIRST_TOKENS"])
def test_the_race_is_right_when_the_first_look_misses(monkeypatch, limit: str) -> None:
    # With one block, or one token, in the first look, most winners need the second.
    monkeypatch.setattr(f"draftproof.core.noise.{limit}", 1)
    for seed in range(60):
        logits = logits_of(SHAPES[seed % len(SHAPES)], (700, 5000, SPAN + 99)[seed % 3], seed)
        noise = PositionNoise((seed, ~seed & (2**64 - 1)), len(logits))
        expected = plain_winner(noise[:], weights_of(logits))
        assert [law.race(noise) for law in laws_of(logits, 1.0)] == [expected] * 5


def test_equal_arrivals_go_to_the_lowest_id() -> None:
    class Tied(PositionNoise):
        """Noise with the same value for every token."""

        __slots__ = ()

        def _words(self, counters):
            return np.full(len(counters), 1 << 40, dtype=np.uint64)

        def _at(self, ids, cells, places):
            return np.ones(len(ids))

    weights = np.zeros(3000, dtype=np.float32)
    weights[[2999, 1030, 1500, 6]] = [1, 1, 1, 0.5]
    noise = Tied((0, 0), 3000)
    assert DenseLaw(weights).race(noise) == 1030
    assert SparseLaw([1500, 1030, 2999], [1, 1, 1], 3000).race(noise) == 1030


def test_a_race_among_the_smallest_floats_has_a_winner_with_mass() -> None:
    for size in (900, 9000):  # all noise is made, or what can win
        noise = PositionNoise((1, 2), size)
        weights = np.zeros(size)
        weights[[7, 800]] = 5e-324  # noise / weight overflows
        assert DenseLaw(weights).race(noise) == 7
        weights[500] = 1.0
        assert DenseLaw(weights).race(noise) == 500


@settings(max_examples=25)
@given(noises, st.lists(st.integers(0, 200_000), min_size=1, max_size=40))
def test_noise_is_one_value_per_token_whoever_asks(named, ids: list[int]) -> None:
    keys, _ = named
    alone = [float(PositionNoise(keys, 200_001).at([token])[0]) for token in ids]
    together = PositionNoise(keys, 200_001)
    DenseLaw(np.ones(200_001, dtype=np.float32)).race(together)  # fills the memo of blocks
    assert together.at(ids).tolist() == alone
    assert all(value > 0 for value in alone)
    shorter = PositionNoise(keys, max(ids) + 1)
    assert shorter[ids].tolist() == alone


@pytest.mark.statistical
def test_noise_is_exponential_within_and_across_blocks_and_positions() -> None:
    # Kolmogorov-Smirnov on 65,536 values: 0.0125 is passed with probability
    # 2 e^(-2 n d^2) = 3e-9 each; a cdf off by 0.025 is seen as surely. Correlations:
    # six standard errors, 2e-9 each; 0.05 is seen.
    n, source = SPAN, CoinSource(11)
    first, second = (source.round(i).noise(0, n)[:] for i in range(2))
    depth, block = lanes.depth_of(np.arange(n)), block_of(np.arange(n))
    for values in (first, second, np.sort(first.reshape(DEPTH, WIDTH), axis=0)[0] * DEPTH):
        ordered = np.sort(values)
        grid = np.arange(len(values) + 1) / len(values)
        probs = -np.expm1(-ordered)
        distance = max((probs - grid[:-1]).max(), (grid[1:] - probs).max())
        assert distance < 0.0125 * np.sqrt(n / len(values))
    alarm = 6 / np.sqrt(n)
    for left, right in [
        (first, second), (first[:-1], first[1:]), (first[:-WIDTH], first[WIDTH:]),
        (first, depth), (first, block),
    ]:  # fmt: skip
        assert abs(np.corrcoef(left, right)[0, 1]) < alarm
    # The smallest of a block stands anywhere: chi-square of 63 degrees above 160 has
    # probability 1e-10.
    places = np.bincount(first.reshape(DEPTH, WIDTH).argmin(axis=0), minlength=DEPTH)
    assert ((places - WIDTH / DEPTH) ** 2 / (WIDTH / DEPTH)).sum() < 160


@pytest.mark.statistical
def test_races_follow_the_law() -> None:
    # 6,000 races over 12 tokens, some in one block: chi-square of 11 degrees above 70 has
    # probability 1e-10; heavy tokens off by a sixth of their mass are seen.
    ids = np.array([0, 1, 2, 1024, 1025, 2048, 3072, SPAN, SPAN + 1, SPAN + 1024, 70_000, 70_001])
    weights = np.arange(1, 13).astype(np.float32)
    law = SparseLaw(ids, weights, 80_000)
    wins = np.zeros(12)
    source = CoinSource(7)
    for position in range(6000):
        wins[ids.searchsorted(law.race(source.round(position).noise(0, 80_000)))] += 1
    expected = 6000 * weights / weights.sum()
    assert ((wins - expected) ** 2 / expected).sum() < 70


def order_of(values: np.ndarray) -> np.ndarray:
    return np.lexsort((np.arange(len(values)), -values.astype(np.float64)))


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(1, 200), st.booleans())
def test_top_k_is_the_head_of_a_full_sort(logits: np.ndarray, count: int, known: bool) -> None:
    expected = np.sort(order_of(logits)[:count])
    found = truncation.largest(logits, count, lane_peaks(logits) if known else None)
    assert (np.arange(len(logits)) if found is None else found).tolist() == expected.tolist()


@settings(max_examples=120, deadline=None)
@given(rows, st.sampled_from([1e-9, 0.05, 0.5, 0.9, 0.99, 0.9999, 1 - 2.0**-40]), st.booleans())
def test_top_p_is_the_shortest_head_of_a_full_sort(logits, mass: float, known: bool) -> None:
    weights = weights_of(logits)
    kept = truncation.nucleus(weights, mass, lane_peaks(weights) if known else None)
    if isinstance(kept, truncation.Zeroed):
        slots = np.flatnonzero(kept.weights)
        assert (kept.weights[slots] == weights[slots]).all()
    else:
        slots = kept
    order = order_of(weights)
    assert slots.tolist() == sorted(order[: len(slots)].tolist()), "not the head of the order"
    # Integer sums of float32 weights have no rounding: the length is right to the token
    # wherever the goal is farther from a partial sum than float64 can tell.
    sums = np.cumsum(weights[order].astype(np.longdouble))
    goal, noise = mass * sums[-1], sums[-1] * 1e-13
    shortest = int(np.searchsorted(sums, goal - noise)) + 1
    longest = min(int(np.searchsorted(sums, goal + noise)) + 1, len(weights))
    assert shortest <= len(slots) <= longest


def test_a_nucleus_is_exact_to_the_token_where_sums_are_exact() -> None:
    # Powers of two: every sum is exact, so one token too many or too few is an error.
    rng = np.random.default_rng(3)
    for size in (600, 5000, 9000, SPAN + 7):
        weights = (2.0 ** -rng.integers(0, 4, size)).astype(np.float32)
        total = float(weights.sum(dtype=np.float64))
        order = order_of(weights)
        sums = np.cumsum(weights[order], dtype=np.float64)
        for count in (1, 7, size // 50, size // 3, size - 1):
            for goal, length in ((sums[count - 1], count), (sums[count - 1] + 0.01, count + 1)):
                mass = goal / total
                if not mass < 1 or mass * total != goal:
                    continue
                kept = truncation.nucleus(weights, mass)
                slots = kept if isinstance(kept, np.ndarray) else np.flatnonzero(kept.weights)
                assert len(slots) == length
                assert slots.tolist() == sorted(order[:length].tolist())


def test_a_sample_that_misleads_is_found_out() -> None:
    # What the sample sees is light and the rest heavy, and the other way round.
    for seen, unseen in ((1e-3, 1.0), (1.0, 1e-3)):
        weights = np.full(20_000, unseen, dtype=np.float32)
        weights[:: truncation._STRIDE] = seen
        weights *= np.linspace(1, 0.9, 20_000, dtype=np.float32)
        for mass in (0.3, 0.9, 0.999):
            kept = truncation.nucleus(weights, mass)
            slots = kept if isinstance(kept, np.ndarray) else np.flatnonzero(kept.weights)
            order = order_of(weights)
            sums = np.cumsum(weights[order], dtype=np.float64)
            assert slots.tolist() == sorted(order[: len(slots)].tolist())
            assert abs(len(slots) - 1 - np.searchsorted(sums, mass * sums[-1])) <= 1


@settings(max_examples=50, deadline=None)
@given(rows, st.sampled_from([1e-6, 0.05, 0.3, 1.0]))
def test_min_p_keeps_what_a_comparison_keeps(logits: np.ndarray, fraction: float) -> None:
    weights = weights_of(logits)
    expected = np.flatnonzero(weights >= weights.max() * np.float32(fraction)).tolist()
    assert truncation.at_least(weights, fraction).tolist() == expected
    assert truncation.at_least(weights, fraction, lane_peaks(weights)).tolist() == expected


@settings(max_examples=40, deadline=None)
@given(
    st.builds(logits_of, st.sampled_from(SHAPES), st.sampled_from(EDGES), st.integers(0, 2**32)),
    st.permutations(["temperature", "top_k", "top_p", "min_p"]),
)
def test_filters_compose_on_rows_of_real_sizes(logits: np.ndarray, order: list[str]) -> None:
    """Stage by stage over the whole row, with full sorts."""
    row, kept = logits.astype(np.float32), logits > -np.inf
    law = law_of(logits, temperature=0.7, top_k=300, top_p=0.8, min_p=0.01, order=tuple(order))
    heat = 1.0
    for stage in order:
        ids = np.flatnonzero(kept)
        weights = weights_of(row[ids], heat)
        if stage == "temperature":
            heat = 0.7
        elif stage == "top_k":
            ids = ids[order_of(row[ids])[:300]]
        elif stage == "top_p":
            head = order_of(weights)
            sums = np.cumsum(weights[head], dtype=np.float64)
            count = int(np.searchsorted(sums, 0.8 * sums[-1])) + 1
            if min(abs(sums[max(count - 2, 0) : count + 1] / sums[-1] - 0.8)) < 1e-9:
                return  # the boundary is a matter of rounding
            ids = ids[head[:count]]
        else:
            ids = ids[weights >= weights.max() * np.float32(0.01)]
        kept = np.isin(np.arange(len(row)), ids)
    expected = np.zeros(len(row))
    expected[kept] = weights_of(row[kept], 0.7)
    np.testing.assert_allclose(law.dense(), expected / expected.sum(), rtol=1e-6, atol=1e-30)


@settings(max_examples=50, deadline=None)
@given(rows, st.floats(0, 1, exclude_max=True), st.sampled_from([1.0, 0.6]))
def test_a_law_that_puts_its_exponential_off_answers_like_one_that_does_not(
    logits: np.ndarray, u: float, temperature: float
) -> None:
    plain = DenseLaw(weights_of(logits, temperature))
    params = SamplingParams(temperature=temperature)
    ids = np.unique(np.array([0, len(logits) // 2, len(logits) - 1]))
    before = logits.copy()
    for is_stable in (False, True):
        for ask in (
            lambda law: law.draw(u),
            lambda law: [law.prob(int(token)) for token in ids],
            lambda law: law.probs_at(ids).tolist(),
            lambda law: law.dense().tolist(),
            lambda law: law.residual(plain).draw(u),
            lambda law: law.residual_mass(OneHotLaw(int(ids[-1]), len(logits))),
            lambda law: law.residual(OneHotLaw(int(logits.argmax()), len(logits))).draw(u),
            lambda law: plain.residual_mass(law, 0.5),
        ):
            law = target_law(logits, params, History(), is_stable=is_stable)
            # Masses of residuals may be summed in another order.
            assert ask(law) == pytest.approx(ask(plain), rel=1e-13, abs=0)
            assert ask(law) == pytest.approx(ask(plain), rel=1e-13, abs=0), "the second answer"
    np.testing.assert_array_equal(logits, before)


def test_a_law_outlives_its_row_unless_the_row_is_said_to_be_stable() -> None:
    row = logits_of("normal", 3000, 1)
    law = target_law(row, SamplingParams(), History())
    expected = weights_of(row) / weights_of(row).sum(dtype=np.float64)
    row[:] = 0.0
    np.testing.assert_allclose(law.dense(), expected, rtol=1e-12)


@settings(max_examples=80, deadline=None)
@given(rows, st.integers(1, 120), st.floats(0, 1, exclude_max=True), st.booleans())
@example(logits_of("equal", 65535, 0), 74, 0.9999999999999998, False)
def test_what_is_left_after_a_few_tokens_is_the_positive_part(
    logits: np.ndarray, count: int, u: float, is_stable: bool
) -> None:
    rng = np.random.default_rng(count)
    size = len(logits)
    ids = rng.choice(size, min(count, size), replace=False)
    few = SparseLaw(ids, rng.random(len(ids)) + 0.1, size)
    law = target_law(logits, SamplingParams(), History(), is_stable=is_stable)
    mass, rest = law.residual_with_mass(few, 0.75)
    excess = np.maximum(0.75 * law.dense() - few.dense(), 0.0)
    assert mass == pytest.approx(excess.sum(), abs=1e-12)
    if mass == 0:
        return
    token = rest.draw(u)
    np.testing.assert_allclose(rest.dense(), excess / excess.sum(), rtol=1e-9, atol=1e-13)
    assert rest.prob(token) > 0
    assert rest.draw(u) == token
    # Extended precision: 65,535 sums in float64 may be off by more than is allowed here.
    sums = np.cumsum(rest.dense().astype(np.longdouble))
    assert sums[token] >= u - 1e-12
    assert sums[token] - rest.prob(token) <= u + 1e-12
    noise = PositionNoise((3, 4), size)
    assert rest.race(noise) == plain_winner(noise[:], excess)
