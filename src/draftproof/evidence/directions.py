"""Biases of a stated size: where an alternative to a law may lie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["half_mass_shift", "random_shift"]


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
