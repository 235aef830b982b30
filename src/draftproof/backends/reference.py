"""A decoder in plain numpy, to measure other runtimes against.

Written for reading, not for speed, and sharing nothing with the graph that it checks:
heads are rotated the way the file stores them, attention is one matrix per head, and
there is no cache. One layer's weights are decoded at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.decoder_weights import DecoderWeights

__all__ = ["next_token_laws", "reference_logits", "total_variation"]

Array = NDArray[np.float32]


def reference_logits(weights: DecoderWeights, token_ids: NDArray[np.int32]) -> Array:
    """Score every position of some sequences of one length.

    Parameters
    ----------
    weights : DecoderWeights
        The model.
    token_ids : ndarray of int32, shape (S, T)
        S sequences of T tokens each.

    Returns
    -------
    ndarray of float32, shape (S, T, V)
        Raw logits; row ``t`` scores the token after position ``t``.
    """
    shape = weights.shape
    embedding = weights.tensor("token_embd.weight")
    hidden: Array = embedding[token_ids]
    angles = np.arange(token_ids.shape[1])[:, None] * weights.inverse_frequencies()
    for layer in range(shape.num_layers):
        prefix = f"blk.{layer}."
        normed = _norm(hidden, weights.tensor(prefix + "attn_norm.weight"), shape.norm_epsilon)
        hidden = hidden + _attention(weights, prefix, normed, angles)
        normed = _norm(hidden, weights.tensor(prefix + "ffn_norm.weight"), shape.norm_epsilon)
        gate = _times(normed, weights.tensor(prefix + "ffn_gate.weight"))
        up = _times(normed, weights.tensor(prefix + "ffn_up.weight"))
        # exp may overflow to inf for very negative gates; the quotient is then right: 0.
        with np.errstate(over="ignore"):
            activated = np.asarray(gate / (1 + np.exp(-gate)) * up, dtype=np.float32)
        hidden = hidden + _times(activated, weights.tensor(prefix + "ffn_down.weight"))
    hidden = _norm(hidden, weights.tensor("output_norm.weight"), shape.norm_epsilon)
    head = embedding if shape.tied_head else weights.tensor("output.weight")
    return _times(hidden, head)


def next_token_laws(logits: Array) -> NDArray[np.float64]:
    """Turn logits into probabilities at temperature 1.

    Parameters
    ----------
    logits : ndarray of float32, shape (..., V)
        Raw logits.

    Returns
    -------
    ndarray of float64, shape (..., V)
        Rows that sum to 1.
    """
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    weights = np.exp(shifted)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def total_variation(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return half the absolute difference of laws, summed over the vocabulary.

    Parameters
    ----------
    first, second : ndarray of float64, shape (..., V)
        Probabilities.

    Returns
    -------
    ndarray of float64, shape (...)
        Between 0 (equal) and 1 (disjoint).
    """
    return np.asarray(0.5 * np.abs(first - second).sum(axis=-1))


def _times(values: Array, matrix: Array) -> Array:
    """Multiply vectors (S, T, columns) by a matrix (rows, columns), as one product."""
    flat = values.reshape(-1, values.shape[-1]) @ matrix.T
    return np.asarray(flat.reshape(*values.shape[:-1], -1))


def _norm(values: Array, scale: Array, epsilon: float) -> Array:
    """Divide by the root of the mean square over the last axis, and scale."""
    mean_square = np.mean(values * values, axis=-1, keepdims=True)
    return np.asarray(values / np.sqrt(mean_square + np.float32(epsilon)) * scale)


def _attention(weights: DecoderWeights, prefix: str, normed: Array, angles: Array) -> Array:
    """Causal attention of one layer, for input of shape (S, T, E)."""
    shape = weights.shape
    count, length, _ = normed.shape
    queries = _project(weights, prefix + "attn_q", normed)
    keys = _project(weights, prefix + "attn_k", normed)
    values = _project(weights, prefix + "attn_v", normed)
    queries = queries.reshape(count, length, shape.num_heads, shape.head_dim)
    keys = keys.reshape(count, length, shape.num_kv_heads, shape.head_dim)
    values = values.reshape(count, length, shape.num_kv_heads, shape.head_dim)
    if weights.has(prefix + "attn_q_norm.weight"):
        queries = _norm(queries, weights.tensor(prefix + "attn_q_norm.weight"), shape.norm_epsilon)
        keys = _norm(keys, weights.tensor(prefix + "attn_k_norm.weight"), shape.norm_epsilon)
    pairs = _pairs(shape.rotation, shape.head_dim)
    queries, keys = _rotate(queries, angles, pairs), _rotate(keys, angles, pairs)
    future = np.triu(np.ones((length, length), dtype=bool), 1)
    mixed = np.empty_like(queries)
    for head in range(shape.num_heads):
        shared = head * shape.num_kv_heads // shape.num_heads
        scores = queries[:, :, head] @ keys[:, :, shared].swapaxes(1, 2)
        scores = scores / np.float32(np.sqrt(shape.head_dim))
        scores[:, future] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed[:, :, head] = scores @ values[:, :, shared]
    return _project(weights, prefix + "attn_output", mixed.reshape(count, length, -1))


def _project(weights: DecoderWeights, name: str, values: Array) -> Array:
    """Multiply by a weight, and add its bias if it has one."""
    out = _times(values, weights.tensor(name + ".weight"))
    if weights.has(name + ".bias"):
        out = out + weights.tensor(name + ".bias")
    return np.asarray(out)


def _pairs(rotation: str, head_dim: int) -> tuple[Sequence[int], Sequence[int]]:
    """Return the entries of a head that turn together."""
    if rotation == "interleaved":
        return range(0, head_dim, 2), range(1, head_dim, 2)
    return range(head_dim // 2), range(head_dim // 2, head_dim)


def _rotate(heads: Array, angles: Array, pairs: tuple[Sequence[int], Sequence[int]]) -> Array:
    """Turn pairs of entries of heads (S, T, H, D) by the angles (T, D / 2)."""
    first, second = heads[..., list(pairs[0])], heads[..., list(pairs[1])]
    cosine = np.cos(angles)[:, None].astype(np.float32)
    sine = np.sin(angles)[:, None].astype(np.float32)
    turned = np.empty_like(heads)
    turned[..., list(pairs[0])] = first * cosine - second * sine
    turned[..., list(pairs[1])] = first * sine + second * cosine
    return turned
