"""A Llama-like decoder as an OpenVINO graph, built from the weights of a GGUF file.

The graph is written in the stateful form: every layer reads its past keys and values
from a variable, joins the new ones and writes them back. Nothing runs it that way.
`draftproof.backends.openvino.paging` replaces each attention and its variables by one
paged attention, which needs exactly this form to recognise them.

Shapes in comments: B rows, S tokens, E hidden width, H query heads, K key-value heads,
D head width, F feed-forward width. After paging, B is the number of tokens and S is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset4, opset6
from openvino import opset13 as ops

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino.weights import Precision, weight_node

__all__ = ["build_graph"]


def build_graph(weights: DecoderWeights, precision: Precision) -> Any:
    """Build the stateful graph of a decoder.

    Parameters
    ----------
    weights : DecoderWeights
        The model.
    precision : {"f32", "f16", "int8"}
        How the matrices are kept; norms and biases are always float32.

    Returns
    -------
    openvino.Model
        Inputs ``input_ids`` and ``position_ids`` (B, S) and ``beam_idx`` (B,), output
        ``logits`` (B, S, V).

    Raises
    ------
    ModelFileError
        If a tensor cannot be decoded or does not fit the precision.
    """
    return _Builder(weights, precision).model()


def _ints(*values: int) -> Any:
    """Return a constant vector of int64."""
    return ops.constant(np.array(values, dtype=np.int64))


def _int(value: int) -> Any:
    """Return a constant scalar of int64."""
    return ops.constant(np.array(value, dtype=np.int64))


def _input(name: str, rank: int) -> Any:
    """Return a named integer input of dynamic extents."""
    node = ops.parameter(ov.PartialShape([-1] * rank), ov.Type.i64, name=name)
    node.output(0).get_tensor().set_names({name})
    return node


def _halves_first(array: NDArray[np.float32], num_heads: int, head_dim: int) -> NDArray[np.float32]:
    """Reorder the outputs of each head from interleaved pairs to two halves.

    Queries and keys are reordered alike, so every product of the two stays the same.
    """
    grouped = array.reshape(num_heads, head_dim // 2, 2, -1)
    return np.ascontiguousarray(grouped.swapaxes(1, 2)).reshape(array.shape)


class _Builder:
    """Holds what all layers share while the graph grows."""

    def __init__(self, weights: DecoderWeights, precision: Precision) -> None:
        self._weights = weights
        self._shape = weights.shape
        self._precision: Precision = precision
        self._sinks: list[Any] = []
        self._input_ids = _input("input_ids", 2)
        self._position_ids = _input("position_ids", 2)
        self._beam_idx = _input("beam_idx", 1)
        self._batch = ops.gather(ops.shape_of(self._input_ids), _ints(0), _int(0))
        self._cos, self._sin = self._angles()

    def model(self) -> Any:
        """Return the whole graph."""
        table = weight_node(self._weights.tensor("token_embd.weight"), self._precision)
        hidden = ops.gather(table, self._input_ids, _int(0))  # (B, S, E)
        for layer in range(self._shape.num_layers):
            hidden = ops.add(hidden, self._attention(layer, hidden))
            hidden = ops.add(hidden, self._feed_forward(layer, hidden))
        hidden = self._norm(hidden, "output_norm.weight")
        head = table
        if not self._shape.tied_head:
            head = weight_node(self._weights.tensor("output.weight"), self._precision)
        logits = ops.matmul(hidden, head, False, True)
        logits.output(0).get_tensor().set_names({"logits"})
        inputs = [self._input_ids, self._position_ids, self._beam_idx]
        return ov.Model([ops.result(logits)], self._sinks, inputs, "draftproof_decoder")

    def _angles(self) -> tuple[Any, Any]:
        """Return cosine and sine of all positions, (B, 1, S, D)."""
        frequencies = ops.constant(self._weights.inverse_frequencies().reshape(1, 1, -1))
        positions = ops.unsqueeze(ops.convert(self._position_ids, ov.Type.f32), _int(2))
        half = ops.multiply(positions, frequencies)
        angles = ops.concat([half, half], -1)
        return ops.unsqueeze(ops.cos(angles), _int(1)), ops.unsqueeze(ops.sin(angles), _int(1))

    def _norm(self, values: Any, name: str) -> Any:
        """Root-mean-square norm over the last axis, in the form that gets fused."""
        scale = self._weights.tensor(name)
        square = ops.power(values, ops.constant(np.float32(2)))
        mean = ops.reduce_mean(square, _ints(-1), True)
        root = ops.sqrt(ops.add(mean, ops.constant(np.float32(self._shape.norm_epsilon))))
        normed = ops.multiply(values, ops.divide(ops.constant(np.float32(1)), root))
        return ops.multiply(normed, ops.constant(scale))

    def _matmul(self, values: Any, *arrays: NDArray[np.float32]) -> Any:
        """Multiply by weights stacked into one matrix: one pass over the activations."""
        matrix = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return ops.matmul(values, weight_node(matrix, self._precision), False, True)

    def _attention(self, layer: int, hidden: Any) -> Any:
        """Return what the attention of a layer adds, (B, S, E)."""
        shape, prefix = self._shape, f"blk.{layer}."
        normed = self._norm(hidden, prefix + "attn_norm.weight")
        query, key, value = self._heads(prefix, normed)
        key = self._remember(f"past_key_values.{layer}.key", key)
        value = self._remember(f"past_key_values.{layer}.value", value)
        mixed = ops.scaled_dot_product_attention(
            query,
            self._repeat_heads(key),
            self._repeat_heads(value),
            # Paged attention is causal by itself; the form just asks for some mask.
            ops.constant(np.zeros((1, 1, 1, 1), dtype=np.float32)),
            ops.constant(np.float32(shape.head_dim**-0.5)),
        )
        mixed = ops.transpose(mixed, _ints(0, 2, 1, 3))
        mixed = ops.reshape(mixed, _ints(0, 0, shape.num_heads * shape.head_dim), True)
        out = self._matmul(mixed, self._weights.tensor(prefix + "attn_output.weight"))
        if self._weights.has(prefix + "attn_output.bias"):
            bias = self._weights.tensor(prefix + "attn_output.bias")
            out = ops.add(out, ops.constant(bias))
        return out

    def _heads(self, prefix: str, normed: Any) -> tuple[Any, Any, Any]:
        """Return rotated queries (B, H, S, D), rotated keys and values (B, K, S, D)."""
        shape = self._shape
        counts = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        joined = self._matmul(
            normed,
            *(
                self._projection(prefix, part, "weight", n)
                for part, n in zip("qkv", counts, strict=True)
            ),
        )
        if self._weights.has(prefix + "attn_q.bias"):
            biases = [
                self._projection(prefix, part, "bias", n)
                for part, n in zip("qkv", counts, strict=True)
            ]
            joined = ops.add(joined, ops.constant(np.concatenate(biases)))
        widths = _ints(*(count * shape.head_dim for count in counts))
        parts = ops.variadic_split(joined, _int(2), widths)
        query, key, value = (
            ops.reshape(parts.output(i), _ints(0, 0, count, shape.head_dim), True)
            for i, count in enumerate(counts)
        )
        if self._weights.has(prefix + "attn_q_norm.weight"):
            query = self._norm(query, prefix + "attn_q_norm.weight")
            key = self._norm(key, prefix + "attn_k_norm.weight")
        query, key, value = (ops.transpose(part, _ints(0, 2, 1, 3)) for part in (query, key, value))
        return self._rotate(query), self._rotate(key), value

    def _projection(self, prefix: str, part: str, kind: str, count: int) -> NDArray[np.float32]:
        """Return weight or bias of queries, keys or values, with halves first."""
        array = self._weights.tensor(f"{prefix}attn_{part}.{kind}")
        if part == "v" or self._shape.rotation == "halves":
            return array
        return _halves_first(array, count, self._shape.head_dim)

    def _rotate(self, heads: Any) -> Any:
        """Turn entry i with entry i + D / 2 of every head, in the form that gets fused."""
        half = self._shape.head_dim // 2
        parts = ops.variadic_split(heads, _int(3), _ints(half, half))
        negated = ops.multiply(parts.output(1), ops.constant(np.float32(-1)))
        turned = ops.concat([negated, parts.output(0)], -1)
        return ops.add(ops.multiply(heads, self._cos), ops.multiply(turned, self._sin))

    def _remember(self, name: str, new: Any) -> Any:
        """Join new keys or values to the remembered ones, (B, K, past + S, D)."""
        shape = self._shape
        extents = ops.concat([self._batch, _ints(shape.num_kv_heads, 0, shape.head_dim)], 0)
        empty = ops.broadcast(ops.constant(np.float32(0)), extents)
        held = ov.PartialShape([-1, shape.num_kv_heads, -1, shape.head_dim])
        past = opset6.read_value(empty, name, ov.Type.f32, held)
        joined = ops.concat([ops.gather(past, self._beam_idx, _int(0)), new], 2)
        self._sinks.append(opset6.assign(joined, name))
        return joined

    def _repeat_heads(self, heads: Any) -> Any:
        """Give every query head its key-value head, (B, H, S, D)."""
        shape = self._shape
        repeats = shape.num_heads // shape.num_kv_heads
        if repeats == 1:
            return heads
        length = ops.gather(ops.shape_of(heads), _ints(2), _int(0))
        extents = ops.concat(
            [self._batch, _ints(shape.num_kv_heads, repeats), length, _ints(shape.head_dim)], 0
        )
        wide = ops.broadcast(ops.unsqueeze(heads, _int(2)), extents, "BIDIRECTIONAL")
        return ops.reshape(wide, _ints(0, shape.num_heads, -1, shape.head_dim), True)

    def _feed_forward(self, layer: int, hidden: Any) -> Any:
        """Return what the gated feed-forward network of a layer adds, (B, S, E)."""
        prefix, size = f"blk.{layer}.", self._shape.ffn_size
        tensor = self._weights.tensor
        normed = self._norm(hidden, prefix + "ffn_norm.weight")
        joined = self._matmul(
            normed, tensor(prefix + "ffn_gate.weight"), tensor(prefix + "ffn_up.weight")
        )
        parts = ops.variadic_split(joined, _int(2), _ints(size, size))
        gated = ops.multiply(opset4.swish(parts.output(0)), parts.output(1))
        return self._matmul(gated, tensor(prefix + "ffn_down.weight"))
