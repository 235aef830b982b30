"""Biases of a stated size: where an alternative to a law may lie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["half_mass_shift", "has_half_mass", "random_shift", "smallest_impossible", "top_shifts"]

#: Sets of the likeliest outcomes that grow and shrink where no set holds half the mass.
_TOP_SETS = 4


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


def has_half_mass(probs: NDArray[np.float64]) -> bool:
    """Return whether `half_mass_shift` finds a set for a small shift of a law.

    Parameters
    ----------
    probs : ndarray of float64, shape (K,)
        The law.

    Returns
    -------
    bool
        False for laws of which one outcome has most of the mass.
    """
    rng = np.random.default_rng(0)
    return any(half_mass_shift(probs, 1e-9, rng) is not None for _ in range(8))


def top_shifts(probs: NDArray[np.float64], tv: float) -> list[NDArray[np.float64]]:
    """Move mass, in proportion, out of the likeliest outcomes and into them.

    The worst directions of laws that have no set of half the mass: sets of the one, two,
    three or four likeliest outcomes are the nearest to half that a peaked law has.

    Parameters
    ----------
    probs : ndarray of float64, shape (K,)
        The law.
    tv : float
        Mass that moves.

    Returns
    -------
    list of ndarray of float64, shape (K,)
        Those that the law can take; for a certain law none.
    """
    order = np.argsort(-probs, kind="stable")
    found = []
    for size in range(1, min(_TOP_SETS, len(probs) - 1) + 1):
        top = np.zeros(len(probs), dtype=bool)
        top[order[:size]] = True
        share = float(probs[top].sum())
        for sign, room in ((1, 1 - share), (-1, share)):
            if tv < room:
                grown, rest = 1 + sign * tv / share, 1 - sign * tv / (1 - share)
                found.append(np.where(top, probs * grown, probs * rest))
    return found


def smallest_impossible(num_draws: int, power: float) -> float:
    """Return the smallest mass of impossible outcomes that draws show.

    Parameters
    ----------
    num_draws : int
        Draws.
    power : float
        Probability wanted.

    Returns
    -------
    float
        ``t`` with ``1 - (1 - t)**n = power``: one such draw is an alarm. Every bias of a
        law that is certain is of this kind. 1 without draws.
    """
    return 1.0 if num_draws < 1 else float(-np.expm1(np.log1p(-power) / num_draws))
