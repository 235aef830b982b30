"""The draft head in torch, in the form that trains: whole sequences, several steps deep.

Shapes in comments: B sequences, T positions, E width, H heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import silu

from draftproof.models.head_files import HeadShape

__all__ = ["DraftHead"]

Tensor = Any


class _Norm(nn.Module):
    """Root-mean-square norm."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._epsilon = epsilon

    def forward(self, values: Tensor) -> Tensor:
        """Scale the last axis to a mean square of 1, then by the weight."""
        scale = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return values * scale * self.weight


class _Attention(nn.Module):
    """Weights of the attention; `DraftHead.unroll` says who sees whom."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)


class _FeedForward(nn.Module):
    """A gated feed-forward network."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.down_proj = nn.Linear(shape.ffn_size, shape.hidden_size, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        """Apply it to the last axis."""
        return self.down_proj(silu(self.gate_proj(values)) * self.up_proj(values))


class _Layer(nn.Module):
    """One decoder layer, by the names of Llama's."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.input_layernorm = _Norm(shape.hidden_size, shape.norm_epsilon)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = _Norm(shape.hidden_size, shape.norm_epsilon)
        self.mlp = _FeedForward(shape)


class DraftHead(nn.Module):
    """A draft head whose parameters have the names of `HeadShape.tensors`.

    Parameters
    ----------
    shape : HeadShape
        Its numbers.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding_layernorm = _Norm(shape.hidden_size, shape.norm_epsilon)
        self.fusion_fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=False)
        self.transformer = _Layer(shape)
        self.pre_lm_head_layernorm = _Norm(shape.hidden_size, shape.norm_epsilon)
        with torch.no_grad():
            # What the layer adds starts small: the fusion alone is a good linear guess.
            self.transformer.self_attn.o_proj.weight.mul_(0.1)
            self.transformer.mlp.down_proj.weight.mul_(0.1)

    def unroll(self, features: Tensor, embedded: Tensor, steps: int) -> list[Tensor]:
        """Predict features, then predict from what was predicted, as drafting does.

        Parameters
        ----------
        features : torch.Tensor, shape (B, T, E)
            ``features[:, i]`` is the target's feature before token ``i``.
        embedded : torch.Tensor, shape (B, T, E)
            Embeddings of the tokens.
        steps : int
            How many predictions in a row.

        Returns
        -------
        list of torch.Tensor, each of shape (B, T, E)
            Entry ``k`` predicts the feature after token ``i`` where the last ``k``
            features before it were predicted too. Its first ``k`` positions are no
            predictions.

        Notes
        -----
        In step k a position attends to true features up to k positions before it, and to
        what steps 1 to k made of the k positions since: training-time test of EAGLE-3.
        """
        embedded = self.embedding_layernorm(embedded)
        length, half = embedded.shape[1], self.shape.head_dim // 2
        places = torch.arange(length, dtype=torch.float32)
        exponents = torch.arange(half, dtype=torch.float32) / half
        angles = places[:, None] * self.shape.rope_theta**-exponents
        turns = torch.cat([angles, angles], -1)
        rotation = (turns.cos(), turns.sin())
        distance = places[:, None] - places[None, :]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        found: list[Tensor] = []
        for step in range(steps):
            visible = (distance >= step) & (distance < self.shape.window)
            mixed = torch.cat([embedded, features], -1)
            predicted = self._layer(self.fusion_fc(mixed), rotation, visible, keys, values)
            found.append(predicted)
            features = torch.cat([torch.zeros_like(predicted[:, :1]), predicted[:, :-1]], 1)
        return found

    def _layer(
        self,
        hidden: Tensor,
        rotation: tuple[Tensor, Tensor],
        visible: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        """Run the layer; add its keys and values to those of the steps before."""
        layer, attention = self.transformer, self.transformer.self_attn
        normed = layer.input_layernorm(hidden)
        query = _rotated(self._heads(attention.q_proj(normed), self.shape.num_heads), rotation)
        repeats = self.shape.num_heads // self.shape.num_kv_heads
        key = _rotated(self._heads(attention.k_proj(normed), self.shape.num_kv_heads), rotation)
        keys.append(key.repeat_interleave(repeats, 1))  # (B, H, T, D)
        value = self._heads(attention.v_proj(normed), self.shape.num_kv_heads)
        values.append(value.repeat_interleave(repeats, 1))
        query = query * self.shape.head_dim**-0.5
        scores = [(query @ keys[0].transpose(2, 3)).masked_fill(~visible, -1e9)]
        late = [(_moved(each, len(keys) - 1 - m), m) for m, each in enumerate(keys) if m]
        scores += [(query * moved).sum(-1, keepdim=True) for moved, _m in late]
        weights = torch.cat(scores, -1).softmax(-1)
        length = hidden.shape[1]
        mixed = weights[..., :length] @ values[0]
        for index, (_key, m) in enumerate(late):
            at = length + index
            mixed = mixed + weights[..., at : at + 1] * _moved(values[m], len(keys) - 1 - m)
        joined = mixed.transpose(1, 2).reshape(*hidden.shape[:2], -1)
        hidden = hidden + attention.o_proj(joined)
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.pre_lm_head_layernorm(hidden)

    def _heads(self, values: Tensor, count: int) -> Tensor:
        """Split the last axis into heads, (B, count, T, D)."""
        split = values.view(*values.shape[:2], count, self.shape.head_dim)
        return split.transpose(1, 2)


def _rotated(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn entry i with entry i + D / 2 of every head."""
    half = heads.shape[-1] // 2
    turned = torch.cat([-heads[..., half:], heads[..., :half]], -1)
    return heads * rotation[0] + turned * rotation[1]


def _moved(values: Tensor, by: int) -> Tensor:
    """Let position i hold what position i - by held."""
    if by == 0:
        return values
    return torch.cat([torch.zeros_like(values[:, :, :by]), values[:, :, :-by]], 2)
