"""Whether a stretch of draws was given twice: a cache of answers, a seed that comes again.

Of two places in a sequence the draws are compared one after the other until they differ.
Each that is equal multiplies a bet by the inverse of its chance, which given all counts is
at most (n - 1) / (N - 2 t - 1): for an outcome that was drawn n times of N, after t equal
draws. Where draws are independent such a bet does not grow on average, whatever the law
and also where the two stretches overlap. By Ville's inequality it ever reaches W with a
probability of at most 1 / W, and there are N (N - 1) / 2 pairs of places. Rare outcomes
tell more than frequent ones, so that long runs of a peaked law are no surprise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RepeatedBlock", "repeated_block", "shared_block"]

#: Doublings of the length up to which stretches are compared: 4,096 draws.
_DOUBLINGS = 12
#: Stretches that tell as much as the most surprising one, but for this factor.
_ALIKE = 0.8


@dataclass(frozen=True, slots=True)
class RepeatedBlock:
    """The stretch of draws that is most surprising to come twice.

    Parameters
    ----------
    first : int
        Where it begins.
    second : int
        Where it begins again.
    length : int
        Draws that are equal; 0 where none are.
    p_value : float
        Bound of the probability of any such pair.
    """

    first: int
    second: int
    length: int
    p_value: float


def repeated_block(codes: NDArray[np.int64]) -> RepeatedBlock:
    """Return the most surprising stretch that occurs twice in a sequence.

    Parameters
    ----------
    codes : ndarray of int64, shape (N,)
        Outcomes in order of request, as numbers of 0 or more.

    Returns
    -------
    RepeatedBlock
        The two may overlap, as those of a periodic sequence do.
    """
    num = len(codes)
    if num < 2:
        return RepeatedBlock(0, 0, 0, 1.0)
    left, right = _neighbours(codes)
    first, second = np.minimum(left, right), np.maximum(left, right)
    lengths = _shared_lengths(codes, first, second)
    news = _news(codes, np.bincount(codes).astype(np.float64) - 1, first, lengths, revealed=2)
    return _most_surprising(codes, codes, (first, second), news, math.comb(num, 2))


def shared_block(codes: NDArray[np.int64], others: NDArray[np.int64]) -> RepeatedBlock:
    """Return the most surprising stretch that two sequences share.

    Parameters
    ----------
    codes : ndarray of int64, shape (N,)
        Outcomes in order of request, as numbers of 0 or more.
    others : ndarray of int64, shape (M,)
        Those of another sequence, under the same numbers.

    Returns
    -------
    RepeatedBlock
        Where it begins in either. The two laws may differ.
    """
    if not len(codes) or not len(others):
        return RepeatedBlock(0, 0, 0, 1.0)
    # One sequence of both, with a wall between them that equals nothing else.
    wall = int(max(codes.max(), others.max())) + 1
    joined = np.concatenate([codes, [wall], others])
    left, right = _neighbours(joined)
    first, second = np.minimum(left, right), np.maximum(left, right)
    across = (first < len(codes)) & (second > len(codes))
    first, second = first[across], second[across]
    if not len(first):
        return RepeatedBlock(0, 0, 0, 1.0)
    lengths = _shared_lengths(joined, first, second)
    # Only draws of the second sequence are uncovered against its own counts.
    counts = np.bincount(others, minlength=wall + 1).astype(np.float64)
    news = _news(others, counts, second - len(codes) - 1, lengths, revealed=1)
    pairs = len(codes) * len(others)
    return _most_surprising(codes, others, (first, second - len(codes) - 1), news, pairs)


def _most_surprising(
    codes: NDArray[np.int64],
    others: NDArray[np.int64],
    places: tuple[NDArray[np.int64], NDArray[np.int64]],
    news: NDArray[np.float64],
    pairs: int,
) -> RepeatedBlock:
    best = float(news.max())
    if best <= 0:
        return RepeatedBlock(0, 0, 0, 1.0)
    # A period shows between all of its multiples; the nearest places are named.
    alike = np.flatnonzero(news >= _ALIKE * best)
    named = alike[np.argmin(np.abs(places[1][alike] - places[0][alike]))]
    first, second = int(places[0][named]), int(places[1][named])
    room = min(len(codes) - first, len(others) - second)
    differ = np.flatnonzero(codes[first : first + room] != others[second : second + room])
    length = int(differ[0]) if len(differ) else room
    # The stretch was compared up to a bound; what lies before it may be equal as well.
    while first and second and codes[first - 1] == others[second - 1]:
        first, second, length = first - 1, second - 1, length + 1
    p = math.exp(min(0.0, math.log(pairs) - best))
    return RepeatedBlock(first, second, length, p)


def _news(
    codes: NDArray[np.int64],
    chances: NDArray[np.float64],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    *,
    revealed: int,
) -> NDArray[np.float64]:
    """Return the logarithm of the bet on each stretch.

    Parameters
    ----------
    codes : ndarray of int64, shape (N,)
        The sequence whose draws are uncovered.
    chances : ndarray of float64, shape (K,)
        Draws of each outcome that may be left when it is bet on.
    begins, lengths : ndarray of int64, shape (P,)
        Stretches.
    revealed : int
        Draws that each comparison uncovers.

    Returns
    -------
    ndarray of float64, shape (P,)
        In nats.
    """
    num = len(codes)
    # An outcome drawn once is equal to no other; it ends every stretch.
    each = -np.log(np.maximum(chances[codes], 0.5))
    sums = np.concatenate([[0.0], np.cumsum(each)])
    steps = np.arange(int(lengths.max(initial=0)), dtype=np.float64)
    left = np.log(np.maximum(num - revealed * steps - (revealed - 1), 1.0))
    room = np.concatenate([[0.0], np.cumsum(left)])
    found: NDArray[np.float64] = sums[begins + lengths] - sums[begins] + room[lengths]
    return found


def _neighbours(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return places whose stretches are next to each other in alphabetical order.

    What any two places share, some two neighbours share as well.
    """
    order = np.argsort(_ranks(codes)[-1], kind="stable")
    return order[:-1], order[1:]


def _ranks(codes: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the rank of the stretch at each place, for lengths 1, 2, 4, ..."""
    found = [np.unique(codes, return_inverse=True)[1].astype(np.int64)]
    num = len(codes)
    for doubling in range(_DOUBLINGS):
        known, step = found[-1], 1 << doubling
        if step >= num or int(known.max()) == num - 1:
            break
        # Past the end stands 0, before every rank.
        after = np.zeros(num, dtype=np.int64)
        after[: num - step] = known[step:] + 1
        found.append(np.unique(known * (num + 1) + after, return_inverse=True)[1].astype(np.int64))
    return found


def _shared_lengths(
    codes: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many draws are equal from each pair of places on, up to the bound."""
    num = len(codes)
    lengths = np.zeros(len(first), dtype=np.int64)
    ranks = _ranks(codes)
    for doubling in range(len(ranks) - 1, -1, -1):
        step, known = 1 << doubling, ranks[doubling]
        fits = np.maximum(first, second) + lengths + step <= num
        a, b = np.minimum(first + lengths, num - 1), np.minimum(second + lengths, num - 1)
        lengths += np.where(fits & (known[a] == known[b]), step, 0)
    return lengths
