"""Raw log-probabilities: the model's own, before any policy, in float64."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.core.truncation import largest
from draftproof.errors import ConfigError, NonFiniteLogitsError

__all__ = ["log_softmax_at", "top_logprobs"]


def log_softmax_at(logits: NDArray[np.float32], token_ids: ArrayLike) -> NDArray[np.float64]:
    """Return the raw log-probabilities of some tokens.

    Parameters
    ----------
    logits : ndarray of float32, shape (V,)
        Raw logits of the emitting row.
    token_ids : array_like of int, shape (N,)
        Tokens, in any order.

    Returns
    -------
    ndarray of float64, shape (N,)
        Natural logarithms, -inf where the logit is -inf.

    Raises
    ------
    NonFiniteLogitsError
        If the row holds NaN or +inf, or no finite logit.
    ConfigError
        If a token lies outside the vocabulary.
    """
    ids = np.asarray(token_ids, dtype=np.intp)
    if ids.size and (ids.min() < 0 or ids.max() >= len(logits)):
        raise ConfigError(f"token ids {ids.min()}..{ids.max()}: expected [0, {len(logits)})")
    row = np.asarray(logits)
    peak, log_sum = _normaliser(row)
    values: NDArray[np.float64] = (row[ids].astype(np.float64) - peak) - log_sum
    return values


def top_logprobs(
    logits: NDArray[np.float32], count: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """Return the most probable tokens of a row and their raw log-probabilities.

    Parameters
    ----------
    logits : ndarray of float32, shape (V,)
        Raw logits.
    count : int
        How many, at least 0; at most V are returned.

    Returns
    -------
    token_ids : ndarray of int, shape (N,)
        Falling probability, the lowest id first on ties.
    logprobs : ndarray of float64, shape (N,)
        Their natural logarithms.

    Raises
    ------
    NonFiniteLogitsError
        If the row holds NaN or +inf, or no finite logit.
    ConfigError
        If ``count`` is negative.
    """
    if count < 0:
        raise ConfigError(f"{count} top log-probabilities: expected 0 or more")
    row = np.asarray(logits)
    peak, log_sum = _normaliser(row)
    if count == 0:
        return np.empty(0, dtype=np.intp), np.empty(0)
    slots = largest(row, count)
    ids = np.arange(len(row)) if slots is None else slots
    values = row[ids].astype(np.float64)
    order = np.argsort(-values, kind="stable")
    return ids[order], (values[order] - peak) - log_sum


def _normaliser(row: NDArray[np.float32]) -> tuple[float, float]:
    """Return the peak and the log of the sum above it, apart to keep their digits."""
    peak = float(row.max())
    if not -math.inf < peak < math.inf:
        msg = f"largest logit {peak}: expected a finite one, and no NaN or +inf in the row"
        raise NonFiniteLogitsError(msg)
    shifted = row.astype(np.float64)
    shifted -= peak
    np.exp(shifted, out=shifted)
    return peak, math.log(float(shifted.sum()))
