"""A top-p law that puts its boundary off answers as the one that has looked for it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.law import OneHotLaw
from draftproof.core.noise import PositionNoise
from draftproof.core.nucleus_law import NucleusLaw
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.types import Draft
from draftproof.verify import verify


def row_of(seed: int, size: int, shape: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(size)
    return {
        "normal": 3 * normal,
        "flat": 0.01 * normal,
        "equal": np.zeros(size),
        "ties": np.round(2 * normal),
        "peaked": np.where(rng.random(size) < 2 / size, 20.0, normal),
        "few": np.where(np.arange(size) < 5, 22 + np.abs(normal), normal),
        "one": np.where(np.arange(size) == seed % size, 60.0, normal),
        "masked": np.where(rng.random(size) < 0.7, -np.inf, 2 * normal),
    }[shape].astype(np.float32)


SHAPES = ("normal", "flat", "equal", "ties", "peaked", "few", "one", "masked")


def both(row: np.ndarray, params: SamplingParams):
    lazy = target_law(row, params, History(), is_stable=True)
    plain = target_law(row, params, History())
    assert isinstance(lazy, NucleusLaw)
    assert not isinstance(plain, NucleusLaw)
    return lazy, plain


def tokens_of(row: np.ndarray, seed: int) -> list[int]:
    order = np.argsort(-row, kind="stable")
    near = [0, 1, 2, 3, 4, 5, 20, 1000, len(row) // 2, len(row) - 1]
    return [*order[near].tolist(), seed % len(row)]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**20),
    st.sampled_from([4096, 5000]),
    st.sampled_from(SHAPES),
    st.sampled_from([0.05, 0.5, 0.9, 0.999, 1 - 2.0**-40]),
    st.sampled_from([0.6, 1.0, 1.4]),
)
def test_bounds_hold_and_races_agree(
    seed: int, size: int, shape: str, top_p: float, temperature: float
) -> None:
    row = row_of(seed, size, shape)
    params = SamplingParams(top_p=top_p, temperature=temperature)
    _, plain = both(row, params)
    for token in tokens_of(row, seed):
        lazy, _ = both(row, params)
        low, high = lazy.prob_range(token)
        assert low <= plain.prob(token) <= high
        assert low > 0 or high == 0 or low == high
    assert both(row, params)[0].prob_range(size) == (0.0, 0.0)
    keys = (seed, 7 * seed)
    winner = plain.race(PositionNoise(keys, size))
    for guess in (winner, int(row.argmax()), seed % size, size + 3):
        assert both(row, params)[0].race_beside(PositionNoise(keys, size), guess) == winner
    assert both(row, params)[0].race(PositionNoise(keys, size)) == winner
    lazy, _ = both(row, params)
    assert lazy.draw(0.77) == plain.draw(0.77)
    assert lazy.is_one_hot == plain.is_one_hot
    np.testing.assert_array_equal(lazy.dense(), plain.dense())


class Coins:
    """The same coin for every draft, and noise of one name."""

    start = 0

    def __init__(self, accept: float) -> None:
        self.value = accept

    def accept(self, i: int) -> float:
        return self.value

    def sample(self, i: int) -> float:
        return 0.3

    def noise(self, i: int, vocab_size: int) -> PositionNoise:
        return PositionNoise((int(self.value * 2**40), i), vocab_size)


@pytest.mark.parametrize("rule", ["standard", "block", "coupled", "sample-match"])
@pytest.mark.parametrize("shape", ["normal", "ties", "few", "one"])
def test_rules_decide_the_same(rule: str, shape: str) -> None:
    params, seen = SamplingParams(top_p=0.9), set()
    for seed in range(6):
        rows = [row_of(7 * seed + j, 4200, shape) for j in range(3)]
        pairs = [both(row, params) for row in rows]
        plain = [law for _, law in pairs]
        tokens = tuple(law.draw(0.3) for law in plain[:2])
        near = target_law(rows[0] + np.float32(0.1), params, History())
        for laws in (None, (plain[0], plain[1]), (near, plain[1])):
            if laws is not None and not laws[0].prob(tokens[0]) > 0:
                continue
            draft = Draft(tokens, laws, "d")
            prob = plain[0].prob(tokens[0])
            for coin in (0.0, 0.5 * prob, 0.97 * prob, prob, np.nextafter(prob, 2), 0.7, 0.95):
                if not coin < 1:
                    continue
                lazy, coins = [both(row, params)[0] for row in rows], Coins(float(coin))
                if rule == "coupled":  # a draft that wins
                    first = plain[0].race(coins.noise(0, 4200))
                    draft = Draft((first, tokens[1]), None, "d")
                expected = verify(rule, draft, plain.__getitem__, coins)
                assert verify(rule, draft, lazy.__getitem__, coins) == expected
                seen.add(expected.num_accepted)
    assert seen - {0}


def test_a_clear_question_never_looks_for_the_boundary() -> None:
    def never() -> OneHotLaw:
        raise AssertionError("the boundary was looked for")

    row = row_of(3, 5000, "normal")
    lazy = both(row, SamplingParams(top_p=0.9))[0]
    watched = NucleusLaw(row, lazy._softmax, 0.9, never)
    best, worst = int(row.argmax()), int(row.argmin())
    low, high = watched.prob_range(best)
    assert 0 < low < high < 1.3 * low
    with pytest.raises(AssertionError):
        watched.prob_range(worst)  # too many tokens stand before it
