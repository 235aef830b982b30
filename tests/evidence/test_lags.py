"""Draws that know of the ones some requests before are found, at the lag where they do."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.evidence.lags import LAGS, equal_draws, pairs_learnt, smallest_repeated_share


def copies(draws, lag, share, rng):
    found = draws.copy()
    for place in range(lag, len(draws)):
        if rng.random() < share:
            found[place] = found[place - lag]
    return found


@pytest.mark.statistical
@pytest.mark.parametrize("sharpness", [50.0, 0.3])
def test_independent_draws_pass(sharpness):
    """100 audits of each test at 0.05: more than 16 alarms have a chance below 1e-5."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(100):
        law = rng.dirichlet(np.full(9, sharpness))
        draws = rng.choice(9, 400, p=law)
        found.append((equal_draws(draws).p_value, pairs_learnt(draws).p_value))
    assert ((np.array(found) <= 0.05).sum(axis=0) <= 16).all()


@pytest.mark.parametrize("lag", [1, 3, 24, 64])
def test_copies_are_found_at_their_lag(lag):
    rng = np.random.default_rng(2)
    draws = rng.integers(0, 27, 6000)
    assert equal_draws(draws).p_value > 1e-3
    found = equal_draws(copies(draws, lag, 0.08, rng))
    assert found.p_value < 1e-6
    assert found.lag == lag
    assert 0.04 < found.excess < 0.12


@pytest.mark.parametrize("period", [2, 7, 24])
def test_the_smallest_period_is_named(period):
    draws = np.resize(np.random.default_rng(3).integers(0, 27, period), 2000)
    found = equal_draws(draws)
    assert found.p_value < 1e-6
    assert (found.lag, found.seen) == (period, found.num_pairs)


def test_draws_that_avoid_each_other_are_found():
    rng = np.random.default_rng(4)
    draws = rng.integers(0, 4, 4000)
    same = np.flatnonzero(draws[1:] == draws[:-1]) + 1
    draws[same] = (draws[same] + rng.integers(0, 2, len(same))) % 4
    found = equal_draws(draws)
    assert found.p_value < 1e-6
    assert (found.lag, found.excess < 0) == (1, True)


def test_a_dependence_that_makes_no_draws_equal_is_learnt():
    # A draw follows the one before by one in a tenth of the cases, and avoids it else.
    rng = np.random.default_rng(5)
    draws = rng.integers(0, 6, 12_000)
    follows = rng.random(len(draws)) < 0.1
    draws[1:] = np.where(follows[1:], (draws[:-1] + 1) % 6, draws[1:])
    found = pairs_learnt(draws)
    assert found.p_value < 1e-6
    assert found.lag == 1


@pytest.mark.statistical
def test_rare_draws_of_a_nearly_certain_law_are_no_dependence():
    """200 audits at 0.05: more than 24 alarms have a chance below 1e-4."""
    rng = np.random.default_rng(7)
    alarms = np.zeros(2, dtype=int)
    for _ in range(200):
        draws = rng.choice(3, 600, p=[0.998, 0.001, 0.001])
        alarms += [test(draws).p_value <= 0.05 for test in (equal_draws, pairs_learnt)]
    assert (alarms <= 24).all()


@pytest.mark.parametrize("draws", [[], [0], [3] * 9, [0] * 5000, [0] * 2500 + [1] + [0] * 2500])
def test_certain_laws_and_few_draws_say_nothing(draws):
    codes = np.array(draws, dtype=np.int64)
    assert equal_draws(codes).p_value == 1.0
    assert pairs_learnt(codes).p_value == 1.0


@pytest.mark.statistical
@pytest.mark.parametrize("num_outcomes", [2, 81])
def test_the_share_that_is_stated_is_seen(num_outcomes):
    """Stated with power 0.95: fewer than 30 hits of 40 have a chance below 1e-4."""
    rng = np.random.default_rng(6)
    law = np.full(num_outcomes, 1 / num_outcomes)
    share = smallest_repeated_share(law, 4000, 1e-3, 0.95)
    assert 0 < share < 0.2
    hits = sum(
        equal_draws(copies(rng.integers(0, num_outcomes, 4000), 2, share, rng)).p_value <= 1e-3
        for _ in range(40)
    )
    assert hits >= 30


def test_no_share_is_stated_where_none_would_show():
    assert smallest_repeated_share(np.array([1.0]), 10_000, 1e-3, 0.99) == 1.0
    assert smallest_repeated_share(np.array([0.5, 0.5]), 20, 1e-3, 0.99) == 1.0
    assert smallest_repeated_share(np.array([1 - 1e-9, 1e-9]), 10_000, 1e-3, 0.99) == 1.0
    assert set(range(1, 25)) < set(LAGS)
