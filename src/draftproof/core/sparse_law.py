"""Laws with few possible tokens: one that is certain, or a handful with weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.core.base_law import Law
from draftproof.core.noise import PositionNoise
from draftproof.core.weights import as_weights, check_law, first_above, plain_race, read_only
from draftproof.errors import InvariantError

__all__ = ["OneHotLaw", "SparseLaw"]


class OneHotLaw(Law):
    """The law of a token that is certain.

    Parameters
    ----------
    token : int
        The certain token.
    vocab_size : int
        Number of token ids V.

    Raises
    ------
    InvariantError
        If the token lies outside the vocabulary.
    """

    __slots__ = ("token",)

    def __init__(self, token: int, vocab_size: int) -> None:
        if not 0 <= token < vocab_size:
            raise InvariantError(f"token {token}: expected an id in [0, {vocab_size})")
        self.token = int(token)
        self._vocab_size = vocab_size

    def __repr__(self) -> str:
        """Return the call that makes an equal law."""
        return f"OneHotLaw({self.token}, {self._vocab_size})"

    @property
    def is_one_hot(self) -> bool:
        """Always True."""
        return True

    def prob(self, token: int) -> float:
        """Return 1 for the certain token, else 0."""
        return 1.0 if token == self.token else 0.0

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return 1 where the certain token stands, else 0."""
        probs: NDArray[np.float64] = (np.asarray(token_ids) == self.token).astype(np.float64)
        return probs

    def draw(self, u: float) -> int:  # noqa: ARG002
        """Return the certain token."""
        return self.token

    def race(self, noise: NDArray[np.float64] | PositionNoise) -> int:  # noqa: ARG002
        """Return the certain token."""
        return self.token

    def dense(self) -> NDArray[np.float64]:
        """Return a row of zeros with one 1."""
        row = np.zeros(self._vocab_size)
        row[self.token] = 1.0
        return row

    def _excess(self, other: Law, scale: float) -> tuple[float, Law | None]:
        return scale - other.prob(self.token), self


class SparseLaw(Law):
    """A law with few possible tokens.

    Parameters
    ----------
    ids : array_like of int, shape (N,)
        Possible tokens, no id twice.
    weights : array_like of float, shape (N,)
        Their weights, finite and not negative, with a positive total.
    vocab_size : int
        Number of token ids V.

    Raises
    ------
    InvariantError
        If the weights are no law or an id is repeated or outside the vocabulary.
    """

    __slots__ = ("_cumulative", "_ids", "_total", "_weights")

    def __init__(self, ids: ArrayLike, weights: ArrayLike, vocab_size: int) -> None:
        id_array = np.asarray(ids, dtype=np.intp)
        weight_array = as_weights(weights)
        if id_array.shape != weight_array.shape:
            msg = f"{id_array.shape} ids with {weight_array.shape} weights: expected one each"
            raise InvariantError(msg)
        order = np.argsort(id_array, kind="stable")
        id_array, weight_array = id_array[order], weight_array[order]
        if id_array[0] < 0 or id_array[-1] >= vocab_size or (np.diff(id_array) == 0).any():
            msg = f"ids {id_array[0]}..{id_array[-1]}: expected distinct ids in [0, {vocab_size})"
            raise InvariantError(msg)
        self._hold(id_array, weight_array, vocab_size)
        check_law(weight_array, self._total)

    @classmethod
    def _trusted(cls, ids: NDArray[np.intp], weights: NDArray[Any], vocab_size: int) -> SparseLaw:
        law = cls.__new__(cls)
        law._hold(ids, weights, vocab_size)
        return law

    def _hold(self, ids: NDArray[np.intp], weights: NDArray[Any], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._ids = ids
        self._weights = weights
        self._cumulative = np.cumsum(weights, dtype=np.float64)
        self._total = float(self._cumulative[-1])

    def __repr__(self) -> str:
        """Return a short description."""
        return f"SparseLaw(<{len(self._ids)} of {self._vocab_size} tokens>)"

    @property
    def ids(self) -> NDArray[np.intp]:
        """The possible tokens in rising order, shape (N,)."""
        return read_only(self._ids)

    def prob(self, token: int) -> float:
        """Return the probability of a token; 0 for an id that is not held."""
        slot = int(self._ids.searchsorted(token))
        if slot == len(self._ids) or self._ids.item(slot) != token:
            return 0.0
        return float(self._weights.item(slot)) / self._total

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids."""
        slots = np.minimum(self._ids.searchsorted(token_ids), len(self._ids) - 1)
        probs: NDArray[np.float64] = self._weights[slots].astype(np.float64)
        probs[self._ids[slots] != token_ids] = 0.0
        probs /= self._total
        return probs

    def draw(self, u: float) -> int:
        """Return the first held token whose cumulative probability exceeds ``u``."""
        slot = first_above(self._cumulative, self._weights, u * self._total)
        return int(self._ids.item(slot))

    def race(self, noise: NDArray[np.float64] | PositionNoise) -> int:
        """Return the argmin of noise / prob over the held tokens."""
        if isinstance(noise, PositionNoise) and not noise.is_small:
            return noise.winner_among(self._ids, self._weights)
        return int(self._ids.item(plain_race(noise[self._ids], self._weights)))

    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, shape (V,)."""
        row = np.zeros(self._vocab_size)
        row[self._ids] = self._weights
        row /= self._total
        return row

    def _excess(self, other: Law, scale: float) -> tuple[float, Law | None]:
        # In units of this law's weights; only held tokens can have an excess.
        excess = other.probs_at(self._ids)
        excess *= -(self._total / scale)
        excess += self._weights
        np.maximum(excess, 0.0, out=excess)
        law = SparseLaw._trusted(self._ids, excess, self._vocab_size)
        return scale * (law._total / self._total), law
