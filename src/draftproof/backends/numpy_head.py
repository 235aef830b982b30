"""A draft head in plain numpy: the definition, and what runs where OpenVINO does not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftproof.models.head_files import HeadWeights

__all__ = ["NumpyHead"]

Floats = NDArray[np.float32]


class NumpyHead:
    """Runs a draft head in float32.

    Parameters
    ----------
    head : HeadWeights
        The head.
    embedding, output : ndarray of float32, shape (V, E)
        The target's matrices.
    """

    def __init__(self, head: HeadWeights, embedding: Floats, output: Floats) -> None:
        self.shape = head.shape
        self.draft_ids = head.draft_ids.astype(np.intp)
        self._weights = head.tensors
        self._embedding = embedding
        self._drafted = np.ascontiguousarray(output[head.draft_ids])

    def run(
        self,
        features: Floats,
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        keys: Floats,
        values: Floats,
        mask: Floats,
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Run one pass; see `draftproof.proposers.draft_head.HeadRunner.run`."""
        layer = "transformer."
        embedded = self._norm(self._embedding[token_ids], "embedding_layernorm")
        joined = np.concatenate([embedded, features], axis=-1)
        hidden = self._product(joined, "fusion_fc")
        normed = self._norm(hidden, layer + "input_layernorm")
        query, key, value = (
            self._heads(self._product(normed, f"{layer}self_attn.{part}_proj")) for part in "qkv"
        )
        query, key = self._rotate(query, positions), self._rotate(key, positions)
        added = self._attend(
            query, np.concatenate([keys, key], 2), np.concatenate([values, value], 2), mask
        )
        hidden = (hidden + self._product(added, layer + "self_attn.o_proj"))[:, -1]
        normed = self._norm(hidden, layer + "post_attention_layernorm")
        gate = self._product(normed, layer + "mlp.gate_proj")
        inner = gate / (1 + np.exp(-gate)) * self._product(normed, layer + "mlp.up_proj")
        hidden = hidden + self._product(inner, layer + "mlp.down_proj")
        feature = self._norm(hidden, "pre_lm_head_layernorm")
        return feature, feature @ self._drafted.T, key, value

    def _product(self, values: Floats, name: str) -> Floats:
        product: Floats = values @ self._weights[f"{name}.weight"].T
        return product

    def _norm(self, values: Floats, name: str) -> Floats:
        square = np.mean(values * values, axis=-1, keepdims=True)
        scale = 1 / np.sqrt(square + np.float32(self.shape.norm_epsilon))
        normed: Floats = (values * scale * self._weights[f"{name}.weight"]).astype(np.float32)
        return normed

    def _heads(self, values: Floats) -> Floats:
        rows, tokens, _width = values.shape
        split = values.reshape(rows, tokens, -1, self.shape.head_dim)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3))

    def _rotate(self, heads: Floats, positions: NDArray[np.int64]) -> Floats:
        half = self.shape.head_dim // 2
        frequencies = self.shape.rope_theta ** -(np.arange(half) / half)
        angles = positions[:, None, :, None] * frequencies
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        left, right = heads[..., :half], heads[..., half:]
        return np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)

    def _attend(self, query: Floats, keys: Floats, values: Floats, mask: Floats) -> Floats:
        groups = self.shape.num_heads // self.shape.num_kv_heads
        keys, values = keys.repeat(groups, axis=1), values.repeat(groups, axis=1)
        scores = query @ keys.swapaxes(2, 3) * np.float32(self.shape.head_dim**-0.5)
        scores += mask[:, None]
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed: Floats = (weights @ values).transpose(0, 2, 1, 3)
        return mixed.reshape(*mixed.shape[:2], -1)
