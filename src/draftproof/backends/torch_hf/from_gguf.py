"""A GGUF file as a transformers model, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from draftproof.backends.decoder_weights import DecoderShape, DecoderWeights
from draftproof.errors import ModelFileError

__all__ = ["model_from_gguf"]

#: Names of the weights of a layer, theirs by ours.
_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONFIGS: Final = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}


def model_from_gguf(path: Path) -> Any:
    """Read a GGUF file into the transformers class of its architecture.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    transformers.PreTrainedModel
        In float32 on the CPU; quantised weights are expanded.

    Raises
    ------
    ModelFileError
        If the file is damaged, or a feature of it is not understood.
    """
    weights = DecoderWeights(path)
    shape = weights.shape
    biased = weights.has("blk.0.attn_q.bias")
    if biased and shape.architecture == "llama" and not weights.has("blk.0.attn_output.bias"):
        raise ModelFileError(f"{path}: biases of queries without one of the output")
    config = _config(shape, biased)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {name: torch.from_numpy(array) for name, array in _state(weights)}
    if shape.tied_head:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    # Buffers are no part of the state: the rotation is made from the file's own base.
    rotary = model.model.rotary_emb
    frequencies = torch.from_numpy(weights.inverse_frequencies())
    for name in ("inv_freq", "original_inv_freq"):
        rotary.register_buffer(name, frequencies.clone(), persistent=False)
    model.load_state_dict(state, strict=True, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.eval()


def _config(shape: DecoderShape, biased: bool) -> Any:
    """Return the configuration of a shape."""
    extra: dict[str, Any] = {}
    if shape.architecture == "llama":
        extra["attention_bias"] = biased
    return getattr(transformers, _CONFIGS[shape.architecture])(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate_size=shape.ffn_size,
        max_position_embeddings=shape.context_length,
        rms_norm_eps=shape.norm_epsilon,
        tie_word_embeddings=shape.tied_head,
        **extra,
    )


def _state(weights: DecoderWeights) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield every weight under the name that transformers gives it."""
    shape = weights.shape
    yield "model.embed_tokens.weight", weights.tensor("token_embd.weight")
    yield "model.norm.weight", weights.tensor("output_norm.weight")
    if not shape.tied_head:
        yield "lm_head.weight", weights.tensor("output.weight")
    for layer in range(shape.num_layers):
        for ours, theirs in _LAYER.items():
            for part in ("weight", "bias"):
                name = f"blk.{layer}.{ours}.{part}"
                if not weights.has(name):
                    continue
                values = weights.tensor(name)
                if ours in ("attn_q", "attn_k") and shape.rotation == "interleaved":
                    values = _halves(values, shape.head_dim)
                yield f"model.layers.{layer}.{theirs}.{part}", values


def _halves(values: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Reorder heads whose neighbours form pairs, so that entries i and i + D / 2 do."""
    pairs = values.reshape(-1, head_dim // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
