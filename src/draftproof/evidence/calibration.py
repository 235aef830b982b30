"""Null laws of the test statistics, from multinomial draws of the reference law.

Two statistics are used together, because each is blind where the other sees: the
likelihood ratio ``G = 2 sum c log(c / (n p))`` sees concentrated biases, the total
variation ``TV = sum |c / n - p| / 2`` sees diffuse ones. Their smaller p-value is
calibrated as a statistic of its own. Nothing here is asymptotic: with cells of small
expected counts the usual chi-squared p-values are wrong by a factor of fifty.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from scipy.stats import beta

from draftproof.errors import ConfigError

__all__ = [
    "Calibration",
    "Calibrations",
    "discrepancies",
    "mc_interval",
    "seed_of",
    "simulate",
]

#: Statistics that differ by less than this, relatively, are ties.
_TIE = 1e-9
#: Entries of one chunk of simulated counts: 32 MiB.
_CHUNK = 1 << 22


def seed_of(seed: int, *content: bytes | int | str) -> np.random.Generator:
    """Return a generator whose stream is a function of a seed and of some content.

    Parameters
    ----------
    seed : int
        Seed of the run.
    *content : bytes, int or str
        What the numbers are for.

    Returns
    -------
    numpy.random.Generator
        The same numbers for the same arguments; independent ones for others.
    """
    digest = hashlib.blake2b(repr((seed, content)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def discrepancies(
    counts: NDArray[np.int64], probs: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return G and TV of count rows against a law.

    Parameters
    ----------
    counts : ndarray of int64, shape (R, K)
        Rows of counts; each row has its own total.
    probs : ndarray of float64, shape (K,)
        Positive probabilities.

    Returns
    -------
    g : ndarray of float64, shape (R,)
        Likelihood ratios, 0 and more.
    tv : ndarray of float64, shape (R,)
        Total variation distances of the empirical laws.
    """
    totals = counts.sum(axis=1)
    spread = xlogy(counts, counts).sum(axis=1)
    fit = counts @ np.log(probs)
    g = 2 * (spread - fit - xlogy(totals, totals))
    # In place: this is the inner loop of a calibration.
    gaps = counts / np.maximum(totals, 1)[:, None]
    gaps -= probs
    np.abs(gaps, out=gaps)
    return np.maximum(g, 0.0), gaps.sum(axis=1) / 2


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """A sample of both statistics where the null hypothesis holds.

    Parameters
    ----------
    g : ndarray of float64, shape (R,)
        Sorted values of the first statistic.
    tv : ndarray of float64, shape (R,)
        Sorted values of the second.
    least : ndarray of int64, shape (R,)
        Sorted smaller upper ranks of the samples: how many samples are at least as
        large as this one, in the statistic where that is fewer.
    """

    g: NDArray[np.float64]
    tv: NDArray[np.float64]
    least: NDArray[np.int64]

    @classmethod
    def from_samples(cls, g: NDArray[np.float64], tv: NDArray[np.float64]) -> Calibration:
        """Return the calibration that a sample of pairs gives.

        Parameters
        ----------
        g : ndarray of float64, shape (R,)
            First statistic of each null sample.
        tv : ndarray of float64, shape (R,)
            Second statistic of the same samples.

        Returns
        -------
        Calibration
            Ready for `p_values`.
        """
        sorted_g, ranks_g = _upper_ranks(g)
        sorted_tv, ranks_tv = _upper_ranks(tv)
        return cls(sorted_g, sorted_tv, np.sort(np.minimum(ranks_g, ranks_tv)))

    @property
    def num_samples(self) -> int:
        """Number of null samples R."""
        return len(self.g)

    @property
    def floor(self) -> float:
        """The least p-value that this calibration can give."""
        return float(self.p_values(np.array([np.inf]), np.array([np.inf]))[0])

    def p_values(self, g: NDArray[np.float64], tv: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the p-values of min-p.

        Parameters
        ----------
        g : ndarray of float64, shape (M,)
            Observed values of the first statistic.
        tv : ndarray of float64, shape (M,)
            Observed values of the second.

        Returns
        -------
        ndarray of float64, shape (M,)
            In [1 / (R + 1), 1]. Under the null hypothesis ``Pr(p <= a) <= a`` for
            every ``a``, over the calibration and the data together.

        Notes
        -----
        The observation joins the pool of null samples, where it is exchangeable; the
        ranks of the others are taken without it, which can only raise p.
        """
        smaller = np.minimum(_at_least(self.g, g), _at_least(self.tv, tv)) + 1
        as_extreme = np.searchsorted(self.least, smaller, side="right")
        p: NDArray[np.float64] = (1 + as_extreme) / (self.num_samples + 1)
        return p

    def single_p_values(self, g: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the p-values of the first statistic alone, shape (M,)."""
        p: NDArray[np.float64] = (1 + _at_least(self.g, g)) / (self.num_samples + 1)
        return p


class Calibrations:
    """The calibrations of one run, each made once per law and number of draws.

    Parameters
    ----------
    num_samples : int, default 100000
        Null samples of each.
    seed : int, default 0
        Seed of the run.

    Notes
    -----
    ``stream`` gives prompts with equal laws calibrations of their own: p-values that
    are combined must not share the noise of one calibration.
    """

    def __init__(self, num_samples: int = 100_000, seed: int = 0) -> None:
        if num_samples < 100:
            raise ConfigError(f"{num_samples} calibration samples: expected 100 or more")
        self.num_samples = num_samples
        self.seed = seed
        self._held: dict[tuple[bytes, int, int, int], Calibration] = {}

    def require_level(self, alpha: float) -> None:
        """Refuse a level that no p-value of these calibrations can reach.

        Parameters
        ----------
        alpha : float
            False-alarm rate.

        Raises
        ------
        ConfigError
            If the samples are too few: such an audit could never raise an alarm.
        """
        if self.num_samples * alpha < 4:
            msg = (
                f"{self.num_samples} calibration samples at alpha {alpha:g}: "
                f"expected {math.ceil(4 / alpha)} or more"
            )
            raise ConfigError(msg)

    def of(
        self,
        probs: NDArray[np.float64],
        num_draws: int,
        *,
        stream: int = 0,
        num_samples: int | None = None,
    ) -> Calibration:
        """Return the calibration of a law and a number of draws.

        Parameters
        ----------
        probs : ndarray of float64, shape (K,)
            The law, all positive.
        num_draws : int
            Draws of one audit.
        stream : int, default 0
            Which of the independent calibrations.
        num_samples : int, optional
            Null samples, where other than those of the run.

        Returns
        -------
        Calibration
            A function of the seed and the arguments.
        """
        size = self.num_samples if num_samples is None else num_samples
        key = (probs.tobytes(), num_draws, stream, size)
        held = self._held.get(key)
        if held is None:
            rng = seed_of(self.seed, "null", *key)
            held = self._held[key] = simulate(
                lambda count: discrepancies(rng.multinomial(num_draws, probs, count), probs),
                size,
                len(probs),
            )
        return held


def simulate(
    sample: Callable[[int], tuple[NDArray[np.float64], NDArray[np.float64]]],
    num_samples: int,
    num_cells: int,
) -> Calibration:
    """Return a calibration from a sampler, in chunks of bounded memory.

    Parameters
    ----------
    sample : callable of int
        Returns that many samples of both statistics.
    num_samples : int
        Null samples R.
    num_cells : int
        Cells of one sample.

    Returns
    -------
    Calibration
        From all samples.
    """
    chunk = max(1, _CHUNK // max(1, num_cells))
    parts = [sample(min(chunk, num_samples - begin)) for begin in range(0, num_samples, chunk)]
    return Calibration.from_samples(
        np.concatenate([g for g, _ in parts]), np.concatenate([tv for _, tv in parts])
    )


def mc_interval(p_value: float, num_samples: int, confidence: float = 0.99) -> tuple[float, float]:
    """Return the interval in which a p-value lies, given how many samples it came from.

    Parameters
    ----------
    p_value : float
        ``(1 + hits) / (num_samples + 1)``.
    num_samples : int
        Null samples.
    confidence : float, default 0.99
        Coverage (Clopper and Pearson).

    Returns
    -------
    low, high : float
        The interval.
    """
    hits = round(p_value * (num_samples + 1)) - 1
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, num_samples - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, num_samples - hits)) if hits < num_samples else 1.0
    return low, high


def _at_least(ordered: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many of the ordered samples are at least as large as each value."""
    slack = np.where(np.isfinite(values), _TIE * (1e-3 + np.abs(values)), 0.0)
    below = np.searchsorted(ordered, values - slack, side="left")
    count: NDArray[np.int64] = len(ordered) - below
    return count


def _upper_ranks(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the sorted sample, and how many of it are at least as large as each value."""
    order = np.argsort(values)
    ordered = values[order]
    ranks = np.empty(len(values), dtype=np.int64)
    # Searching for sorted values is several times faster than for scattered ones.
    ranks[order] = _at_least(ordered, ordered)
    return ordered, ranks
