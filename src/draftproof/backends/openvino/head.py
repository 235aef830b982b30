"""A draft head as an OpenVINO graph: one layer, whose keys and values the caller keeps.

Shapes: B rows, T tokens of each, C cached positions, E width, H query heads, K key-value
heads of width D, G = H / K, V tokens of the target, N tokens that can be drafted.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset4
from openvino import opset13 as ops

from draftproof.backends.openvino.paging import last_line
from draftproof.backends.openvino.weights import Precision, weight_node
from draftproof.errors import BackendError
from draftproof.models.head_files import HeadWeights

__all__ = ["OpenVINOHead"]

Floats = NDArray[np.float32]

_INPUTS: Final = ("features", "token_ids", "positions", "keys", "values", "mask")


class OpenVINOHead:
    """Runs a draft head on the CPU.

    Parameters
    ----------
    head : HeadWeights
        The head.
    embedding : ndarray of float32, shape (V, E)
        The target's table of embeddings.
    output : ndarray of float32, shape (V, E)
        The target's output layer; the rows that can be drafted are kept.
    precision : {"f32", "f16", "int8"}
        How matrices are kept.
    threads : int or None
        Threads of the runtime; None lets it use every physical core.
    """

    def __init__(
        self,
        head: HeadWeights,
        embedding: Floats,
        output: Floats,
        *,
        precision: Precision = "int8",
        threads: int | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": "1",
        }
        if threads is not None:
            options["INFERENCE_NUM_THREADS"] = str(threads)
        graph, core = _Graph(head, precision).model(embedding, output[head.draft_ids]), ov.Core()
        # A change of shape costs a graph about a quarter of a pass, and a round has two: many
        # tokens are read at its start, then one at a time.
        self._one, self._many = (
            core.compile_model(graph, "CPU", options).create_infer_request() for _ in range(2)
        )
        self.shape = head.shape
        self.draft_ids = head.draft_ids.astype(np.intp)

    def run(
        self,
        features: Floats,
        token_ids: NDArray[np.int64],
        positions: NDArray[np.int64],
        keys: Floats,
        values: Floats,
        mask: Floats,
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Run one pass; see `draftproof.proposers.draft_head.HeadRunner.run`.

        Raises
        ------
        BackendError
            If the runtime fails.
        """
        groups = self.shape.num_heads // self.shape.num_kv_heads
        given = (features, token_ids, positions, keys, values, np.tile(mask, (1, groups, 1)))
        # The runtime reads these arrays themselves: they live until it has run.
        held = [np.ascontiguousarray(array) for array in given]
        request = self._one if token_ids.shape[1] == 1 else self._many
        try:
            for name, array in zip(_INPUTS, held, strict=True):
                request.set_tensor(name, ov.Tensor(array, shared_memory=True))
            request.infer()
        except RuntimeError as error:
            raise BackendError(f"the draft head failed: {last_line(error)}") from error
        found = [request.get_output_tensor(index).data.copy() for index in range(4)]
        return found[0], found[1], found[2], found[3]


def _ints(*values: int) -> Any:
    return ops.constant(np.array(values, dtype=np.int64))


def _int(value: int) -> Any:
    return ops.constant(np.array(value, dtype=np.int64))


