"""Probability laws in exact fractions, for rules that are enumerated without rounding."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.core.base_law import Law
from draftproof.testing.branching import Coin

__all__ = ["FractionLaw"]


class FractionLaw(Law):
    """A law in exact fractions; verification rules take it as they take any law.

    Parameters
    ----------
    weights : sequence of int, float or Fraction, length V
        Not negative, with a positive sum.
    """

    __slots__ = ("edges", "probs")

    def __init__(self, weights: Sequence[Any]) -> None:
        exact = [Fraction(weight) for weight in weights]
        total = sum(exact, Fraction(0))
        self.probs = tuple(weight / total for weight in exact)
        self.edges = tuple(accumulate(self.probs))
        self._vocab_size = len(self.probs)

    def __repr__(self) -> str:
        """Return a short description."""
        return f"FractionLaw([{', '.join(map(str, self.probs))}])"

    def prob(self, token: int) -> Any:
        """Return the probability of a token as a fraction."""
        return self.probs[token] if 0 <= token < self._vocab_size else Fraction(0)

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids, rounded to float64."""
        return self.dense()[token_ids]

    def draw(self, u: Any) -> int:
        """Return the token at the point ``u``, a branching coin or a number."""
        if isinstance(u, Coin):
            return u.pick(self.probs, self.edges)
        return bisect_right(self.edges, u)

    def race(self, noise: Any) -> int:
        """Return the winner of the race over branching noise."""
        winner: int = noise.race(self.probs)
        return winner

    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, rounded to float64."""
        return np.array([float(prob) for prob in self.probs])

    def argmax(self) -> int:
        """Return the most probable token, the lowest id on ties."""
        return max(range(self._vocab_size), key=lambda token: (self.probs[token], -token))

    def _excess(self, other: Law, scale: Any) -> tuple[Any, Law | None]:
        pairs = ((prob, Fraction(other.prob(t))) for t, prob in enumerate(self.probs))
        excess = [max(scale * prob - taken, Fraction(0)) for prob, taken in pairs]
        mass = sum(excess, Fraction(0))
        return mass, (FractionLaw(excess) if mass > 0 else None)
