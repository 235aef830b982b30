"""What the audit of a text would have seen of a tilt towards the drafter."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import seed_of
from draftproof.evidence.stream import StreamBets

__all__ = ["smallest_share", "stream_power"]

_REPEATS, _HALVINGS = 400, 9


def stream_power(
    bets: StreamBets,
    gaps: tuple[NDArray[np.float64], NDArray[np.float64]],
    num_drafted: int,
    num_silent: int,
    share: float,
    alpha: float,
    *,
    seed: int = 0,
) -> float:
    """Simulate the alarm rate where a share of the tokens is the drafter's.

    Parameters
    ----------
    bets : StreamBets
        The bets.
    gaps : tuple of ndarray of float64, shape (M, C)
        At places where the drafter has a law: what the bets turn on for a token of the
        target, and for one of the drafter.
    num_drafted : int
        Such places in the text.
    num_silent : int
        All others.
    share : float
        Share of the tokens that the drafter's law decides in place of the target's.
    alpha : float
        False-alarm rate.
    seed : int, default 0
        Seed of the simulation.

    Returns
    -------
    float
        Alarm rate at the end of the text of the bettors on the drafter alone: others,
        and earlier places, can only add to it. Places are drawn again with replacement.

    Raises
    ------
    ConfigError
        If there is no place to draw from.
    """
    right, wrong = gaps
    if not len(right) or len(right) != len(wrong):
        raise ConfigError(f"{len(right)} and {len(wrong)} places: expected as many, not none")
    rng = seed_of(seed, "stream", repr((num_drafted, num_silent)), repr(share))
    factors = [bets.log_factors_on_drafter(each) for each in (right, wrong)]
    odds = np.full(2 * len(right), (1 - share) / len(right))
    odds[len(right) :] = share / len(right)
    counts = rng.multinomial(num_drafted, odds / odds.sum(), _REPEATS)
    wealth = counts @ np.concatenate(factors)
    idle = bets.log_factors_on_drafter(np.zeros((1, right.shape[1])))[0]
    weights = bets.log_weights[: wealth.shape[1]]
    evidence = logsumexp(wealth + num_silent * idle + weights, axis=1)
    return float((evidence >= -math.log(alpha)).mean())


def smallest_share(
    bets: StreamBets,
    gaps: tuple[NDArray[np.float64], NDArray[np.float64]],
    num_drafted: int,
    num_silent: int,
    alpha: float,
    power: float,
    *,
    seed: int = 0,
) -> float:
    """Return the smallest share of the drafter's tokens that would have been seen.

    Parameters
    ----------
    bets : StreamBets
        The bets.
    gaps : tuple of ndarray
        See `stream_power`.
    num_drafted : int
        Places where the drafter has a law.
    num_silent : int
        All others.
    alpha : float
        False-alarm rate.
    power : float
        Alarm rate wanted.
    seed : int, default 0
        Seed of the simulation.

    Returns
    -------
    float
        In (0, 1]; ``inf`` where even a text of the drafter alone stays unseen.
    """

    def sees(share: float) -> bool:
        found = stream_power(bets, gaps, num_drafted, num_silent, share, alpha, seed=seed)
        return found >= power

    if not num_drafted or not sees(1.0):
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sees(middle) else (middle, high)
    return high
