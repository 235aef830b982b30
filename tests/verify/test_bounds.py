"""Bounds of probabilities decide what the probabilities would, and spare the exponential.

The definition here is a dense law whose weights are all made: its bounds are the
probability itself. Coins stand on the probability, one step beside it, and on the bounds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.law import DenseLaw, OneHotLaw
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.scratch import Scratch
from draftproof.core.softmax import Softmax
from draftproof.core.types import Draft
from draftproof.verify import verify

SPREADS = (0.0, 0.01, 1.0, 4.0, 40.0)
SIZES = (256, 300, 2049, 65_536 + 300)


def row_of(seed: int, size: int, spread: float, shift: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    row = (spread * rng.standard_normal(size) + shift).astype(np.float32)
    if seed % 3 == 0:
        row[rng.random(size) < 0.5] = -np.inf
        row[seed % size] = shift
    return row


def weights_of(row: np.ndarray, temperature: float) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        shifted = row - row.max()
        if temperature != 1.0:
            shifted *= np.float32(1.0 / temperature)
        return np.exp(shifted)


def lazy(row: np.ndarray, temperature: float, scratch: Scratch):
    params = SamplingParams(temperature=temperature)
    return target_law(row, params, History(), is_stable=True, scratch=scratch)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**20),
    st.sampled_from(SIZES),
    st.sampled_from(SPREADS),
    st.sampled_from([2e-5, 0.01, 0.7, 1.0, 1.3, 50.0]),
    st.sampled_from([0.0, 30.0, -500.0, 1e4]),
)
def test_bounds_hold_the_probability(
    seed: int, size: int, spread: float, temperature: float, shift: float
) -> None:
    row = row_of(seed, size, spread, shift)
    law = lazy(row, temperature, Scratch())
    plain = DenseLaw(weights_of(row, temperature))
    for token in [int(row.argmax()), *(seed * np.arange(1, 6) % size).tolist()]:
        low, high = law.prob_range(token)
        prob = plain.prob(token)
        assert low <= prob <= high
        assert low > 0 or high == 0 or low == high
        if low < high:  # as narrow as is said: 6.15 % and the roundings
            assert high / low < 1.065
    assert law.prob_range(-1) == law.prob_range(size) == (0.0, 0.0)


class Coins:
    """The same coin for every draft."""

    start = 0

    def __init__(self, accept: float) -> None:
        self.value = accept

    def accept(self, i: int) -> float:
        return self.value

    def sample(self, i: int) -> float:
        return 0.3


def coins_beside(points) -> list[float]:
    """The points, their neighbours in float64, and the ends; all in [0, 1)."""
    beside = [0.0, 0.5, 1 - 2.0**-53]
    for point in points:
        beside += [point, math.nextafter(point, 0), math.nextafter(point, 2)]
    return [coin for coin in beside if 0 <= coin < 1]


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("drafter", ["one-hot", "same", "near", "far"])
def test_rules_decide_by_bounds_as_by_probabilities(rule: str, drafter: str) -> None:
    scratch, size, seen = Scratch(), 700, set()
    for seed in range(12):
        rows = [row_of(5 * seed + j, size, 2.0) for j in range(3)]
        drift = {"one-hot": 0.0, "same": 0.0, "near": 0.3, "far": 3.0}[drafter]
        noise = np.random.default_rng(seed).standard_normal((3, size)) * drift
        own = [
            DenseLaw(weights_of((row + more).astype(np.float32), 1.0))
            for row, more in zip(rows, noise, strict=True)
        ]
        plain = [DenseLaw(weights_of(row, 1.0)) for row in rows]
        tokens = tuple(law.draw(0.37) for law in own[:2])
        laws = None if drafter == "one-hot" else tuple(own[:2])
        draft = Draft(tokens, laws, "d")
        points, weight = [], 1.0
        for law, token, q in zip(plain, tokens, own, strict=False):
            q_law = OneHotLaw(token, size) if laws is None else q
            ratio = law.prob(token) / q_law.prob(token)
            weight = min(1.0, weight * ratio)
            points += [ratio, weight, *(b / q_law.prob(token) for b in law.prob_range(token))]
            points += [weight * 0.99, weight * 1.01, weight * 0.96]
        for coin in coins_beside(points):
            expected = verify(rule, draft, plain.__getitem__, Coins(coin))
            pending = [lazy(row, 1.0, scratch) for row in rows]
            assert verify(rule, draft, pending.__getitem__, Coins(coin)) == expected
            seen.add(expected.num_accepted)
    assert seen == {0, 1, 2} or (drafter, seen) == ("same", {2})


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_accepted_drafts_cost_no_exponential_of_their_rows(rule: str, monkeypatch) -> None:
    made: list[int] = []
    shipped = Softmax.sums

    def counted(self: Softmax) -> np.ndarray:
        made.append(len(self))
        return shipped(self)

    monkeypatch.setattr(Softmax, "sums", counted)
    rows = [row_of(1, 5000, 3.0) for _ in range(4)]
    best = int(rows[0].argmax())
    laws = [lazy(row, 1.0, Scratch()) for row in rows]
    low = laws[0].prob_range(best)[0]
    verdict = verify(rule, Draft((best,) * 3, None, "d"), laws.__getitem__, Coins(low**3 / 2))
    assert verdict.num_accepted == 3
    assert made == [5000]  # the row the token after them is drawn from
