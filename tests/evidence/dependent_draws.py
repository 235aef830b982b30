"""Ways in which draws come to depend on each other, planted into independent ones."""

from __future__ import annotations

import numpy as np


def period_of_seeds(draws, rng):
    """A seed is used again every seven requests."""
    return np.resize(draws[:7], len(draws))


def cached_answers(draws, rng):
    """A stretch of 64 requests is answered from a cache."""
    found = draws.copy()
    middle = len(draws) // 2
    found[middle : middle + 64] = draws[5:69]
    return found


def copied_rows(draws, rng):
    """A row takes the outcome of the row before with probability 0.05."""
    found = draws.copy()
    for place in range(1, len(draws)):
        if rng.random() < 0.05:
            found[place] = found[place - 1]
    return found


def shared_coins(draws, rng):
    """Four rows of a batch have the same coins."""
    return np.repeat(draws, 4)[: len(draws)]


def given_twice(draws, rng):
    """Beyond the first 5,000 each draw comes twice."""
    return np.concatenate([draws[:5000], np.repeat(draws[5000:], 2)[: len(draws) - 5000]])


def neighbouring_seeds(draws, rng):
    """Seeds s and s + 1 of an even s are one."""
    return np.repeat(draws, 2)[: len(draws)]


FAULTS = (
    period_of_seeds,
    cached_answers,
    copied_rows,
    shared_coins,
    given_twice,
    neighbouring_seeds,
)
