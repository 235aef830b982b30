"""Two decoders against each other: level in sparse tables, power, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import xlogy
from scipy.stats import binomtest, chi2

from draftproof.errors import ConfigError
from draftproof.evidence import two_sample_counts, two_sample_test

#: Most outcomes are seen once or never, as with long texts.
SPARSE = np.full(400, 1 / 400)


def asymptotic(first, second) -> float:
    """The likelihood ratio with its chi-squared p-value: the planted fault."""
    pooled = first + second
    kept = pooled > 0
    a, b, both = first[kept], second[kept], pooled[kept]
    share = a.sum() / both.sum()
    g = 2 * (xlogy(a, a / (both * share)) + xlogy(b, b / (both * (1 - share)))).sum()
    return float(chi2.sf(g, kept.sum() - 1))


@pytest.mark.statistical
def test_the_level_holds_where_outcomes_are_rare() -> None:
    """150 null pairs at 0.05; a rate of twice that passes with a chance of 1e-4 at most."""
    rng, alarms, wrong = np.random.default_rng(1), 0, 0
    for i in range(150):
        pair = rng.multinomial(60, SPARSE), rng.multinomial(60, SPARSE)
        wrong += asymptotic(*pair) <= 0.05
        alarms += two_sample_counts(*pair, num_samples=200, seed=i).p_value <= 0.05
    assert binomtest(alarms, 150, 0.1, alternative="greater").pvalue > 1e-4
    assert alarms >= 1
    assert binomtest(wrong, 150, 0.1, alternative="greater").pvalue < 1e-6


def test_small_tables_are_exact() -> None:
    """All ways to split the pooled counts, each with its hypergeometric weight."""
    found = two_sample_counts(np.array([3, 0]), np.array([0, 3]), num_samples=20_000)
    assert found.p_value == pytest.approx(2 / 20, abs=0.01)


def test_a_difference_is_found_and_equality_is_not_refuted() -> None:
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.full(81, 3.0))
    q = p.copy()
    q[:40] *= 1.3
    q /= q.sum()
    same = two_sample_counts(
        rng.multinomial(10_000, p), rng.multinomial(10_000, p), num_samples=2000
    )
    other = two_sample_counts(
        rng.multinomial(10_000, p), rng.multinomial(10_000, q), num_samples=2000
    )
    assert same.p_value > 0.01
    assert other.p_value < 0.003
    assert other.p_interval[0] <= other.p_value <= other.p_interval[1]


def test_draws_are_counted_by_outcome() -> None:
    first, second = [(0, 1)] * 40 + [(1, 1)] * 10, [(0, 1)] * 10 + [(2, 2)] * 40
    found = two_sample_test(first, second, num_samples=500)
    assert (found.num_first, found.num_second, found.num_outcomes) == (50, 50, 3)
    assert found.tv == pytest.approx(0.8)
    assert found.p_value < 0.01
    assert two_sample_test([(1,)] * 5, [(1,)] * 9).p_value == 1.0
    with pytest.raises(ConfigError, match="0 and 1 draws"):
        two_sample_test([], [(1,)])
