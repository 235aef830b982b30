"""Whether draws some requests apart know of each other, at every lag and in one exact bound.

Every other stretch of ``lag`` draws is held fast; the draws between, which have both of
their neighbours among the fixed ones, change places in small groups. Independent draws
of one law, whatever it is, are as likely in one order as in another, so the score of the
order that was seen is one of a few equally likely ones in each group. The tail of the
sum over groups is bounded by Chernoff's inequality: no simulation, valid at any level,
and no bias of the law is taken for a dependence.

Two scores: how many draws equal the one before, and what the first half of the draws has
taught about pairs, tried on the second half.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

__all__ = ["LAGS", "LagTest", "equal_draws", "pairs_learnt", "smallest_repeated_share"]

#: Requests apart. Close ones are neighbours in a batch and short periods of a seed; the
#: others are slots of batches of usual sizes, where a request follows another.
LAGS: tuple[int, ...] = (*range(1, 25), 28, 32, 40, 48, 56, 64, 96, 128, 192, 256, 384, 512, 1024)

#: Draws that change places with each other.
_GROUP = 16
#: The orders of a group, one a row: each draw some places on.
_TURNS = np.add.outer(np.arange(_GROUP), np.arange(_GROUP)) % _GROUP
#: Fewest groups that can say anything.
_FEWEST_GROUPS = 4
#: Standard deviations below which a bound is not worth computing.
_WORTH = 2.5
#: Outcomes that pairs are learnt of; rarer ones share the last.
_MOST_VALUES = 12
#: Pairs of a kind that count as no news, in the score that is learnt.
_PRIOR = 5.0
#: Most that a pair may count in it.
_MOST_NEWS = 64.0


@dataclass(frozen=True, slots=True)
class LagTest:
    """The lag at which draws depend on each other most.

    Parameters
    ----------
    lag : int
        Requests apart; 0 where there were too few draws for any.
    num_pairs : int
        Pairs that were looked at.
    seen : float
        Their score: for `equal_draws` the number of equal pairs.
    expected : float
        The same, had the draws changed places.
    p_value : float
        Over all lags together.
    """

    lag: int
    num_pairs: int
    seen: float
    expected: float
    p_value: float

    @property
    def excess(self) -> float:
        """Share of the pairs beyond what was expected, of all that could be."""
        room = self.num_pairs - self.expected
        return (self.seen - self.expected) / room if room > 0 else 0.0


def equal_draws(codes: NDArray[np.int64], lags: tuple[int, ...] = LAGS) -> LagTest:
    """Test whether draws equal the ones before more or less often than by chance.

    Parameters
    ----------
    codes : ndarray of int64, shape (N,)
        Outcomes in order of request, as numbers of 0 or more.
    lags : tuple of int, default `LAGS`
        Requests apart.

    Returns
    -------
    LagTest
        Two-sided. Of lags that stand out the one with most equal pairs: a period of 7
        shows at 14 too.
    """
    found = [test for lag in lags if (test := _equal(codes, lag)) is not None]
    tests = [_scaled(test, 2 * len(found)) for test in found]
    if not tests:
        return LagTest(0, 0, 0.0, 0.0, 1.0)
    best = min(tests, key=lambda test: test.p_value)
    if best.p_value == 1.0:
        return best
    clear = [test for test in tests if test.p_value <= math.sqrt(best.p_value)]
    most = max(test.excess for test in clear)
    named = next((test for test in clear if test.excess >= 0.9 * most > 0), best)
    return LagTest(named.lag, named.num_pairs, named.seen, named.expected, best.p_value)


def pairs_learnt(codes: NDArray[np.int64], lags: tuple[int, ...] = LAGS) -> LagTest:
    """Test whether what the first half says about pairs holds in the second half.

    Parameters
    ----------
    codes : ndarray of int64, shape (N,)
        Outcomes in order of request, as numbers of 0 or more.
    lags : tuple of int, default `LAGS`
        Requests apart.

    Returns
    -------
    LagTest
        One-sided. It sees any dependence of a draw on the one ``lag`` before, also one
        that makes no draws equal; of the twelve most frequent outcomes.
    """
    by_frequency = np.argsort(-np.bincount(codes), kind="stable")
    ranks = np.empty(len(by_frequency), dtype=np.int64)
    ranks[by_frequency] = np.minimum(np.arange(len(by_frequency)), _MOST_VALUES - 1)
    few = ranks[codes]
    found = [test for lag in lags if (test := _learnt(few, lag)) is not None]
    tests = [_scaled(test, len(found)) for test in found]
    return min(tests, key=lambda test: test.p_value, default=LagTest(0, 0, 0.0, 0.0, 1.0))


def smallest_repeated_share(
    probs: NDArray[np.float64], num_draws: int, level: float, power: float
) -> float:
    """Return the share of draws that repeat an earlier one which would have been seen.

    Parameters
    ----------
    probs : ndarray of float64, shape (K,)
        The law.
    num_draws : int
        Draws in order.
    level : float
        False-alarm rate of `equal_draws`, over all lags.
    power : float
        Probability of being seen.

    Returns
    -------
    float
        Of draws that are copies of the one ``lag`` before, at one lag, and otherwise
        independent; 1 where no share would show. An approximation for lags that are
        short beside the number of draws.
    """
    chance = float((probs**2).sum())
    pairs = num_draws - _GROUP
    room = (1 - chance) * (1 - 1 / _GROUP)
    if pairs < _FEWEST_GROUPS * _GROUP or room <= 0:
        return 1.0
    needed = (math.log(2 * len(LAGS)) - math.log(level)) / pairs

    def surprise(share: float) -> float:
        return (
            share * math.log(share / chance)
            + (1 - share) * math.log((1 - share) / (1 - chance))
            - needed
        )

    top = 1 - 1e-12
    if chance >= top or surprise(top) <= 0:
        return 1.0
    excess = float(brentq(surprise, chance, top)) - chance
    luck = float(norm.ppf(power)) * math.sqrt((chance + excess) * (1 - chance) / pairs)
    return min(1.0, (excess + luck) / room)


def _scaled(test: LagTest, times: int) -> LagTest:
    p = min(1.0, times * test.p_value)
    return LagTest(test.lag, test.num_pairs, test.seen, test.expected, p)


def _equal(codes: NDArray[np.int64], lag: int) -> LagTest | None:
    # -1 stands for no neighbour and equals no draw.
    small = codes.astype(np.int32)
    return _moved(
        small, lag, lambda left, own, right: (left == own).astype(np.int8) + (right == own)
    )


def _learnt(codes: NDArray[np.int64], lag: int) -> LagTest | None:
    half = len(codes) // 2
    if half <= lag:
        return None
    width = int(codes.max()) + 1
    cells = np.bincount(codes[: half - lag] * width + codes[lag:half], minlength=width**2)
    table = cells.reshape(width, width).astype(np.float64)
    chance = table.sum(axis=1)[:, None] * table.sum(axis=0) / table.sum()
    # A last row and column of zeros, for draws without a neighbour.
    score = np.zeros((width + 1, width + 1))
    learnt = np.clip((table - chance) / (chance + _PRIOR), -_MOST_NEWS, _MOST_NEWS)
    # Of few binary digits, so that sums are free of rounding: where all orders score alike,
    # as under a nearly certain law, none may stand out by the last digit.
    score[:-1, :-1] = np.round(learnt * 2**16) / 2**16
    return _moved(
        codes[half:],
        lag,
        lambda left, own, right: score[left, own] + score[own, right],
        is_two_sided=False,
    )


def _moved(
    codes: NDArray[np.int64] | NDArray[np.int32],
    lag: int,
    score: Callable[..., NDArray[np.float64] | NDArray[np.int8]],
    *,
    is_two_sided: bool = True,
) -> LagTest | None:
    """Score the order that was seen against those of draws that change places."""
    movable = _groups(len(codes), lag)
    if movable is None:
        return None
    after = movable + lag
    left, own = codes[movable - lag], codes[movable]
    right = np.where(after < len(codes), codes[np.minimum(after, len(codes) - 1)], -1)
    scores = score(left, own[_TURNS], right).sum(axis=1).astype(np.float64)
    pairs = movable.size + int((after < len(codes)).sum())
    seen, expected = float(scores[0].sum()), float(scores.mean(axis=0).sum())
    p = _tail(scores, seen - expected, is_two_sided)
    return LagTest(lag, pairs, seen, expected, p)


@lru_cache(maxsize=2 * len(LAGS))
def _groups(num: int, lag: int) -> NDArray[np.int32] | None:
    """Return the places whose draws change places, shape (G, Q); None where they are few."""
    places = np.arange(num, dtype=np.int32)
    movable = places[(places // lag) % 2 == 1]
    groups = len(movable) // _GROUP
    if groups < _FEWEST_GROUPS:
        return None
    # Groups are drawn without a look at the draws; near ones may depend on each other too.
    movable = np.random.default_rng(lag).permutation(movable)[: groups * _GROUP]
    return movable.reshape(_GROUP, groups)


def _tail(scores: NDArray[np.float64], excess: float, is_two_sided: bool) -> float:
    """Bound the probability of a sum as far out, each group's score drawn from its column.

    Parameters
    ----------
    scores : ndarray of float64, shape (G, Q)
        The equally likely scores of Q groups.
    excess : float
        The sum that was seen, less the mean.
    is_two_sided : bool
        Whether a low sum counts too; the bound is of the side that was seen.

    Returns
    -------
    float
        1 where the sum is nothing special.
    """
    centred = scores - scores.mean(axis=0)
    spread = math.sqrt(float((centred**2).mean(axis=0).sum()))
    if spread == 0 or not abs(excess) > _WORTH * spread or not (is_two_sided or excess > 0):
        return 1.0
    centred *= math.copysign(1.0, excess)
    tops = centred.max(axis=0)
    below = centred - tops

    def exponent(tilt: float) -> float:
        logs = np.log(np.exp(tilt * below).mean(axis=0))
        return float(logs.sum() + tilt * (tops.sum() - abs(excess)))

    # Any tilt gives a bound; the best one lies near excess / variance where groups are many.
    start = abs(excess) / spread**2
    best = minimize_scalar(exponent, bounds=(0.0, 20 * start), method="bounded")
    return math.exp(min(0.0, float(best.fun)))
