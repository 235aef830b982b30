"""Medians over rounds with intervals that hold whatever the distribution.

The interval of a median is a pair of order statistics: of n independent rounds the
number below the true median is Binomial(n, 1/2), so the k-th smallest and the k-th
largest enclose it with a probability that is known (David and Nagaraja, Order
Statistics, section 7.1). It is at least the confidence; where rounds are too few for it
there is no interval.

Looking again and again until an interval is narrow would spoil its confidence. A run
that may stop early looks after 6, 9, 13, 19, 28 … rounds only, and spends its error over
the looks, so that all of them together keep the confidence (union bound).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from itertools import count
from math import comb

from draftproof.bench.estimated import Estimate
from draftproof.errors import ConfigError

__all__ = ["estimate", "is_look", "is_narrow", "spent_error"]

#: Rounds before the first look; six are the fewest with an interval at 95 %.
_FIRST_LOOK = 6
#: Share of the error that the first look may spend; each later one spends half of the rest.
_FIRST_SHARE = 0.65


def estimate(values: Sequence[float], error: float) -> Estimate:
    """Return the median of some rounds and its interval.

    Parameters
    ----------
    values : sequence of float
        One figure per round.
    error : float
        Largest probability that the interval misses the median, in (0, 1).

    Returns
    -------
    Estimate
        Without ends where no pair of order statistics is that sure.

    Raises
    ------
    ConfigError
        If ``error`` is out of range.
    """
    if not 0.0 < error < 1.0:
        raise ConfigError(f"error is {error}; expected a number between 0 and 1")
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return Estimate(None, None, None, 0)
    middle = statistics.median(ordered)
    rank = _rank(n, error)
    if not rank:
        return Estimate(middle, None, None, n)
    return Estimate(middle, ordered[rank - 1], ordered[n - rank], n)


def spent_error(rounds: int, confidence: float, *, may_stop: bool) -> float:
    """Return the error that an interval after some rounds may have.

    Parameters
    ----------
    rounds : int
        Rounds so far.
    confidence : float
        Of all looks together.
    may_stop : bool
        Whether the run ends as soon as an interval is narrow.

    Returns
    -------
    float
        The whole error where there is one look only, else the share of this look; of
        the next one between two looks.
    """
    error = 1.0 - confidence
    if not may_stop:
        return error
    number = next(index for index, look in enumerate(_looks()) if look >= rounds)
    if not number:
        return error * _FIRST_SHARE
    return float(error * (1.0 - _FIRST_SHARE) * 0.5**number)


def is_look(rounds: int) -> bool:
    """Say whether a run may stop after this many rounds.

    Parameters
    ----------
    rounds : int
        Rounds so far.

    Returns
    -------
    bool
        Whether it may.
    """
    return next(look for look in _looks() if look >= rounds) == rounds


def is_narrow(estimated: Estimate, width: float) -> bool:
    """Say whether an interval is narrow.

    Parameters
    ----------
    estimated : Estimate
        Median and interval.
    width : float
        As a share of the median.

    Returns
    -------
    bool
        False where there is no interval.
    """
    if estimated.value is None or estimated.low is None or estimated.high is None:
        return False
    return estimated.high - estimated.low <= width * estimated.value


def _looks() -> Iterator[int]:
    rounds = _FIRST_LOOK
    for _ in count():
        yield rounds
        rounds += rounds // 2


def _rank(n: int, error: float) -> int:
    """Return the largest k for which the k-th order statistics miss with that error; 0 for none."""
    below, rank = 0, 0
    for k in range(n // 2):
        below += comb(n, k)
        if 2 * below > error * 2**n:
            break
        rank = k + 1
    return rank
