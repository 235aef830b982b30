"""What a test of this law, with this many draws, would have seen.

A pass says nothing without this. The alternatives are worst directions: a set of
outcomes of about half the mass grows in proportion, the rest shrinks. Of all biases
of one total variation that is the one of least chi-squared distance, ``4 TV**2``, and
no worse one was found by search. Random directions are easier by about 2.5 in draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, chi2, ncx2

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import Calibration, Calibrations, discrepancies, seed_of
from draftproof.evidence.joint_law import JointLaw

__all__ = [
    "Power",
    "draws_needed",
    "half_mass_shift",
    "noncentrality",
    "power_of_fixture",
    "power_of_law",
    "random_shift",
    "smallest_detectable",
]


@dataclass(frozen=True, slots=True)
class Power:
    """The simulated probability of an alarm under a bias of one size.

    Parameters
    ----------
    tv : float
        The total variation of the bias.
    worst : float
        The lowest alarm rate among the worst directions.
    worst_low : float
        Lower end of its 99 % interval for the noise of the simulation, corrected for
        taking the lowest of several.
    random : float
        The mean alarm rate of random directions.
    num_directions : int
        How many worst directions could be realised: skewed laws have few sets of half
        the mass.
    """

    tv: float
    worst: float
    worst_low: float
    random: float
    num_directions: int


def noncentrality(df: int, alpha: float, power: float) -> float:
    """Return the noncentrality at which a chi-squared test reaches a power.

    Parameters
    ----------
    df : int
        Degrees of freedom.
    alpha : float
        False-alarm rate.
    power : float
        Alarm rate wanted, above ``alpha``.

    Returns
    -------
    float
        For example 94.8 for (80, 0.001, 0.99).
    """
    bar = chi2.isf(alpha, df)
    root: float = brentq(lambda x: ncx2.sf(bar, df, x) - power, 1e-9, 1e5)
    return root


def draws_needed(num_outcomes: int, tv: float, alpha: float = 1e-3, power: float = 0.99) -> int:
    """Return about how many draws see a bias in the worst direction.

    Parameters
    ----------
    num_outcomes : int
        Possible outcomes K.
    tv : float
        Size of the bias.
    alpha : float, default 0.001
        False-alarm rate.
    power : float, default 0.99
        Alarm rate wanted.

    Returns
    -------
    int
        From the chi-squared distance ``4 tv**2`` of a half-mass shift. A plan, not a
        promise: `power_of_law` simulates what the real fixture does.

    Raises
    ------
    ConfigError
        If there is nothing to tell apart, or the bias is outside (0, 1/2].
    """
    if num_outcomes < 2 or not 0 < tv <= 0.5:
        msg = f"{num_outcomes} outcomes, TV {tv}: expected 2 or more, and a TV in (0, 0.5]"
        raise ConfigError(msg)
    return math.ceil(noncentrality(num_outcomes - 1, alpha, power) / (4 * tv**2))


def half_mass_shift(
    probs: NDArray[np.float64], tv: float, rng: np.random.Generator
) -> NDArray[np.float64] | None:
    """Move mass, in proportion, into a random set that holds about half of it.

    Parameters
    ----------
    probs : ndarray of float64, shape (K,)
        The law.
    tv : float
        Mass that moves.
    rng : numpy.random.Generator
        Chooses the set.

    Returns
    -------
    ndarray of float64, shape (K,), or None
        The biased law; None where no random set came within 0.1 of half the mass and
        could take the shift.
    """
    for _ in range(50):
        order = rng.permutation(len(probs))
        mass = np.cumsum(probs[order])
        size = int(np.abs(mass - 0.5).argmin()) + 1
        share = float(mass[size - 1])
        if size < len(probs) and abs(share - 0.5) <= 0.1 and tv < 1 - share:
            grown = np.zeros(len(probs), dtype=bool)
            grown[order[:size]] = True
            return np.where(grown, probs * (1 + tv / share), probs * (1 - tv / (1 - share)))
    return None


def random_shift(
    probs: NDArray[np.float64], tv: float, rng: np.random.Generator
) -> NDArray[np.float64] | None:
    """Bend a law by independent random amounts, each in proportion to its cell.

    Parameters
    ----------
    probs : ndarray of float64, shape (K,)
        The law.
    tv : float
        Size of the bias.
    rng : numpy.random.Generator
        Chooses the direction.

    Returns
    -------
    ndarray of float64, shape (K,), or None
        The biased law; None where none of 50 directions leaves all cells positive.
    """
    for _ in range(50):
        bend = rng.normal(size=len(probs)) * probs
        bend -= probs * bend.sum()
        size = float(np.abs(bend).sum() / 2)
        if size > 0:
            shifted = probs + bend * (tv / size)
            if shifted.min() >= 0:
                return shifted
    return None


Shift = Callable[[NDArray[np.float64], float, np.random.Generator], "NDArray[np.float64] | None"]


def power_of_law(
    biased: NDArray[np.float64],
    law: JointLaw,
    num_draws: int,
    calibration: Calibration,
    alpha: float,
    rng: np.random.Generator,
    repeats: int = 1000,
) -> float:
    """Return how often draws of a biased law raise the alarm.

    Parameters
    ----------
    biased : ndarray of float64, shape (K,)
        The law of the draws.
    law : JointLaw
        The law they are tested against.
    num_draws : int
        Draws of one audit.
    calibration : Calibration
        Of ``law`` and ``num_draws``.
    alpha : float
        False-alarm rate.
    rng : numpy.random.Generator
        Draws.
    repeats : int, default 1000
        Simulated audits.

    Returns
    -------
    float
        A share of ``repeats``.
    """
    counts = rng.multinomial(num_draws, biased / biased.sum(), repeats)
    return float((calibration.p_values(*discrepancies(counts, law.probs)) <= alpha).mean())


def power_of_fixture(
    law: JointLaw,
    num_draws: int,
    tv: float,
    calibrations: Calibrations,
    alpha: float = 1e-3,
    *,
    directions: int = 16,
    repeats: int = 500,
    stream: int = 0,
) -> Power:
    """Simulate the audit of this very law under biases of one size.

    Parameters
    ----------
    law : JointLaw
        The law.
    num_draws : int
        Draws of the audit.
    tv : float
        Size of the bias.
    calibrations : Calibrations
        The calibrations of the run.
    alpha : float, default 0.001
        False-alarm rate.
    directions : int, default 16
        How many worst and how many random directions.
    repeats : int, default 500
        Simulated audits for each.
    stream : int, default 0
        Stream of the calibration.

    Returns
    -------
    Power
        Zero where no direction of that size is possible, as for a law that is certain.
    """
    calibration = calibrations.of(law.probs, num_draws, stream=stream)
    rng = seed_of(calibrations.seed, "power", law.digest(), num_draws)

    def rates(shift: Shift) -> list[float]:
        found = (shift(law.probs, tv, rng) for _ in range(directions))
        return [
            power_of_law(biased, law, num_draws, calibration, alpha, rng, repeats)
            for biased in found
            if biased is not None
        ]

    worst, random = rates(half_mass_shift), rates(random_shift)
    if not worst:
        return Power(tv, 0.0, 0.0, float(np.mean(random)) if random else 0.0, 0)
    hits = round(min(worst) * repeats)
    low = float(beta.ppf(0.01 / len(worst), hits, repeats - hits + 1)) if hits else 0.0
    mean_random = float(np.mean(random)) if random else math.nan
    return Power(tv, min(worst), low, mean_random, len(worst))


def smallest_detectable(
    law: JointLaw,
    num_draws: int,
    calibrations: Calibrations,
    alpha: float = 1e-3,
    power: float = 0.99,
    *,
    directions: int = 8,
    repeats: int = 500,
    stream: int = 0,
) -> float:
    """Return the smallest bias that the audit sees with a stated probability.

    Parameters
    ----------
    law : JointLaw
        The law.
    num_draws : int
        Draws of the audit.
    calibrations : Calibrations
        The calibrations of the run.
    alpha : float, default 0.001
        False-alarm rate.
    power : float, default 0.99
        Alarm rate wanted, in the worst direction found.
    directions : int, default 8
        Worst directions at each size.
    repeats : int, default 500
        Simulated audits for each.
    stream : int, default 0
        Stream of the calibration.

    Returns
    -------
    float
        To three per cent; 1 where no bias below one half is seen, or none could be
        realised.
    """
    if num_draws == 0 or len(law) < 2:
        return 1.0

    @cache
    def seen(tv: float) -> float:
        found = power_of_fixture(
            law, num_draws, tv, calibrations, alpha,
            directions=directions, repeats=repeats, stream=stream,
        )  # fmt: skip
        return found.worst

    guess = math.sqrt(noncentrality(len(law) - 1, alpha, power) / (4 * num_draws))
    low, high = guess / 4, guess
    while seen(high) < power:
        low, high = high, high * 1.3
        if high > 0.5:
            return 1.0
    while high / low > 1.03:
        middle = math.sqrt(low * high)
        if seen(middle) >= power:
            high = middle
        else:
            low = middle
    return high
