"""Stretches of draws that were given twice are found; long runs of a peaked law are not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.evidence.repeats import repeated_block, shared_block

LAWS = {
    "two": np.array([0.5, 0.5]),
    "many": np.full(256, 1 / 256),
    "peaked": np.array([0.97, *[0.03 / 80] * 80]),
    "certain": np.array([1 - 1e-4, 1e-4]),
}


def most_surprising(codes):
    """Bound the probability of the best bet, by comparing every pair of places."""
    num, counts = len(codes), np.bincount(codes)
    best = 0.0
    for first in range(num):
        for second in range(first + 1, num):
            bet, equal = 0.0, 0
            while second + equal < num and codes[first + equal] == codes[second + equal]:
                left = counts[codes[first + equal]] - 1
                bet += math.log((num - 2 * equal - 1) / left)
                equal += 1
            best = max(best, bet)
    return min(1.0, math.comb(num, 2) * math.exp(-best))


@pytest.mark.parametrize("num", [2, 5, 33, 64])
def test_the_bet_is_that_of_the_definition(num):
    rng = np.random.default_rng(num)
    for _ in range(5):
        codes = np.repeat([0, 1, 2, 2], num)[rng.permutation(4 * num)]
        codes[num : 2 * num] = codes[:num]
        found = repeated_block(codes)
        assert found.p_value == pytest.approx(most_surprising(codes))
        first, second = (codes[at : at + found.length] for at in (found.first, found.second))
        assert (first == second).all()


@pytest.mark.statistical
@pytest.mark.parametrize("name", LAWS)
def test_independent_draws_pass(name):
    """A bound: of 400 audits at 0.05 more than 43 alarms of each have a chance below 1e-5."""
    rng = np.random.default_rng(7)
    alarms = np.zeros(2, dtype=int)
    for _ in range(400):
        draws, others = rng.choice(len(LAWS[name]), (2, 300), p=LAWS[name])
        found = (repeated_block(draws), shared_block(draws, others))
        alarms += [block.p_value <= 0.05 for block in found]
    assert (alarms <= 43).all()


@pytest.mark.parametrize(("name", "length"), [("two", 64), ("many", 12), ("peaked", 400)])
def test_a_stretch_that_comes_again_is_placed(name, length):
    rng = np.random.default_rng(8)
    draws = rng.choice(len(LAWS[name]), 8000, p=LAWS[name])
    assert repeated_block(draws).p_value > 1e-3
    draws[6000 : 6000 + length] = draws[100 : 100 + length]
    found = repeated_block(draws)
    assert found.p_value < 1e-4
    assert found.second - found.first == 5900
    assert found.first <= 100
    assert found.first + found.length >= 100 + length


def test_a_long_period_is_named_from_its_beginning():
    draws = np.resize(np.random.default_rng(9).integers(0, 9, 1000), 9000)
    found = repeated_block(draws)
    assert (found.first, found.second, found.length) == (0, 1000, 8000)
    assert found.p_value < 1e-12


def test_a_stretch_of_two_samples_is_placed_in_both():
    rng = np.random.default_rng(10)
    on, off = rng.integers(0, 30, (2, 2000))
    assert shared_block(on, off).p_value > 1e-3
    off[700:740] = on[15:55]
    found = shared_block(on, off)
    assert found.p_value < 1e-6
    assert (found.first, found.second) == (15, 700)
    assert found.length >= 40


@pytest.mark.parametrize("draws", [[], [0], [0, 0], [0] * 5000, [0, 1] * 2])
def test_certain_laws_and_few_draws_say_nothing(draws):
    codes = np.array(draws, dtype=np.int64)
    assert repeated_block(codes).p_value > 0.05
    assert shared_block(codes, codes[:1]).p_value > 0.05
