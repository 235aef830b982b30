"""What laws do with arrays of weights: check, sum in blocks, find a point, race."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.errors import InvariantError

__all__ = [
    "BLOCK",
    "as_weights",
    "block_sums",
    "check_law",
    "first_above",
    "plain_race",
    "read_only",
]

#: Entries per block of a dense law. A draw looks at all block sums, then inside
#: one block; about the square root of usual vocabularies balances the two.
BLOCK = 256


def as_weights(weights: ArrayLike) -> NDArray[Any]:
    """Return weights as an array of float32 or float64, shape (V,); refuse other shapes."""
    array = np.asarray(weights)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    if array.ndim != 1 or array.size == 0:
        raise InvariantError(f"weights of shape {array.shape}: expected (V,) with V > 0")
    return array


def check_law(weights: NDArray[Any], total: float) -> None:
    """Refuse weights that are negative, not finite or all 0."""
    # NaN and infinities reach the total; a negative weight may not.
    if not 0.0 < total < math.inf or not weights.min() >= 0.0:
        msg = f"weights with total {total}, minimum {weights.min()}: expected a finite law"
        raise InvariantError(msg)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view that may not be written to."""
    view = array.view()
    view.flags.writeable = False
    return view


def block_sums(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Return the float64 sum of every `BLOCK` neighbours; the last block may be short."""
    if len(weights) < BLOCK:
        total: NDArray[np.float64] = np.add.reduce(weights, dtype=np.float64, keepdims=True)
        return total
    whole = len(weights) // BLOCK
    blocks = weights[: whole * BLOCK].reshape(whole, BLOCK)
    body: NDArray[np.float64] = blocks.sum(axis=1, dtype=np.float64)
    if whole * BLOCK == len(weights):
        return body
    return np.append(body, weights[whole * BLOCK :].sum(dtype=np.float64))


def first_above(cumulative: NDArray[np.float64], weights: NDArray[Any], point: float) -> int:
    """Return the first index whose cumulative weight exceeds the point.

    A strict step means a positive weight. Rounding can leave no such index; the
    last positive weight is then the right one.
    """
    slot = int(cumulative.searchsorted(point, side="right"))
    if slot < len(cumulative):
        return slot
    return int(np.flatnonzero(weights)[-1])


def plain_race(noise: NDArray[np.float64], weights: NDArray[Any]) -> int:
    """Return the argmin of noise / weight among positive weights, the lowest on ties."""
    times = np.full(len(weights), np.inf)
    with np.errstate(over="ignore"):  # denormal float64 weights
        np.divide(noise, weights, out=times, where=weights > 0.0)
    winner = int(times.argmin())
    return winner if times[winner] < np.inf else int(np.flatnonzero(weights)[0])
