"""Draws that depend on each other are found, independent ones are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.errors import ConfigError
from draftproof.evidence import dependence_test, duplicate_test, serial_test

P = np.array([0.5, 0.3, 0.2])


def sample(rng, count: int) -> list[int]:
    return rng.choice(3, size=count, p=P).tolist()


@pytest.mark.statistical
@pytest.mark.parametrize("lag", [1, 3])
def test_independent_draws_pass(lag: int) -> None:
    """300 audits at 0.05: more than 34 alarms have a chance below 1e-5."""
    rng = np.random.default_rng(1)
    alarms = sum(
        serial_test(sample(rng, 120), lag, num_samples=200, seed=i).p_value <= 0.05
        for i in range(300)
    )
    assert alarms <= 34


@pytest.mark.parametrize("lag", [1, 3])
def test_requests_that_repeat_an_earlier_one_are_found(lag: int) -> None:
    rng = np.random.default_rng(2)
    draws = sample(rng, 4000)
    for i in range(lag, len(draws)):
        if rng.random() < 0.15:
            draws[i] = draws[i - lag]
    assert serial_test(draws, lag).p_value <= 1e-3
    assert serial_test(draws, 4 - lag).p_value > 1e-3


def test_neighbours_that_are_felt_are_found() -> None:
    rng = np.random.default_rng(3)
    neighbour, own = sample(rng, 3000), sample(rng, 3000)
    assert dependence_test(own, neighbour).p_value > 1e-3
    felt = [b if rng.random() < 0.1 else a for a, b in zip(own, neighbour, strict=True)]
    assert dependence_test(felt, neighbour, name="rows 0 and 1").p_value <= 1e-3
    assert dependence_test([1] * 9, own[:9]).p_value == 1.0
    assert dependence_test([], []).p_value == 1.0


def test_many_values_are_pooled_and_still_seen() -> None:
    rng = np.random.default_rng(4)
    first = rng.integers(0, 500, 4000).tolist()
    first[::2] = [0] * 2000
    second = [x if rng.random() < 0.5 else int(rng.integers(0, 500)) for x in first]
    assert dependence_test(first, second).p_value <= 1e-3


def test_duplicates_are_counted_against_chance() -> None:
    """200 requests of 8 tokens of 16: a repetition is chance once in 200,000 audits."""
    rng = np.random.default_rng(5)
    draws = [tuple(rng.integers(0, 16, 8).tolist()) for _ in range(200)]
    clean = duplicate_test(draws, 16.0**-8)
    assert clean.p_value == 1.0
    assert clean.statistic == 0
    again = duplicate_test([*draws[:-1], draws[0]], 16.0**-8)
    assert again.p_value < 1e-5
    assert again.statistic == 1
    often = duplicate_test([0, 1] * 50, 0.5)
    assert often.p_value == 1.0


def test_wrong_input_is_named() -> None:
    with pytest.raises(ConfigError, match="lag 0"):
        serial_test([1, 2], 0)
    with pytest.raises(ConfigError, match="equally many"):
        dependence_test([1], [1, 2])
    with pytest.raises(ConfigError, match="collision probability"):
        duplicate_test([1], 2.0)
