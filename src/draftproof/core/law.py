"""One probability law over the vocabulary: scored, drawn from and subtracted.

A law is a set of non-negative weights; the law *is* ``weights / total``. Weights
stay in the precision they were made in (float32 from logits), the total and every
sum is float64, and drawing and scoring read the same numbers, so no second
rounding can slip between the law that was drawn from and the law that is scored.

Nothing here knows logits, policies or verification rules.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.core.base_law import Law
from draftproof.errors import InvariantError

__all__ = ["DenseLaw", "Law", "OneHotLaw", "SparseLaw"]

#: Entries per block of a dense law. A draw looks at all block sums, then inside
#: one block; about the square root of usual vocabularies balances the two.
_BLOCK = 256


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

    def race(self, noise: NDArray[np.float64]) -> int:  # noqa: ARG002
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
        weight_array = _as_weights(weights)
        if id_array.shape != weight_array.shape:
            msg = f"{id_array.shape} ids with {weight_array.shape} weights: expected one each"
            raise InvariantError(msg)
        order = np.argsort(id_array, kind="stable")
        id_array, weight_array = id_array[order], weight_array[order]
        if id_array[0] < 0 or id_array[-1] >= vocab_size or (np.diff(id_array) == 0).any():
            msg = f"ids {id_array[0]}..{id_array[-1]}: expected distinct ids in [0, {vocab_size})"
            raise InvariantError(msg)
        self._hold(id_array, weight_array, vocab_size)
        _check_law(weight_array, self._total)

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
        return _read_only(self._ids)

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
        slot = _first_above(self._cumulative, self._weights, u * self._total)
        return int(self._ids.item(slot))

    def race(self, noise: NDArray[np.float64]) -> int:
        """Return the argmin of noise / prob over the held tokens."""
        return int(self._ids.item(_race(noise[self._ids], self._weights)))

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


class DenseLaw(Law):
    """A law that holds a weight for every token.

    Parameters
    ----------
    weights : array_like of float32 or float64, shape (V,)
        Weights, finite and not negative, with a positive total. The array is held,
        not copied: the caller must not write to it any more.

    Raises
    ------
    InvariantError
        If the weights are no law.
    """

    __slots__ = ("_block_sums", "_total", "_weights")

    def __init__(self, weights: ArrayLike) -> None:
        weight_array = _as_weights(weights)
        self._hold(weight_array, _block_sums(weight_array))
        _check_law(weight_array, self._total)

    @classmethod
    def _trusted(
        cls, weights: NDArray[Any], block_sums: NDArray[np.float64] | None = None
    ) -> DenseLaw:
        law = cls.__new__(cls)
        law._hold(weights, _block_sums(weights) if block_sums is None else block_sums)
        return law

    def _hold(self, weights: NDArray[Any], block_sums: NDArray[np.float64]) -> None:
        self._vocab_size = len(weights)
        self._weights = weights
        self._block_sums = block_sums
        self._total = float(block_sums.sum())

    def __repr__(self) -> str:
        """Return a short description."""
        return f"DenseLaw(<{self._vocab_size} tokens, {self._weights.dtype}>)"

    def prob(self, token: int) -> float:
        """Return the probability of a token; 0 for an id outside the vocabulary."""
        if not 0 <= token < self._vocab_size:
            return 0.0
        return float(self._weights.item(token)) / self._total

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids."""
        probs: NDArray[np.float64] = self._weights[token_ids].astype(np.float64)
        probs /= self._total
        return probs

    def draw(self, u: float) -> int:
        """Return the first token whose cumulative probability exceeds ``u``."""
        point = u * self._total
        cumulative = self._block_sums.cumsum()
        block = _first_above(cumulative, self._block_sums, point)
        inside = self._weights[block * _BLOCK : (block + 1) * _BLOCK]
        before = float(cumulative[block - 1]) if block else 0.0
        slot = _first_above(np.cumsum(inside, dtype=np.float64), inside, point - before)
        return block * _BLOCK + slot

    def race(self, noise: NDArray[np.float64]) -> int:
        """Return the argmin of noise / prob."""
        return _race(noise, self._weights)

    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, shape (V,)."""
        probs: NDArray[np.float64] = np.divide(self._weights, self._total, dtype=np.float64)
        return probs

    def _excess(self, other: Law, scale: float) -> tuple[float, Law | None]:
        if isinstance(other, OneHotLaw):
            law = self._without(other.token)
            return scale * (law._total / self._total), law
        # In units of this law's weights, in float64 whatever they are held in.
        unit = self._total / scale
        if isinstance(other, DenseLaw):
            excess = np.multiply(other._weights, unit / other._total, dtype=np.float64)
            np.subtract(self._weights, excess, out=excess)
            np.maximum(excess, 0.0, out=excess)
        elif isinstance(other, SparseLaw):
            excess = self._weights.astype(np.float64)
            taken = excess[other._ids] - unit * other.probs_at(other._ids)
            excess[other._ids] = np.maximum(taken, 0.0)
        else:
            excess = np.maximum(self._weights - unit * other.dense(), 0.0)
        law = DenseLaw._trusted(excess)
        return scale * (law._total / self._total), law

    def _without(self, token: int) -> DenseLaw:
        weights = self._weights.copy()
        weights[token] = 0.0
        block = token // _BLOCK
        sums = self._block_sums.copy()
        sums[block] = weights[block * _BLOCK : (block + 1) * _BLOCK].sum(dtype=np.float64)
        return DenseLaw._trusted(weights, sums)


def _as_weights(weights: ArrayLike) -> NDArray[Any]:
    array = np.asarray(weights)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InvariantError(f"weights of shape {array.shape}: expected (V,) with V > 0")
    return array


def _check_law(weights: NDArray[Any], total: float) -> None:
    # NaN and infinities reach the total; a negative weight may not.
    if not 0.0 < total < math.inf or not weights.min() >= 0.0:
        msg = f"weights with total {total}, minimum {weights.min()}: expected a finite law"
        raise InvariantError(msg)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _block_sums(weights: NDArray[Any]) -> NDArray[np.float64]:
    whole = len(weights) // _BLOCK
    blocks = weights[: whole * _BLOCK].reshape(whole, _BLOCK)
    body: NDArray[np.float64] = blocks.sum(axis=1, dtype=np.float64)
    if whole * _BLOCK == len(weights):
        return body
    return np.append(body, weights[whole * _BLOCK :].sum(dtype=np.float64))


def _first_above(cumulative: NDArray[np.float64], weights: NDArray[Any], point: float) -> int:
    """Return the first index whose cumulative weight exceeds the point.

    A strict step means a positive weight. Rounding can leave no such index; the
    last positive weight is then the right one.
    """
    slot = int(cumulative.searchsorted(point, side="right"))
    if slot < len(cumulative):
        return slot
    return int(np.flatnonzero(weights)[-1])


def _race(noise: NDArray[np.float64], weights: NDArray[Any]) -> int:
    times = np.full(len(weights), np.inf)
    np.divide(noise, weights, out=times, where=weights > 0.0)
    return int(times.argmin())