class _Graph:
    """Builds the graph of one head."""

    def __init__(self, head: HeadWeights, precision: Precision) -> None:
        self._head = head
        self._shape = head.shape
        self._precision: Precision = precision

    def model(self, embedding: Floats, drafted: Floats) -> Any:
        """Return the graph."""
        shape = self._shape
        features = self._input("features", [-1, -1, shape.hidden_size], ov.Type.f32)
        token_ids = self._input("token_ids", [-1, -1], ov.Type.i64)
        positions = self._input("positions", [-1, -1], ov.Type.i64)
        cached = [-1, shape.num_kv_heads, -1, shape.head_dim]
        keys = self._input("keys", cached, ov.Type.f32)
        values = self._input("values", cached, ov.Type.f32)
        mask = self._input("mask", [-1, -1, -1], ov.Type.f32)
        table = weight_node(embedding, self._precision)
        embedded = self._norm(ops.gather(table, token_ids, _int(0)), "embedding_layernorm")
        hidden = self._product(ops.concat([embedded, features], 2), "fusion_fc")
        added, new_keys, new_values = self._attention(hidden, positions, keys, values, mask)
        # Keys and values are needed of all tokens, the rest of the last one only.
        hidden = ops.add(self._last(hidden), self._last(added))
        hidden = ops.add(hidden, self._feed_forward(hidden))
        feature = self._norm(hidden, "pre_lm_head_layernorm")
        logits = ops.matmul(feature, weight_node(drafted, self._precision), False, True)
        results = [ops.result(each) for each in (feature, logits, new_keys, new_values)]
        inputs = [features, token_ids, positions, keys, values, mask]
        return ov.Model(results, inputs, "draft_head")

    def _input(self, name: str, extents: list[int], kind: Any) -> Any:
        node = ops.parameter(ov.PartialShape(extents), kind, name=name)
        node.output(0).get_tensor().set_names({name})
        return node

    def _weight(self, name: str) -> Floats:
        return self._head.tensors[f"{name}.weight"]

    def _product(self, values: Any, *names: str) -> Any:
        matrix = np.concatenate([self._weight(name) for name in names])
        return ops.matmul(values, weight_node(matrix, self._precision), False, True)

    def _norm(self, values: Any, name: str) -> Any:
        square = ops.power(values, ops.constant(np.float32(2)))
        mean = ops.reduce_mean(square, _ints(-1), True)
        root = ops.sqrt(ops.add(mean, ops.constant(np.float32(self._shape.norm_epsilon))))
        normed = ops.multiply(values, ops.divide(ops.constant(np.float32(1)), root))
        return ops.multiply(normed, ops.constant(self._weight(name)))

    def _last(self, values: Any) -> Any:
        """Keep the last token of every row, (B, E)."""
        return ops.gather(values, _int(-1), _int(1))

    def _attention(
        self, hidden: Any, positions: Any, keys: Any, values: Any, mask: Any
    ) -> tuple[Any, Any, Any]:
        shape, layer = self._shape, "transformer."
        counts = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)
        normed = self._norm(hidden, layer + "input_layernorm")
        joined = self._product(normed, *(f"{layer}self_attn.{part}_proj" for part in "qkv"))
        widths = _ints(*(count * shape.head_dim for count in counts))
        parts = ops.variadic_split(joined, _int(2), widths)
        query, key, value = (
            ops.transpose(
                ops.reshape(parts.output(i), _ints(0, 0, count, shape.head_dim), True),
                _ints(0, 2, 1, 3),
            )
            for i, count in enumerate(counts)
        )
        cos, sin = self._angles(positions)
        query, key = self._rotate(query, cos, sin), self._rotate(key, cos, sin)
        # The heads of a group lie one behind another: (B, K, G T, D).
        grouped = ops.reshape(query, _ints(0, shape.num_kv_heads, -1, shape.head_dim), True)
        all_keys, all_values = ops.concat([keys, key], 2), ops.concat([values, value], 2)
        scores = ops.matmul(grouped, all_keys, False, True)
        scores = ops.multiply(scores, ops.constant(np.float32(shape.head_dim**-0.5)))
        weights = ops.softmax(ops.add(scores, ops.unsqueeze(mask, _int(1))), -1)
        mixed = ops.matmul(weights, all_values, False, False)
        tokens = ops.gather(ops.shape_of(hidden), _ints(1), _int(0))
        extents = ops.concat([_ints(0, shape.num_heads), tokens, _ints(shape.head_dim)], 0)
        heads = ops.transpose(ops.reshape(mixed, extents, True), _ints(0, 2, 1, 3))
        flat = ops.reshape(heads, _ints(0, 0, shape.num_heads * shape.head_dim), True)
        return self._product(flat, layer + "self_attn.o_proj"), key, value

    def _angles(self, positions: Any) -> tuple[Any, Any]:
        """Return cosine and sine of all positions, (B, 1, T, D)."""
        half = self._shape.head_dim // 2
        frequencies = self._shape.rope_theta ** -(np.arange(half, dtype=np.float64) / half)
        row = ops.constant(frequencies.astype(np.float32).reshape(1, 1, 1, -1))
        places = ops.unsqueeze(ops.convert(positions, ov.Type.f32), _ints(1, 3))
        angles = ops.multiply(places, row)
        doubled = ops.concat([angles, angles], -1)
        return ops.cos(doubled), ops.sin(doubled)

    def _rotate(self, heads: Any, cos: Any, sin: Any) -> Any:
        half = self._shape.head_dim // 2
        parts = ops.variadic_split(heads, _int(3), _ints(half, half))
        negated = ops.multiply(parts.output(1), ops.constant(np.float32(-1)))
        turned = ops.concat([negated, parts.output(0)], -1)
        return ops.add(ops.multiply(heads, cos), ops.multiply(turned, sin))

    def _feed_forward(self, hidden: Any) -> Any:
        layer, size = "transformer.mlp.", self._shape.ffn_size
        normed = self._norm(hidden, "transformer.post_attention_layernorm")
        joined = self._product(normed, layer + "gate_proj", layer + "up_proj")
        parts = ops.variadic_split(joined, _int(1), _ints(size, size))
        gated = ops.multiply(opset4.swish(parts.output(0)), parts.output(1))
        return self._product(gated, layer + "down_proj")
