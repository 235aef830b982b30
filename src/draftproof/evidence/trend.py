"""Is acceptance what it should be: over all rounds, and the longer a request goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from draftproof.errors import ConfigError
from draftproof.evidence.fixed_budget import check_alpha

__all__ = ["DecayTest", "LevelTest", "decay_test", "level_test"]


@dataclass(frozen=True, slots=True)
class DecayTest:
    """Acceptance over the rounds of requests, against what it should be.

    Parameters
    ----------
    num_rounds : int
        Rounds of all requests.
    statistic : float
        Sum over the rounds of what was kept less what was expected, each weighted with
        its place in the request, from 0 for the first round to 1 for the last.
    spread : float
        Standard deviation of the statistic where nothing decays.
    late_shortfall : float
        Mean of what was expected less what was kept in the later half of the rounds.
    p_value : float
        One-sided, by Freedman's inequality: valid for any number of rounds.
    smallest_decay : float
        The smallest linear loss, as what is missing per round at the end of a request,
        that would have been seen with the stated power; infinite where none would.
    grows : bool
        Whether a loss that grows from nothing over a request is more likely than one of
        the same share in every round. The test alone does not tell them apart.
    """

    num_rounds: int
    statistic: float
    spread: float
    late_shortfall: float
    p_value: float
    smallest_decay: float
    grows: bool


def decay_test(
    rounds: Sequence[Sequence[tuple[float, bool]]], *, alpha: float = 1e-3, power: float = 0.99
) -> DecayTest:
    """Test whether acceptance decays with the rounds of a request.

    Parameters
    ----------
    rounds : sequence of sequence of (float, bool)
        For each request its rounds in order: the probability with which the first draft is
        kept, given the text before it, and whether it was.
    alpha : float, default 0.001
        False-alarm rate for which the smallest decay is stated.
    power : float, default 0.99
        Probability with which it must be seen.

    Returns
    -------
    DecayTest
        Acceptance may change along a text for reasons of the text; only what is missing
        from the expected counts.

    Raises
    ------
    ConfigError
        If a probability lies outside [0, 1], or there are no rounds.

    Notes
    -----
    What was kept less what was expected, in the order of the rounds, are martingale
    differences of known variance ``a (1 - a)`` and at most 1, so the sum ``S`` of them,
    weighted by at most 1, has ``P(S <= -s) <= exp(-s**2 / (2 V + 2 s / 3))`` (Freedman,
    1975).
    """
    check_alpha(alpha)
    expected, kept = _columns(rounds)
    weights = np.concatenate([_ramp(len(request)) for request in rounds])
    rest = kept - expected
    statistic = float(weights @ rest)
    variance = float(weights**2 @ np.clip(expected * (1 - expected), 0.0, None))
    late = weights >= 0.5
    return DecayTest(
        len(expected),
        statistic,
        math.sqrt(variance),
        float(-rest[late].mean()) if late.any() else 0.0,
        _tail(-statistic, variance),
        _smallest(weights, variance, alpha, power),
        _likelihood(expected, kept, weights) > _likelihood(expected, kept, np.ones_like(weights)),
    )


@dataclass(frozen=True, slots=True)
class LevelTest:
    """Acceptance over all rounds of requests, against what it should be.

    Parameters
    ----------
    num_rounds : int
        Rounds of all requests.
    kept : float
        Share of the rounds whose first draft was kept.
    promised : float
        What it should be on average.
    p_slow : float
        Of too few, one-sided, by Freedman's inequality.
    p_fast : float
        Of too many.
    smallest : float
        The smallest loss or surplus per round that would have been seen with the stated
        power; infinite where none would.
    """

    num_rounds: int
    kept: float
    promised: float
    p_slow: float
    p_fast: float
    smallest: float


def level_test(
    rounds: Sequence[Sequence[tuple[float, bool]]],
    *,
    tolerance: float = 0.0,
    alpha: float = 1e-3,
    power: float = 0.99,
) -> LevelTest:
    """Test whether as many first drafts are kept as target and drafter promise.

    Parameters
    ----------
    rounds : sequence of sequence of (float, bool)
        See `decay_test`.
    tolerance : float, default 0
        How far a probability may be off by rounding, in every round.
    alpha : float, default 0.001
        False-alarm rate of either side, for which the smallest departure is stated.
    power : float, default 0.99
        Probability with which it must be seen.

    Returns
    -------
    LevelTest
        Valid for any number of rounds; see the notes of `decay_test`. A probability that
        is off by t changes the variance of a round by t at most.

    Raises
    ------
    ConfigError
        If a probability lies outside [0, 1], the tolerance outside [0, 1), or there are
        no rounds.
    """
    check_alpha(alpha)
    expected, kept = _columns(rounds)
    if not 0 <= tolerance < 1:
        raise ConfigError(f"tolerance {tolerance}: expected a probability in [0, 1)")
    count = len(expected)
    excess = float((kept - expected).sum())
    room = tolerance * count
    variance = float(np.clip(expected * (1 - expected), 0.0, None).sum()) + room
    return LevelTest(
        count,
        float(kept.mean()),
        float(expected.mean()),
        _tail(-excess - room, variance),
        _tail(excess - room, variance),
        # The promise may be off one way, and the alarm leaves room for the other.
        _smallest(np.ones(count), variance, alpha, power) + 2 * tolerance,
    )


def _columns(
    rounds: Sequence[Sequence[tuple[float, bool]]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what is promised and what was kept in every round."""
    expected = np.array([p for request in rounds for p, _ in request], dtype=np.float64)
    kept = np.array([flag for request in rounds for _, flag in request], dtype=np.float64)
    if not len(expected) or not ((expected >= 0) & (expected <= 1 + 1e-9)).all():
        raise ConfigError(f"{len(expected)} rounds: expected some, with probabilities in [0, 1]")
    return expected, kept


def _likelihood(
    expected: NDArray[np.float64], kept: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    """Return the log-likelihood of the best share that is lost, times the weights."""
    shares = np.linspace(0.0, 1.0, 101)[:, None]
    probs = np.clip(expected * (1.0 - shares * weights), 1e-6, 1.0 - 1e-6)
    return float(np.where(kept > 0, np.log(probs), np.log1p(-probs)).sum(axis=1).max())


def _ramp(count: int) -> NDArray[np.float64]:
    return np.linspace(0.0, 1.0, count) if count > 1 else np.zeros(count)


def _tail(size: float, variance: float) -> float:
    """Return the bound of the probability that the sum falls by ``size`` or more."""
    if size <= 0:
        return 1.0
    return math.exp(-(size**2) / (2 * variance + 2 * size / 3))


def _smallest(weights: NDArray[np.float64], variance: float, alpha: float, power: float) -> float:
    """Return the loss at the end of a request that the test sees."""

    def bar(level: float) -> float:
        far = 4 * (math.sqrt(variance * math.log(1 / level)) + math.log(1 / level) + 1)
        root: float = brentq(lambda s: math.log(max(_tail(s, variance), 1e-300) / level), 0.0, far)
        return root

    # The alarm's bar, and room for a statistic that comes out too high by chance.
    needed = bar(alpha) + bar(1 - power)
    reach = float(weights @ weights)
    if reach <= 0 or needed / reach > 1:
        return math.inf
    return needed / reach
