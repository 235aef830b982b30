"""Shape and weights of a Llama-like decoder, read from a GGUF file.

Everything that would change the law is either understood here or refused by name:
an unknown architecture, an unknown tensor, an unknown way to scale positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from draftproof.errors import ModelFileError
from draftproof.models import GgufFile, TensorInfo, read_gguf

__all__ = ["DecoderShape", "DecoderWeights", "Rotation"]

#: Weights of one row that is handed to the decoder of quantised blocks, at most.
_CHUNK: Final = 1 << 16

#: How a head is rotated by its position. ``interleaved``: neighbours (2i, 2i + 1) form
#: a pair. ``halves``: entries (i, i + D / 2) do.
Rotation = Literal["interleaved", "halves"]

#: Architectures that are understood, and how each one rotates its heads.
_ROTATIONS: Final[Mapping[str, Rotation]] = MappingProxyType(
    {"llama": "interleaved", "qwen2": "halves", "qwen3": "halves"}
)
#: Metadata that changes the law in a way that is not implemented, with the values
#: that change nothing. The architecture name stands before each key.
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "expert_count": (0,),
        "expert_used_count": (0,),
        "attention.causal": (True,),
        "attention.scale": (),
        "attention.clamp_kqv": (0.0,),
        "attention.max_alibi_bias": (0.0,),
        "attention.sliding_window": (0,),
        "attention.layer_norm_epsilon": (),
        "attention.temperature_scale": (),
        "attn_logit_softcapping": (0.0,),
        "final_logit_softcapping": (0.0,),
        "embedding_scale": (1.0,),
        "residual_scale": (1.0,),
        "logit_scale": (1.0,),
        "use_parallel_residual": (False,),
        "tensor_data_layout": ("reference",),
        "rope.dimension_sections": (),
        "rope.scaling.attn_factor": (1.0,),
        "rope.scaling.yarn_log_multiplier": (),
        "pooling_type": (0,),
    }
)
_LAYER_TENSORS: Final = (
    "attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight",
    "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight",
    "ffn_down.weight",
)  # fmt: skip
_QKV_BIASES: Final = ("attn_q.bias", "attn_k.bias", "attn_v.bias")
#: What a layer of an architecture has besides.
_LAYER_EXTRA: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"llama": (), "qwen2": _QKV_BIASES, "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight")}
)
#: What it may have besides.
_LAYER_OPTIONAL: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"llama": (*_QKV_BIASES, "attn_output.bias"), "qwen2": (), "qwen3": ()}
)
_GLOBAL_TENSORS: Final = ("token_embd.weight", "output_norm.weight")
_GLOBAL_OPTIONAL: Final = ("output.weight", "rope_freqs.weight")


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The numbers that make a decoder.

    Parameters
    ----------
    architecture : str
        ``"llama"``, ``"qwen2"`` or ``"qwen3"``.
    num_layers : int
        Number of blocks.
    hidden_size : int
        Width E of the residual stream.
    num_heads : int
        Query heads.
    num_kv_heads : int
        Key and value heads; divides ``num_heads``.
    head_dim : int
        Width D of a head, even.
    ffn_size : int
        Width F of the gated feed-forward layer.
    vocab_size : int
        Rows V of the embedding table.
    context_length : int
        Largest number of tokens of one sequence.
    norm_epsilon : float
        Added to the mean square in every normalisation.
    rotation : {"interleaved", "halves"}
        Which entries of a head turn together.
    tied_head : bool
        Whether the embedding table is the output layer too.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_length: int
    norm_epsilon: float
    rotation: Rotation
    tied_head: bool


class DecoderWeights:
    """A GGUF file seen as a decoder. Tensors are decoded when asked for.

    Parameters
    ----------
    path : Path
        The GGUF file.

    Raises
    ------
    ModelFileError
        If the file is damaged, or a feature of it is not understood.
    """

    def __init__(self, path: Path) -> None:
        self.file: GgufFile = read_gguf(path)
        self._tensors = {tensor.name: tensor for tensor in self.file.tensors}
        # A plain view: the memmap class makes every slice of it expensive.
        self._data = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        self.shape = _read_shape(self.file, self._tensors)
        _check_tensors(self.file, self._tensors, self.shape)
        self._rope_base, self._rope_factor = _read_rope(self.file)

    def has(self, name: str) -> bool:
        """Return whether the file holds a tensor of this name."""
        return name in self._tensors

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return a tensor, decoded.

        Parameters
        ----------
        name : str
            Name in the file, for example ``"blk.0.attn_q.weight"``.

        Returns
        -------
        ndarray of float32, shape (N,) or (rows, columns)
            A matrix has one row per output.

        Raises
        ------
        ModelFileError
            If it is missing, of an element type that cannot be decoded, or not finite.
        """
        info = self._tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.file.path}: tensor {name} is missing")
        raw = self._data[info.offset : info.offset + info.num_bytes]
        try:
            values = _decode(raw, info)
        except (NotImplementedError, ValueError, KeyError) as error:
            raise ModelFileError(
                f"{self.file.path}: tensor {name} of type {info.kind} cannot be decoded: {error}"
            ) from error
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.file.path}: tensor {name} holds NaN or infinity")
        return values

    def inverse_frequencies(self) -> NDArray[np.float32]:
        """Return the angle per position of each pair of a head, in radians.

        Returns
        -------
        ndarray of float32, shape (D / 2,)
            ``base ** (-2 i / D)``, divided by the linear scale and by the factors of
            the tensor ``rope_freqs.weight`` (Llama 3) where the file has them.
        """
        size = self.shape.head_dim
        exponents = np.arange(0, size, 2, dtype=np.float64) / size
        frequencies = self._rope_base**-exponents / self._rope_factor
        if self.has("rope_freqs.weight"):
            factors = self.tensor("rope_freqs.weight").astype(np.float64)
            if not (factors > 0).all():
                raise ModelFileError(f"{self.file.path}: rope_freqs.weight is not positive")
            frequencies = frequencies / factors
        return frequencies.astype(np.float32)


