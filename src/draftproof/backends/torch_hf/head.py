"""EAGLE heads on PyTorch, on the device and in the type of their target.

A head of type ``eagle3`` of width E whose target tells a joined state s of each token is

::

    h = fc s                                           or the h that was predicted
    x = h + attention([norm(embedding of the token) ; norm(h)])
    x = x + feed_forward(norm(x))                      the next h
    logits = lm_head norm(x)

and one of type ``eagle`` has ``h = fc [embedding ; s]``, attention of ``h`` itself, and
the target's output layer without a norm. States and keys come and go as arrays, as
`draftproof.proposers.draft_head.HeadRunner` has them; nothing is kept between passes.

References
----------
Li et al., EAGLE-3, 2503.01840, section 3; EAGLE, 2401.15077, section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from draftproof.backends.borrowed import borrow
from draftproof.backends.torch_hf.backend import TorchBackend
from draftproof.backends.torch_hf.head_weights import EagleWeights, read_eagle_weights
from draftproof.backends.torch_hf.taps import eagle3_layers
from draftproof.errors import BackendError, IncompatibleModelsError, ModelFileError
from draftproof.models.eagle_config import EagleConfig, read_eagle_config

__all__ = ["HEAD_WINDOW", "TorchHead", "TorchHeadSize", "load_torch_head"]

Floats = NDArray[np.float32]

#: Positions that a head attends to. The files name no limit, and keys are held on the host.
HEAD_WINDOW: Final = 512


@dataclass(frozen=True, slots=True)
class TorchHeadSize:
    """The numbers of a head that a drafter needs.

    Parameters
    ----------
    hidden_size : int
        Width of the states that the target tells.
    num_kv_heads, head_dim : int
        Key and value heads, and their width.
    vocab_size : int
        Token ids of the target.
    window : int
        Positions that a token sees, its own included.
    """

    hidden_size: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    window: int


class TorchHead:
    """Runs a published head.

    Parameters
    ----------
    config : EagleConfig
        Its numbers and switches.
    weights : EagleWeights
        Its weights; without ``embed_tokens.weight``, or for the type ``eagle`` without
        ``lm_head.weight``, those of the target are used.
    embedding : torch.Tensor, shape (V or more, E), optional
        The target's.
    output : torch.Tensor, shape (V or more, E), optional
        The target's output layer, for the type ``eagle``.
    vocab_size : int
        Token ids V of the target; rows past them are cut off.
    device, dtype : object
        Where and how the head is held.
    window : int, default HEAD_WINDOW
        Positions that a token sees, its own included.

    Raises
    ------
    IncompatibleModelsError
        If the target's embedding is needed and has another width.
    """

    def __init__(
        self,
        config: EagleConfig,
        weights: EagleWeights,
        *,
        embedding: Any = None,
        output: Any = None,
        vocab_size: int,
        device: Any,
        dtype: Any,
        window: int = HEAD_WINDOW,
    ) -> None:
        self.config = config
        self.shape = TorchHeadSize(
            config.num_states * config.target_hidden_size,
            config.num_kv_heads,
            config.head_dim,
            vocab_size,
            window,
        )
        held = dict(weights.tensors)
        self._embedding = _held(held.pop("embed_tokens.weight", embedding), config, device, dtype)
        drafted = _held(held.pop("lm_head.weight", output), config, device, dtype)
        # Law and drafter want rising ids; tokens that the target has no string for go.
        order = np.argsort(weights.draft_ids)
        order = order[weights.draft_ids[order] < vocab_size]
        self.draft_ids = weights.draft_ids[order].astype(np.intp)
        self._drafted = drafted.index_select(0, torch.from_numpy(order).to(device))
        self._weights: Mapping[str, Any] = {
            name: tensor.to(device=device, dtype=dtype) for name, tensor in held.items()
        }
        self._rotation = _rotation(config).to(device)
        self._device, self._dtype = device, dtype

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

        Where the target told a state, ``features`` has its width S; where the head predicted
        one, its own width E.

        Raises
        ------
        BackendError
            If torch fails.
        """
        try:
            with torch.inference_mode():
                found = self._pass(
                    self._floats(features),
                    self._floats(keys),
                    self._floats(values),
                    self._floats(mask),
                    torch.from_numpy(np.ascontiguousarray(token_ids)).to(self._device),
                    torch.from_numpy(np.ascontiguousarray(positions)).to(self._device),
                )
                made = [each.float().cpu().numpy() for each in found]
        except RuntimeError as error:
            line = " ".join(str(error).split())[:300]
            raise BackendError(f"the draft head failed: {line}") from error
        return made[0], made[1], made[2], made[3]

    def _floats(self, array: Floats) -> Any:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.to(device=self._device, dtype=self._dtype)

    def _pass(
        self, features: Any, keys: Any, values: Any, mask: Any, token_ids: Any, positions: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Keys and values are needed of all tokens, the rest of the last one only."""
        config = self.config
        embedded = functional.embedding(token_ids, self._embedding)
        read, stream = self._fused(features, embedded)
        cos, sin = self._rotation(stream, positions)
        key = _rotated(self._heads(read, "k_proj", config.num_kv_heads), cos, sin)
        value = self._heads(read, "v_proj", config.num_kv_heads)
        query = self._heads(read[:, -1:], "q_proj", config.num_heads)
        query = _rotated(query, cos[:, -1:], sin[:, -1:])
        seen = functional.scaled_dot_product_attention(
            query,
            torch.cat([keys, key], 2),
            torch.cat([values, value], 2),
            attn_mask=mask[:, None, -1:],
            enable_gqa=True,
        )
        x = stream[:, -1] + self._linear(seen.transpose(1, 2).flatten(1), "o_proj")
        normed = self._norm(x, "post_attention_layernorm")
        inner = functional.silu(self._linear(normed, "gate_proj")) * self._linear(normed, "up_proj")
        x = x + self._linear(inner, "down_proj")
        scored = x if config.kind == "eagle" else self._norm(x, "norm")
        return x, functional.linear(scored, self._drafted), key, value

    def _fused(self, features: Any, embedded: Any) -> tuple[Any, Any]:
        """Return what attention reads, and the stream that it is added to."""
        if self.config.kind == "eagle":
            stream = self._linear(torch.cat([embedded, features], -1), "fc")
            return stream, stream
        stream = features
        if features.shape[-1] == self.shape.hidden_size:
            if self.config.norm_before_fc:
                features = self._norm(features, "input_norm")
            stream = self._linear(features, "fc")
        normed = self._norm(stream, "hidden_norm")
        if self.config.norm_before_residual:
            stream = normed
        return torch.cat([self._norm(embedded, "input_layernorm"), normed], -1), stream

    def _linear(self, values: Any, name: str) -> Any:
        return functional.linear(
            values, self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias")
        )

    def _norm(self, values: Any, name: str) -> Any:
        wide = values.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.config.norm_epsilon)
        return self._weights[f"{name}.weight"] * (wide * scale).to(values.dtype)

    def _heads(self, values: Any, name: str, count: int) -> Any:
        split = self._linear(values, name).unflatten(-1, (count, self.config.head_dim))
        return split.transpose(1, 2)


def _held(matrix: Any, config: EagleConfig, device: Any, dtype: Any) -> Any:
    """Return a matrix of one row per token on the device, as it is where it fits already."""
    if matrix is None:
        raise IncompatibleModelsError("a head without matrices of its own and without a target")
    if matrix.shape[1] != config.hidden_size:
        raise IncompatibleModelsError(
            f"the head has no embedding of its own and is of width {config.hidden_size}; the "
            f"target's has {matrix.shape[1]}"
        )
    return matrix.to(device=device, dtype=dtype)


def _rotation(config: EagleConfig) -> Any:
    """Return transformers' module that gives cosine and sine of positions."""
    try:
        return LlamaRotaryEmbedding(
            LlamaConfig(
                hidden_size=config.num_heads * config.head_dim,
                num_attention_heads=config.num_heads,
                head_dim=config.head_dim,
                max_position_embeddings=config.max_positions,
                rope_parameters=dict(config.rotation),
            )
        )
    except (KeyError, ValueError, TypeError) as error:
        raise ModelFileError(f"the rotation {dict(config.rotation)} lacks {error}") from error


def _rotated(heads: Any, cos: Any, sin: Any) -> Any:
    left, right = heads.chunk(2, -1)
    turned = torch.cat([-right, left], -1)
    return heads * cos[:, None] + turned * sin[:, None]


def load_torch_head(folder: Path, target: TorchBackend, *, window: int = HEAD_WINDOW) -> TorchHead:
    """Load a published head for a target that tells the states it reads.

    Parameters
    ----------
    folder : Path
        Its files.
    target : TorchBackend
        The model whose text is drafted, loaded with the ``hidden_layers`` that the head
        names, or ``with_hidden`` for the type ``eagle``.
    window : int, default HEAD_WINDOW
        Positions that a token sees, its own included.

    Returns
    -------
    TorchHead
        The head, on the target's device and in its type.

    Raises
    ------
    ModelFileError
        If the files are damaged or have an option that is not known.
    IncompatibleModelsError
        If the head was made for another vocabulary or another width.
    """
    config = read_eagle_config(folder / "config.json")
    info, model = target.info, target.model
    told = config.num_states * config.target_hidden_size
    sizes = {info.vocab_size, model.vocab_size}
    if config.vocab_size not in sizes or told != info.hidden_size:
        raise IncompatibleModelsError(
            f"the head {folder} is for {config.vocab_size} tokens and reads {config.num_states} "
            f"states of width {config.target_hidden_size}; {info.name} has "
            f"{' or '.join(map(str, sorted(sizes)))} tokens and tells {info.hidden_size} numbers"
        )
    layers: tuple[int, ...] = ()
    if config.kind == "eagle3":
        layers = config.layers or eagle3_layers(target.num_layers)
    if layers != target.hidden_layers:
        raise IncompatibleModelsError(
            f"the head {folder} reads hidden states {layers}; {info.name} was loaded to tell "
            f"{target.hidden_layers}"
        )
    weights = read_eagle_weights(folder, config)
    output = None
    if config.kind == "eagle" and "lm_head.weight" not in weights.tensors:
        output = torch.from_numpy(borrow(target).output)
    return TorchHead(
        config,
        weights,
        embedding=model.embedding(),
        output=output,
        vocab_size=info.vocab_size,
        device=model.device,
        dtype=model.dtype,
        window=window,
    )
