"""Whether draws are what a test takes them for: independent of each other.

Duplicated draws, requests that repeat the one before, and rows of a batch that feel
their neighbours all pass a test of the law alone, or fail it for a wrong reason. Pool
no draws that fail here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from scipy.stats import random_table

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import seed_of

__all__ = ["DependenceTest", "dependence_test", "duplicate_test", "serial_test"]

#: Most rows and columns of a contingency table; rarer values share the last.
_MOST_VALUES = 12


@dataclass(frozen=True, slots=True)
class DependenceTest:
    """One check of independence.

    Parameters
    ----------
    name : str
        What was checked.
    num_pairs : int
        Pairs that were looked at.
    statistic : float
        Likelihood ratio of the table, or number of duplicates.
    expected : float
        Duplicates to be expected, where that is the statistic; else NaN.
    p_value : float
        Small where draws depend on each other.
    """

    name: str
    num_pairs: int
    statistic: float
    expected: float
    p_value: float


def duplicate_test(
    draws: Sequence[Hashable], collision_prob: float, name: str = "duplicated draws"
) -> DependenceTest:
    """Test whether more draws are equal than chance allows.

    Parameters
    ----------
    draws : sequence of hashable
        Long outputs, one for each request.
    collision_prob : float
        Probability that two independent outputs are equal, ``sum p**2``, or an upper
        bound of it: the largest probability of any output.
    name : str, default "duplicated draws"
        Name of the check.

    Returns
    -------
    DependenceTest
        The number of draws that an earlier one already gave is at most the number of
        equal pairs, so by Markov's inequality it reaches ``r`` with a probability of
        at most ``pairs * collision_prob / r``. Sharp where collisions are rare, as
        they are among long outputs.

    Raises
    ------
    ConfigError
        If the probability lies outside [0, 1].
    """
    if not 0 <= collision_prob <= 1:
        raise ConfigError(f"collision probability {collision_prob}: expected one in [0, 1]")
    n = len(draws)
    pairs = n * (n - 1) // 2
    repeated = n - len(set(draws))
    expected = pairs * collision_prob
    p = min(1.0, expected / repeated) if repeated else 1.0
    return DependenceTest(name, pairs, float(repeated), expected, p)


def serial_test(
    draws: Sequence[Hashable], lag: int = 1, *, num_samples: int = 2000, seed: int = 0
) -> DependenceTest:
    """Test whether a draw depends on the one ``lag`` requests before it.

    Parameters
    ----------
    draws : sequence of hashable
        Draws in the order in which they were requested.
    lag : int, default 1
        Distance of the pairs.
    num_samples : int, default 2000
        Null tables.
    seed : int, default 0
        Seed of the null tables.

    Returns
    -------
    DependenceTest
        Of disjoint pairs, so that the pairs are independent under the null hypothesis.
    """
    if lag < 1:
        raise ConfigError(f"lag {lag}: expected 1 or more")
    firsts = [i for i in range(len(draws) - lag) if (i // lag) % 2 == 0]
    return dependence_test(
        [draws[i] for i in firsts],
        [draws[i + lag] for i in firsts],
        name=f"draws {lag} apart",
        num_samples=num_samples,
        seed=seed,
    )


def dependence_test(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    *,
    name: str = "pairs",
    num_samples: int = 2000,
    seed: int = 0,
) -> DependenceTest:
    """Test whether two paired sequences are independent of each other.

    Parameters
    ----------
    first : sequence of hashable, length N
        For example the outputs of row 0, the slot a request ran in, or what its
        neighbour was asked for.
    second : sequence of hashable, length N
        For example the outputs of row 1 in the same batch.
    name : str, default "pairs"
        Name of the check.
    num_samples : int, default 2000
        Null tables.
    seed : int, default 0
        Seed of the null tables.

    Returns
    -------
    DependenceTest
        The likelihood ratio of the table of both, calibrated by random tables with
        the same margins: exact under permutation of the pairs.

    Raises
    ------
    ConfigError
        If the sequences differ in length.
    """
    if len(first) != len(second):
        msg = f"{len(first)} values paired with {len(second)}: expected equally many"
        raise ConfigError(msg)
    table = _table(_coded(first), _coded(second))
    if min(table.shape) < 2:
        return DependenceTest(name, len(first), 0.0, math.nan, 1.0)
    rng = seed_of(seed, "tables", table.tobytes(), *table.shape)
    null = random_table(table.sum(axis=1), table.sum(axis=0), seed=rng).rvs(num_samples)
    spread = xlogy(null, null).sum(axis=(1, 2))
    seen = float(xlogy(table, table).sum())
    p = (1 + int((spread >= seen - 1e-9 * (1 + abs(seen))).sum())) / (num_samples + 1)
    margins = sum(float(xlogy(m, m).sum()) for m in (table.sum(axis=0), table.sum(axis=1)))
    g = 2 * (seen - margins + float(xlogy(len(first), len(first))))
    return DependenceTest(name, len(first), max(g, 0.0), math.nan, p)


def _coded(values: Sequence[Hashable]) -> NDArray[np.int64]:
    """Return numbers by falling frequency; the rare values share the last one."""
    ranks = {value: rank for rank, (value, _) in enumerate(Counter(values).most_common())}
    codes = np.fromiter((ranks[value] for value in values), np.int64, len(values))
    return np.minimum(codes, _MOST_VALUES - 1)


def _table(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(first):
        return np.zeros((1, 1), dtype=np.int64)
    width = int(second.max()) + 1
    cells = np.bincount(first * width + second, minlength=(int(first.max()) + 1) * width)
    return cells.reshape(-1, width).astype(np.int64)
