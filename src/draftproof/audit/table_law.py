"""Laws as short lists of floats, and the few operations that wrong rules are made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.core.base_law import Law
from draftproof.errors import InvariantError
from draftproof.testing.branching import Coin, Noise
from draftproof.testing.fraction_law import FractionLaw

__all__ = ["TableLaw", "bend", "items_of", "like", "most_probable"]


class TableLaw(Law):
    """A law over few possible tokens, quick to enumerate; rules take it as any law.

    Parameters
    ----------
    weights : mapping of int to float, or sequence of float
        Weights by token id, not negative, with a positive sum.
    vocab_size : int, optional
        Number of token ids; the length of a sequence where not given.
    """

    __slots__ = ("_edges", "_held", "_ids", "_probs", "_row")

    def __init__(
        self, weights: Mapping[int, float] | Sequence[float], vocab_size: int | None = None
    ) -> None:
        pairs = weights.items() if isinstance(weights, Mapping) else enumerate(weights)
        held = {int(token): float(weight) for token, weight in pairs if weight > 0}
        total = sum(held.values())
        if not 0 < total < float("inf"):
            raise InvariantError(f"weights with sum {total}: expected a finite law")
        self._vocab_size = len(weights) if vocab_size is None else vocab_size
        self._ids = sorted(held)
        self._probs = [held[token] / total for token in self._ids]
        self._edges = list(accumulate(self._probs))
        self._held = dict(zip(self._ids, self._probs, strict=True))
        self._row: NDArray[np.float64] | None = None

    def __repr__(self) -> str:
        """Return a short description."""
        return f"TableLaw({self._held})"

    def items(self) -> Iterable[tuple[int, float]]:
        """Return the possible tokens in rising order with their probabilities."""
        return self._held.items()

    def prob(self, token: int) -> float:
        """Return the probability of a token."""
        return self._held.get(token, 0.0)

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids."""
        return np.array([self.prob(token) for token in token_ids.tolist()])

    def draw(self, u: Any) -> int:
        """Return the token at the point ``u``, a branching coin or a number."""
        if isinstance(u, Coin):
            return self._ids[u.pick(self._probs, self._edges)]
        return self._ids[min(bisect_right(self._edges, u), len(self._ids) - 1)]

    def race(self, noise: Any) -> int:
        """Return the winner of the race over noise, branching or real, shape (V,)."""
        if isinstance(noise, Noise):
            return noise.race(self.dense().tolist())
        return min(self._ids, key=lambda token: noise[token] / self._held[token])

    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, shape (V,)."""
        if self._row is None:
            self._row = np.zeros(self._vocab_size)
            self._row[self._ids] = self._probs
        return self._row.copy()

    def _excess(self, other: Law, scale: Any) -> tuple[float, Law | None]:
        left = {
            token: max(scale * prob - other.prob(token), 0.0) for token, prob in self._held.items()
        }
        mass = sum(left.values())
        return mass, TableLaw(left, self._vocab_size) if mass > 0 else None


def items_of(law: Law) -> Iterable[tuple[int, Any]]:
    """Return the tokens of a law with their probabilities.

    Parameters
    ----------
    law : Law
        A law of tables, of fractions, or any other.

    Returns
    -------
    iterable of (int, number)
        Rising ids; fractions stay fractions.
    """
    if isinstance(law, TableLaw):
        return law.items()
    return enumerate(law.probs if isinstance(law, FractionLaw) else law.dense().tolist())


def like(law: Law, weights: Mapping[int, Any]) -> Law:
    """Return a law of the same kind with other weights.

    Parameters
    ----------
    law : Law
        Gives the kind and the vocabulary.
    weights : mapping of int to number
        Weights by token, 0 where not given. If all are 0 the law itself comes back.

    Returns
    -------
    Law
        Normalised.
    """
    if not any(weights.values()):
        return law
    if isinstance(law, FractionLaw):
        return FractionLaw([weights.get(token, 0) for token in range(law.vocab_size)])
    return TableLaw({token: float(w) for token, w in weights.items()}, law.vocab_size)


def bend(law: Law, weight: Callable[[int, Any], Any]) -> Law:
    """Return the law whose weights are a function of token and probability.

    Parameters
    ----------
    law : Law
        The law.
    weight : callable of (int, number)
        The new weight.

    Returns
    -------
    Law
        Of the same kind.
    """
    return like(law, {token: weight(token, prob) for token, prob in items_of(law)})


def most_probable(law: Law, count: int = 1) -> list[int]:
    """Return the most probable tokens, the lowest ids on ties."""
    ranked = sorted(items_of(law), key=lambda item: (-item[1], item[0]))
    return [token for token, prob in ranked[:count] if prob > 0]
