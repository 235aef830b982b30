"""What a test of this law, with this many draws, would have seen.

A pass says nothing without this. The alternatives are worst directions: a set of
outcomes of about half the mass grows in proportion, the rest shrinks. Of all biases
of one total variation that is the one of least chi-squared distance, ``4 TV**2``, and
no worse one was found by search. Random directions are easier, by 1.6 in draws and
more. Peaked laws have no such set: of those the likeliest outcomes grow and shrink
(`draftproof.evidence.directions.top_shifts`), and what a certain law forbids is an alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, chi2, ncx2

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import Calibrations, discrepancies, seed_of
from draftproof.evidence.directions import (
    half_mass_shift,
    has_half_mass,
    random_shift,
    smallest_impossible,
    top_shifts,
)
from draftproof.evidence.joint_law import JointLaw

__all__ = [
    "Power",
    "alarms",
    "draws_needed",
    "draws_to_detect",
    "noncentrality",
    "power_of_fixture",
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
        promise: `power_of_fixture` simulates what the real fixture does.

    Raises
    ------
    ConfigError
        If there is nothing to tell apart, or the bias is outside (0, 1/2].
    """
    if num_outcomes < 2 or not 0 < tv <= 0.5:
        msg = f"{num_outcomes} outcomes, TV {tv}: expected 2 or more, and a TV in (0, 0.5]"
        raise ConfigError(msg)
    return math.ceil(noncentrality(num_outcomes - 1, alpha, power) / (4 * tv**2))


Shift = Callable[[NDArray[np.float64], float, np.random.Generator], "NDArray[np.float64] | None"]


def alarms(p_values: NDArray[np.float64], alpha: float) -> NDArray[np.bool_]:
    """Return which simulated audits raise the alarm.

    Parameters
    ----------
    p_values : ndarray of float64, shape (R, M)
        P-values of M prompts in R audits.
    alpha : float
        False-alarm rate of an audit.

    Returns
    -------
    ndarray of bool, shape (R,)
        As `draftproof.evidence.fixed_budget.combine` decides.
    """
    prompts = p_values.shape[1]
    if prompts == 1:
        single: NDArray[np.bool_] = p_values[:, 0] <= alpha
        return single
    fisher = chi2.sf(-2 * np.log(p_values).sum(axis=1), 2 * prompts)
    rejected: NDArray[np.bool_] = np.minimum(p_values.min(axis=1) * prompts, fisher) <= alpha / 2
    return rejected


def power_of_fixture(
    laws: Sequence[JointLaw],
    draws: Sequence[int],
    tv: float,
    calibrations: Calibrations,
    alpha: float = 1e-3,
    *,
    directions: int = 16,
    repeats: int = 500,
) -> Power:
    """Simulate the audit of these very laws under biases of one size.

    Parameters
    ----------
    laws : sequence of JointLaw, length M
        The reference of each prompt; all are biased, each in its own direction.
    draws : sequence of int, length M
        Draws of each prompt.
    tv : float
        Size of the bias.
    calibrations : Calibrations
        The calibrations of the run; prompt ``i`` uses stream ``i``.
    alpha : float, default 0.001
        False-alarm rate.
    directions : int, default 16
        How many worst and how many random directions.
    repeats : int, default 500
        Simulated audits for each.

    Returns
    -------
    Power
        Zero where no direction of that size is possible. Where all laws are certain it
        is that of an impossible outcome among the draws, and no direction is counted.
        A prompt that cannot be biased by so much follows its reference.

    Raises
    ------
    ConfigError
        If the calibrations have too few samples for the level.
    """
    calibrations.require_level(alpha)
    if all(len(law) == 1 for law in laws):
        seen = float(1 - (1 - tv) ** sum(draws))
        return Power(tv, seen, seen, seen, 0)
    names = [(law.digest(), n) for law, n in zip(laws, draws, strict=True)]
    rng = seed_of(calibrations.seed, "power", repr(names))

    def rate(biased: Sequence[NDArray[np.float64] | None]) -> float:
        p = [
            calibrations.of(law.probs, n, stream=i).p_values(
                *discrepancies(rng.multinomial(n, _law_of(row, law), repeats), law.probs)
            )
            for i, (law, n, row) in enumerate(zip(laws, draws, biased, strict=True))
        ]
        return float(alarms(np.stack(p, axis=1), alpha).mean())

    def rates(shift: Shift) -> list[float]:
        rows = ([shift(law.probs, tv, rng) for law in laws] for _ in range(directions))
        return [rate(biased) for biased in rows if any(row is not None for row in biased)]

    worst, random = rates(half_mass_shift), rates(random_shift)
    if not any(has_half_mass(law.probs) for law in laws):
        worst += [rate(biased) for biased in zip_longest(*(top_shifts(x.probs, tv) for x in laws))]
    mean_random = float(np.mean(random)) if random else 0.0
    if not worst:
        return Power(tv, 0.0, 0.0, mean_random, 0)
    hits = round(min(worst) * repeats)
    low = float(beta.ppf(0.01 / len(worst), hits, repeats - hits + 1)) if hits else 0.0
    return Power(tv, min(worst), low, mean_random, len(worst))


