"""Dimensions of a model from its configuration file.

A Hugging Face ``config.json``, the metadata of a GGUF file, or a name of the shipped
catalogue. A key that is needed and missing is named; nothing is guessed silently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from draftproof.errors import ConfigError, ModelFileError
from draftproof.models import GgufFile, read_gguf
from draftproof.planner.architecture import LatentAttention, ModelShape, MoeShape
from draftproof.planner.catalogue import model_config, model_names

__all__ = ["read_model", "shape_from_config", "shape_from_gguf"]

#: Architectures with two feed-forward matrices.
_PLAIN_MLP: Final = frozenset(
    {"gpt2", "opt", "gpt_neox", "gptj", "gpt_neo", "bloom", "falcon", "phi", "starcoder2",
     "gpt_bigcode", "mpt"}
)  # fmt: skip
#: Architectures whose configuration class ties the embeddings unless told otherwise.
_TIED: Final = frozenset({"gpt2", "opt", "bloom", "falcon", "gpt_bigcode", "mpt", "starcoder2"})
_DTYPE_BYTES: Final = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8_e4m3fn": 1.0}


def read_model(ref: str) -> ModelShape:
    """Read the dimensions of a model.

    Parameters
    ----------
    ref : str
        A name of the shipped catalogue, a ``config.json``, a folder that holds one,
        or a ``.gguf`` file.

    Returns
    -------
    ModelShape
        Its dimensions.

    Raises
    ------
    ConfigError
        If the name is unknown or a needed key is missing.
    ModelFileError
        If the file is damaged.
    """
    path = Path(ref).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.suffix.lower() == ".gguf":
        return shape_from_gguf(read_gguf(path))
    if path.is_file():
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise ModelFileError(f"{path}: not a JSON configuration: {error}") from error
        if not isinstance(config, dict):
            raise ModelFileError(f"{path}: holds {type(config).__name__}, expected an object")
        return shape_from_config(config, name=path.resolve().parent.name)
    if ref.lower() in model_names():
        return shape_from_config(model_config(ref), name=ref.lower())
    raise ConfigError(
        f"no model configuration {ref!r}; expected a config.json, a .gguf file or one of "
        f"{', '.join(model_names())}"
    )


def shape_from_config(config: Mapping[str, Any], name: str = "model") -> ModelShape:
    """Read the dimensions from the keys of a Hugging Face configuration.

    Parameters
    ----------
    config : mapping
        The parsed ``config.json``. A ``text_config`` inside it is used.
    name : str
        Name shown to people.

    Returns
    -------
    ModelShape
        Its dimensions.

    Raises
    ------
    ConfigError
        If a key is missing or has a value that is not a number.
    """
    outer, config = config, config.get("text_config", config)
    kind = str(config.get("model_type", outer.get("model_type", ""))).lower()
    keys = _Keys(config, name)
    hidden = keys.whole("hidden_size", "n_embd", "d_model")
    heads = keys.whole("num_attention_heads", "n_head", "n_heads")
    layers = keys.whole("num_hidden_layers", "n_layer", "n_layers")
    moe = _moe(keys, layers)
    tied = config.get("tie_word_embeddings", outer.get("tie_word_embeddings"))
    if tied is None:
        tied = kind in _TIED or kind.startswith("gemma")
    window, num_windowed = _window(keys, layers, kind)
    weight_bytes, head_bytes = _weight_bytes(config, outer)
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_kv_heads(keys, heads),
        head_dim=keys.optional("head_dim") or hidden // heads,
        intermediate_size=keys.optional("intermediate_size", "n_inner", "ffn_dim") or 4 * hidden,
        vocab_size=keys.whole("vocab_size"),
        tied_embeddings=bool(tied),
        gated_mlp=kind not in _PLAIN_MLP,
        context_length=keys.optional("max_position_embeddings", "n_positions", "n_ctx"),
        moe=moe,
        latent=_latent(keys),
        window=window,
        num_windowed_layers=num_windowed,
        weight_bytes_per_param=weight_bytes,
        head_bytes_per_param=head_bytes,
    )


def shape_from_gguf(file: GgufFile) -> ModelShape:
    """Read the dimensions and the exact bytes from a GGUF file.

    Parameters
    ----------
    file : GgufFile
        Its header.

    Returns
    -------
    ModelShape
        Dimensions, with `ModelShape.exact_bytes` from the tensor directory.

    Raises
    ------
    ModelFileError
        If a needed key is missing.
    """
    tensors = {tensor.name: tensor for tensor in file.tensors}
    table = tensors.get("token_embd.weight")
    if table is None:
        raise ModelFileError(f"{file.path}: tensor token_embd.weight is missing")
    tied = "output.weight" not in tensors
    experts = sum(t.num_bytes for t in file.tensors if "_exps." in t.name)
    head = table.num_bytes if tied else tensors["output.weight"].num_bytes
    embedding = 0 if tied else table.num_bytes
    dense = sum(t.num_bytes for t in file.tensors) - experts - head - embedding
    heads = file.require("{arch}.attention.head_count", int)
    layers = file.num_layers
    hidden = file.embedding_length
    num_experts = file.get("{arch}.expert_count", int) or 0
    feed_forward = file.get("{arch}.feed_forward_length", int) or 0
    moe = None
    if num_experts:
        dense_layers = file.get("{arch}.leading_dense_block_count", int) or 0
        width = file.get("{arch}.expert_feed_forward_length", int) or feed_forward
        shared = file.get("{arch}.expert_shared_count", int) or 0
        used = file.require("{arch}.expert_used_count", int)
        moe = MoeShape(num_experts, used, width, shared * width, layers - dense_layers)
    vocab_size = table.shape[-1]
    return ModelShape(
        name=file.name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=file.get("{arch}.attention.head_count_kv", int) or heads,
        head_dim=file.get("{arch}.attention.key_length", int) or hidden // heads,
        intermediate_size=feed_forward,
        vocab_size=vocab_size,
        tied_embeddings=tied,
        gated_mlp=any(".ffn_gate" in tensor.name for tensor in file.tensors),
        context_length=file.get("{arch}.context_length", int) or 0,
        moe=moe,
        exact_bytes=(float(dense), float(experts), float(head), float(embedding)),
    )


class _Keys:
    """Reads whole numbers under one of several names, and says which is missing."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def optional(self, *names: str) -> int:
        """Return the first number found, 0 when there is none."""
        for name in names:
            value = self.config.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ConfigError(f"{self.name}: {name} is {value!r}; expected a whole number")
            return value
        return 0

    def whole(self, *names: str) -> int:
        """Return the first number found; it must be there."""
        value = self.optional(*names)
        if not value:
            raise ConfigError(f"{self.name}: the configuration has no {names[0]}")
        return value


