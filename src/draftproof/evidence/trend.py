"""Does acceptance fall behind what it should be, the longer a request goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from draftproof.errors import ConfigError
from draftproof.evidence.fixed_budget import check_alpha

__all__ = ["DecayTest", "decay_test"]


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
    """

    num_rounds: int
    statistic: float
    spread: float
    late_shortfall: float
    p_value: float
    smallest_decay: float


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
    expected = np.array([p for request in rounds for p, _ in request], dtype=np.float64)
    kept = np.array([flag for request in rounds for _, flag in request], dtype=np.float64)
    if not len(expected) or not ((expected >= 0) & (expected <= 1 + 1e-9)).all():
        raise ConfigError(f"{len(expected)} rounds: expected some, with probabilities in [0, 1]")
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
    )


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