def _law_of(biased: NDArray[np.float64] | None, law: JointLaw) -> NDArray[np.float64]:
    probs: NDArray[np.float64] = law.probs if biased is None else biased / biased.sum()
    return probs


def smallest_detectable(
    laws: Sequence[JointLaw],
    draws: Sequence[int],
    calibrations: Calibrations,
    alpha: float = 1e-3,
    power: float = 0.99,
    *,
    directions: int = 8,
    repeats: int = 500,
) -> float:
    """Return the smallest bias that the audit sees with a stated probability.

    Parameters
    ----------
    laws : sequence of JointLaw, length M
        The reference of each prompt; a bias is one that all share in size.
    draws : sequence of int, length M
        Draws of each prompt.
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

    Returns
    -------
    float
        To three per cent; 1 where no bias below one half is seen, or none could be
        realised.
    """
    if all(len(law) == 1 for law in laws):
        return smallest_impossible(sum(draws), power)
    if not any(n and len(law) > 1 for law, n in zip(laws, draws, strict=True)):
        return 1.0

    @cache
    def seen(tv: float) -> float:
        return power_of_fixture(
            laws, draws, tv, calibrations, alpha, directions=directions, repeats=repeats
        ).worst

    widest = max(len(law) for law in laws)
    guess = math.sqrt(noncentrality(widest - 1, alpha, power) / (4 * max(sum(draws), 1)))
    low, high = min(guess, 0.4) / 4, min(guess, 0.4)
    while seen(high) < power:
        low, high = high, high * 1.3
        if high > 0.5:
            return 1.0
    if not any(has_half_mass(law.probs) for law in laws):
        # Peaked laws show less than the chi-squared distance of half a mass.
        while low > 1e-7 and seen(low) >= power:
            low, high = low / 2, low
    while high / low > 1.03:
        middle = math.sqrt(low * high)
        if seen(middle) >= power:
            high = middle
        else:
            low = middle
    return high


def draws_to_detect(
    law: JointLaw,
    biased: NDArray[np.float64],
    calibrations: Calibrations,
    alpha: float = 1e-3,
    power: float = 0.99,
    *,
    repeats: int = 500,
    most: int = 4_000_000,
) -> int | None:
    """Return how many draws of one biased law raise the alarm with a probability.

    Parameters
    ----------
    law : JointLaw
        The reference.
    biased : ndarray of float64, shape (K,) or (K + 1,)
        The law of the draws; a last entry beyond K is the mass of impossible outcomes,
        one of which is an alarm by itself.
    calibrations : Calibrations
        The calibrations of the run.
    alpha : float, default 0.001
        False-alarm rate.
    power : float, default 0.99
        Alarm rate wanted.
    repeats : int, default 500
        Simulated audits at each number of draws.
    most : int, default 4000000
        Where the search ends.

    Returns
    -------
    int or None
        To five per cent; None if ``most`` draws are too few.

    Raises
    ------
    ConfigError
        If the calibrations have too few samples for the level.
    """
    calibrations.require_level(alpha)
    size = len(law)
    row = np.append(biased, np.zeros(size + 1 - len(biased)))

    def is_enough(n: int) -> bool:
        rng = seed_of(calibrations.seed, "detect", law.digest(), row.tobytes(), n)
        counts = rng.multinomial(n, row / row.sum(), repeats)
        p = calibrations.of(law.probs, n).p_values(*discrepancies(counts[:, :size], law.probs))
        return bool(((p <= alpha) | (counts[:, size] > 0)).mean() >= power)

    high = 16
    while not is_enough(high):
        high *= 2
        if high > most:
            return None
    low = high // 2
    while high - low > max(1, 0.05 * high):
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high
