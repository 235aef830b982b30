"""What an audit that may stop at any look would have seen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from draftproof.evidence.calibration import seed_of
from draftproof.evidence.directions import (
    half_mass_shift,
    has_half_mass,
    smallest_impossible,
    top_shifts,
)
from draftproof.evidence.joint_law import JointLaw
from draftproof.evidence.sequential import DISTANCES

__all__ = ["sequential_power", "smallest_sequential"]

_DIRECTIONS, _REPEATS, _HALVINGS = 6, 300, 9
#: Largest bias that is looked for: half of a half.
_WIDEST = 0.35


def sequential_power(
    laws: Sequence[JointLaw], draws: Sequence[int], tv: float, alpha: float, *, seed: int = 0
) -> float:
    """Simulate the alarm rate of `SequentialAudit` under biases of one size.

    Parameters
    ----------
    laws : sequence of JointLaw, length M
        The reference of each prompt; all are biased, each in its own worst direction.
    draws : sequence of int, length M
        Draws of each prompt.
    tv : float
        Size of the bias.
    alpha : float
        False-alarm rate.
    seed : int, default 0
        Seed of the simulation.

    Returns
    -------
    float
        The lowest alarm rate of several directions, at the last draw alone: earlier
        looks can only add to it. 0 where no direction of that size is possible.
    """
    names = [(law.digest(), n) for law, n in zip(laws, draws, strict=True)]
    rng = seed_of(seed, "sequential", repr(names), repr(tv))
    rates = []
    for biased in _shifts(laws, tv, rng):
        if all(row is None for row in biased):
            continue
        values = np.zeros((_REPEATS, len(laws)))
        for column, (law, n, row) in enumerate(zip(laws, draws, biased, strict=True)):
            probs = law.probs if row is None else row
            cells = rng.multinomial(n, probs / probs.sum(), _REPEATS)
            values[:, column] = _log_mixtures(law.probs, cells)
        product = values.sum(axis=1)
        mean = logsumexp(values, axis=1) - math.log(len(laws))
        joint = np.logaddexp(product, mean) - math.log(2)
        rates.append(float((joint >= -math.log(alpha)).mean()))
    return min(rates, default=0.0)


def _shifts(
    laws: Sequence[JointLaw], tv: float, rng: np.random.Generator
) -> Iterator[Sequence[NDArray[np.float64] | None]]:
    """Yield worst directions: of half the mass, or of the likeliest outcomes in peaked laws."""
    if any(has_half_mass(law.probs) for law in laws):
        for _ in range(_DIRECTIONS):
            yield [half_mass_shift(law.probs, tv, rng) for law in laws]
    else:
        yield from zip_longest(*(top_shifts(law.probs, tv) for law in laws))


def smallest_sequential(
    laws: Sequence[JointLaw],
    draws: Sequence[int],
    alpha: float,
    power: float,
    *,
    seed: int = 0,
) -> float:
    """Return the smallest bias that an anytime-valid audit of these draws sees.

    Parameters
    ----------
    laws : sequence of JointLaw
        The reference of each prompt.
    draws : sequence of int
        Draws of each prompt.
    alpha : float
        False-alarm rate over the whole audit.
    power : float
        Alarm rate wanted.
    seed : int, default 0
        Seed of the simulation.

    Returns
    -------
    float
        As a total variation distance, shared by all prompts; 1 where even a bias of 0.35
        stays unseen.
    """
    if all(len(law) == 1 for law in laws):
        return smallest_impossible(sum(draws), power)

    def sees(tv: float) -> bool:
        return sequential_power(laws, draws, tv, alpha, seed=seed) >= power

    if not sees(_WIDEST):
        # Skewed laws cannot take so large a shift, and may still show a smaller one.
        smaller = [tv for tv in (0.2, 0.1, 0.05) if sees(tv)]
        if not smaller:
            return 1.0
        high = smaller[0]
    else:
        high = _WIDEST
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sees(middle) else (middle, high)
    return high


def _log_mixtures(probs: NDArray[np.float64], cells: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the Dirichlet half of `log_e_value` for rows of counts, shape (R,)."""
    if len(probs) == 1:
        return np.zeros(len(cells))
    n = cells.sum(axis=1)
    null = cells @ np.log(probs)
    unknown = []
    for distance in DISTANCES:
        kappa = (len(probs) - 1) / (4 * distance**2)
        base = kappa * probs
        value = (gammaln(base + cells) - gammaln(base)).sum(axis=1)
        unknown.append(value + gammaln(kappa) - gammaln(kappa + n) - null)
    mixed: NDArray[np.float64] = logsumexp(unknown, axis=0) - math.log(len(unknown))
    return mixed
