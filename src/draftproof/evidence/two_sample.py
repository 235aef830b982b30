"""Two decoders against each other, where no reference law is known.

Speculation on against speculation off: under the null hypothesis the draws are
exchangeable, so the pooled counts fix the null law exactly and a permutation of the
labels is one multivariate hypergeometric draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import mc_interval, seed_of, simulate
from draftproof.evidence.joint_law import Outcome

__all__ = ["TwoSampleTest", "two_sample_counts", "two_sample_test"]


@dataclass(frozen=True, slots=True)
class TwoSampleTest:
    """How far two samples are from each other.

    Parameters
    ----------
    num_first : int
        Draws of the first decoder.
    num_second : int
        Draws of the second.
    num_outcomes : int
        Distinct outcomes seen.
    g : float
        Likelihood ratio of homogeneity.
    tv : float
        Total variation distance of the empirical laws.
    p_value : float
        Min-p of both, by permutation.
    p_interval : tuple of float
        99 % interval of the p-value for the noise of the permutations.
    """

    num_first: int
    num_second: int
    num_outcomes: int
    g: float
    tv: float
    p_value: float
    p_interval: tuple[float, float]


def two_sample_test(
    first: Iterable[Sequence[int]],
    second: Iterable[Sequence[int]],
    *,
    num_samples: int = 20_000,
    seed: int = 0,
) -> TwoSampleTest:
    """Test whether two samples of continuations have one law.

    Parameters
    ----------
    first : iterable of sequence of int
        Draws of one decoder, each independent.
    second : iterable of sequence of int
        Draws of the other, of the same prompt and policy, cut in the same way.
    num_samples : int, default 20000
        Permutations.
    seed : int, default 0
        Seed of the permutations.

    Returns
    -------
    TwoSampleTest
        Valid at any number of draws, however rare the outcomes.

    Raises
    ------
    ConfigError
        If a sample is empty.
    """
    left, right = _counted(first), _counted(second)
    outcomes = sorted(left.keys() | right.keys())
    a = np.array([left[outcome] for outcome in outcomes], dtype=np.int64)
    b = np.array([right[outcome] for outcome in outcomes], dtype=np.int64)
    return two_sample_counts(a, b, num_samples=num_samples, seed=seed)


def two_sample_counts(
    first: NDArray[np.int64], second: NDArray[np.int64], *, num_samples: int = 20_000, seed: int = 0
) -> TwoSampleTest:
    """Test whether two rows of counts have one law.

    Parameters
    ----------
    first : ndarray of int64, shape (K,)
        Draws of one decoder by outcome.
    second : ndarray of int64, shape (K,)
        Draws of the other.
    num_samples : int, default 20000
        Permutations.
    seed : int, default 0
        Seed of the permutations.

    Returns
    -------
    TwoSampleTest
        See `two_sample_test`.

    Raises
    ------
    ConfigError
        If a sample is empty.
    """
    n, m = int(first.sum()), int(second.sum())
    if not n or not m:
        raise ConfigError(f"samples of {n} and {m} draws: expected at least one each")
    pooled = first + second
    kept = pooled > 0
    first, pooled = first[kept], pooled[kept]
    rng = seed_of(seed, "permutations", first.tobytes(), pooled.tobytes())

    def statistics(rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rest = pooled - rows
        spread = (xlogy(rows, rows) + xlogy(rest, rest)).sum(axis=1)
        margins = xlogy(n, n) + xlogy(m, m) + xlogy(pooled, pooled).sum() - xlogy(n + m, n + m)
        tv = np.abs(rows / n - rest / m).sum(axis=1) / 2
        return np.maximum(2 * (spread - margins), 0.0), tv

    g, tv = statistics(first[None, :])
    if len(pooled) == 1:
        return TwoSampleTest(n, m, 1, 0.0, 0.0, 1.0, (1.0, 1.0))
    calibration = simulate(
        lambda count: statistics(
            rng.multivariate_hypergeometric(pooled, n, count, method="marginals")
        ),
        num_samples,
        len(pooled),
    )
    p = float(calibration.p_values(g, tv)[0])
    return TwoSampleTest(
        n, m, len(pooled), float(g[0]), float(tv[0]), p, mc_interval(p, num_samples)
    )


def _counted(draws: Iterable[Sequence[int]]) -> Counter[Outcome]:
    return Counter(tuple(map(int, draw)) for draw in draws)