def _decode(raw: NDArray[np.uint8], info: TensorInfo) -> NDArray[np.float32]:
    """Decode the bytes of one tensor to float32 in row-major order."""
    shape = info.shape[::-1]
    kind = GGMLQuantizationType[info.kind]
    if kind == GGMLQuantizationType.F32:
        return raw.view(np.float32).reshape(shape).copy()
    if kind == GGMLQuantizationType.F16:
        return raw.view(np.float16).reshape(shape).astype(np.float32)
    # The decoder works on 16 rows at a time and is slow at it when rows are short. Blocks
    # do not know where rows end, so several rows are handed over as one long row.
    rows = shape[0] if len(shape) == 2 else 1
    most = max(1, _CHUNK // shape[-1])
    joined = next(k for k in range(min(most, rows), 0, -1) if rows % k == 0)
    decoded = dequantize(raw.reshape(rows // joined, -1), kind)
    return np.asarray(decoded, dtype=np.float32).reshape(shape)


def _number(file: GgufFile, key: str, default: float) -> float:
    """Read a number that files write as an integer or a float."""
    value = file.metadata.get(f"{file.architecture}.{key}", default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ModelFileError(f"{file.path}: metadata key {key} is {value!r}, expected a number")
    return float(value)


def _read_shape(file: GgufFile, tensors: Mapping[str, TensorInfo]) -> DecoderShape:
    """Read the numbers of the metadata, refusing what is not understood."""
    architecture = file.architecture
    if architecture not in _ROTATIONS:
        known = ", ".join(_ROTATIONS)
        raise ModelFileError(
            f"{file.path}: architecture {architecture} is not supported, expected one of {known}"
        )
    for key, neutral in _NEUTRAL.items():
        value = file.metadata.get(f"{architecture}.{key}")
        if value is not None and not any(value is n or value == n for n in neutral):
            raise ModelFileError(
                f"{file.path}: {architecture}.{key} = {value} is a feature that is not supported"
            )
    for name in _GLOBAL_TENSORS:
        if name not in tensors:
            raise ModelFileError(f"{file.path}: tensor {name} is missing")
    hidden = file.embedding_length
    heads = file.require("{arch}.attention.head_count", int)
    kv_heads = file.get("{arch}.attention.head_count_kv", int, heads) or heads
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise ModelFileError(f"{file.path}: {heads} heads over {kv_heads} key-value heads")
    head_dim = file.get("{arch}.attention.key_length", int) or hidden // heads
    value_dim = file.get("{arch}.attention.value_length", int) or head_dim
    rotated = file.get("{arch}.rope.dimension_count", int) or head_dim
    if value_dim != head_dim or rotated != head_dim or head_dim % 2:
        raise ModelFileError(
            f"{file.path}: heads of {head_dim} keys, {value_dim} values, {rotated} rotated "
            "entries are not supported, expected one even number"
        )
    return DecoderShape(
        architecture=architecture,
        num_layers=file.num_layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_size=file.require("{arch}.feed_forward_length", int),
        vocab_size=tensors["token_embd.weight"].shape[-1],
        context_length=file.context_length,
        norm_epsilon=file.require("{arch}.attention.layer_norm_rms_epsilon", float),
        rotation=_ROTATIONS[architecture],
        tied_head="output.weight" not in tensors,
    )


def _check_tensors(file: GgufFile, tensors: Mapping[str, TensorInfo], shape: DecoderShape) -> None:
    """Refuse a file that lacks a tensor, has one too many, or one of another size."""
    needed = set(_GLOBAL_TENSORS)
    allowed = needed | set(_GLOBAL_OPTIONAL)
    extra, optional = _LAYER_EXTRA[shape.architecture], _LAYER_OPTIONAL[shape.architecture]
    for layer in range(shape.num_layers):
        names = {f"blk.{layer}.{name}" for name in (*_LAYER_TENSORS, *extra)}
        biases = {f"blk.{layer}.{name}" for name in _QKV_BIASES}
        if biases & tensors.keys():
            names |= biases
        needed |= names
        allowed |= names | {f"blk.{layer}.{name}" for name in optional}
    for name in sorted(needed - tensors.keys()):
        raise ModelFileError(f"{file.path}: tensor {name} is missing")
    for name in sorted(tensors.keys() - allowed):
        raise ModelFileError(
            f"{file.path}: tensor {name} is not part of a {shape.architecture} model as supported"
        )
    sizes = _expected_sizes(shape)
    for name, info in tensors.items():
        expected = sizes[name.split(".", 2)[-1] if name.startswith("blk.") else name]
        if info.shape != expected:
            raise ModelFileError(
                f"{file.path}: tensor {name} has the extents {info.shape}, expected {expected}"
            )


def _expected_sizes(shape: DecoderShape) -> dict[str, tuple[int, ...]]:
    """Return the extents of every tensor in GGUF order, columns first."""
    hidden, ffn, vocab = shape.hidden_size, shape.ffn_size, shape.vocab_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return {
        "token_embd.weight": (hidden, vocab),
        "output.weight": (hidden, vocab),
        "output_norm.weight": (hidden,),
        "rope_freqs.weight": (shape.head_dim // 2,),
        "attn_norm.weight": (hidden,),
        "ffn_norm.weight": (hidden,),
        "attn_q.weight": (hidden, queries),
        "attn_k.weight": (hidden, keys),
        "attn_v.weight": (hidden, keys),
        "attn_q.bias": (queries,),
        "attn_k.bias": (keys,),
        "attn_v.bias": (keys,),
        "attn_output.weight": (queries, hidden),
        "attn_output.bias": (hidden,),
        "attn_q_norm.weight": (shape.head_dim,),
        "attn_k_norm.weight": (shape.head_dim,),
        "ffn_gate.weight": (hidden, ffn),
        "ffn_up.weight": (hidden, ffn),
        "ffn_down.weight": (ffn, hidden),
    }


def _read_rope(file: GgufFile) -> tuple[float, float]:
    """Return base and linear scale of the rotation."""
    # A file that names a factor and no type means linear scaling.
    kind = file.get("{arch}.rope.scaling.type", str, "linear")
    if kind not in ("none", "linear"):
        raise ModelFileError(
            f"{file.path}: rope scaling {kind} is not supported, expected none or linear"
        )
    factor = 1.0
    if kind == "linear":
        factor = _number(file, "rope.scaling.factor", _number(file, "rope.scale_linear", 1.0))
        factor = factor or 1.0
    base = _number(file, "rope.freq_base", 10000.0)
    if base <= 0 or factor <= 0:
        raise ModelFileError(
            f"{file.path}: rope base {base} and factor {factor}, expected positive numbers"
        )
    return base, factor