def _kv_heads(keys: _Keys, heads: int) -> int:
    if keys.config.get("multi_query") is True:
        return 1
    return keys.optional("num_key_value_heads", "num_kv_heads") or heads


def _moe(keys: _Keys, layers: int) -> MoeShape | None:
    experts = keys.optional("num_local_experts", "num_experts", "n_routed_experts")
    if experts <= 1:
        return None
    width = keys.optional("moe_intermediate_size", "expert_intermediate_size")
    width = width or keys.whole("intermediate_size")
    shared = keys.optional("shared_expert_intermediate_size")
    shared = shared or width * keys.optional("n_shared_experts")
    dense = keys.optional("first_k_dense_replace")
    step = keys.optional("decoder_sparse_step") or 1
    plain = keys.config.get("mlp_only_layers") or ()
    sparse = sum(
        1
        for layer in range(layers)
        if layer >= dense and layer not in plain and (layer + 1) % step == 0
    )
    used = keys.whole("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
    return MoeShape(experts, used, width, shared, sparse)


def _latent(keys: _Keys) -> LatentAttention | None:
    rank = keys.optional("kv_lora_rank")
    if not rank:
        return None
    return LatentAttention(
        kv_rank=rank,
        q_rank=keys.optional("q_lora_rank"),
        rope_dim=keys.whole("qk_rope_head_dim"),
        nope_dim=keys.whole("qk_nope_head_dim"),
        v_dim=keys.whole("v_head_dim"),
    )


def _window(keys: _Keys, layers: int, kind: str) -> tuple[int, int]:
    """Return the sliding window and how many layers have it."""
    window = keys.optional("sliding_window")
    if not window or keys.config.get("use_sliding_window") is False:
        return 0, 0
    types = keys.config.get("layer_types")
    if isinstance(types, list):
        return window, sum("sliding" in str(each) for each in types)
    pattern = keys.optional("sliding_window_pattern") or (2 if kind == "gemma2" else 0)
    if pattern:
        return window, layers - layers // pattern
    return window, layers


def _weight_bytes(config: Mapping[str, Any], outer: Mapping[str, Any]) -> tuple[float, float]:
    """Return bytes per weight of the blocks and of the output layer."""
    dtype = config.get("dtype") or config.get("torch_dtype") or outer.get("torch_dtype")
    full = _DTYPE_BYTES.get(str(dtype).removeprefix("torch."), 2.0)
    quant = config.get("quantization_config") or outer.get("quantization_config")
    if not isinstance(quant, Mapping):
        return full, full
    method = str(quant.get("quant_method", "")).lower()
    bits = quant.get("bits") or quant.get("w_bit") or quant.get("num_bits")
    if bits is None:
        if quant.get("load_in_4bit") or method == "mxfp4":
            bits = 4
        elif quant.get("load_in_8bit") or method in ("fp8", "fbgemm_fp8"):
            bits = 8
        else:
            raise ConfigError(f"quantization_config {method!r}: its bits are not known here")
    group = quant.get("group_size") or (32 if method == "mxfp4" else 0)
    # One scale (8 bits for mxfp4, 16 otherwise) per group; output layers stay wide.
    scale_bits = (8 if method == "mxfp4" else 16) / group if group and group > 0 else 0.0
    return (float(bits) + scale_bits) / 8, full
