"""Siblings that no coin draws: the likeliest of a law, and the first of its race."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftproof.core.law import Law
from draftproof.core.siblings import law_without

__all__ = ["finishers", "likeliest"]


def likeliest(first: int, law: Law, count: int) -> list[int]:
    """Return a token and the likeliest others of a law, the lowest ids first on ties.

    Parameters
    ----------
    first : int
        The token that comes first whatever the law says.
    law : Law
        The law.
    count : int
        Most tokens.

    Returns
    -------
    list of int
        Fewer where the law has no more.
    """
    probs = np.array(law.dense())
    probs[first] = 0.0
    order = np.argsort(-probs, kind="stable")[: count - 1]
    return [first, *(int(token) for token in order if probs[token] > 0)]


def finishers(law: Law, race: Callable[[Law], int], count: int) -> list[int]:
    """Return the first tokens of a law's race, in order.

    Parameters
    ----------
    law : Law
        The law.
    race : callable of Law
        Returns the winner among what is left of it.
    count : int
        Most tokens.

    Returns
    -------
    list of int
        Fewer where the law has no more.
    """
    tokens: list[int] = []
    rest: Law | None = law
    while rest is not None and len(tokens) < count:
        tokens.append(race(rest))
        rest = law_without(rest, tokens[-1])
    return tokens
