"""The weights of a published EAGLE head, under one set of names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray

from draftproof.errors import ModelFileError
from draftproof.models.eagle_config import EagleConfig

__all__ = ["EagleWeights", "read_eagle_weights"]

#: Kept in training checkpoints, and no part of the head.
_IDLE: Final = frozenset({"verifier_norm.weight", "verifier_lm_head.weight"})
#: What the formats call the layer.
_LAYER: Final = re.compile(r"^(midlayer|layers\.0|transformer)\.((self_attn|mlp)\.)?")
#: Names of speculators' type ``eagle``.
_RENAMED: Final[Mapping[str, str]] = MappingProxyType(
    {"fusion_fc.weight": "fc.weight", "fusion_fc.bias": "fc.bias"}
)


@dataclass(frozen=True, slots=True, eq=False)
class EagleWeights:
    """What the files of a head hold.

    Parameters
    ----------
    tensors : mapping of str to torch.Tensor
        On the host, by the names of `expected_tensors`; ``embed_tokens.weight`` and, for the
        type ``eagle``, ``lm_head.weight`` are there where the files have them.
    draft_ids : ndarray of int64, shape (draft_vocab_size,)
        Token of the target for each row of ``lm_head.weight``.
    """

    tensors: Mapping[str, Any]
    draft_ids: NDArray[np.int64]


def expected_tensors(config: EagleConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight that a head must have, by our names.

    Parameters
    ----------
    config : EagleConfig
        The head.

    Returns
    -------
    dict of str to tuple of int
        The shapes.
    """
    wide, inner, joined = config.hidden_size, config.ffn_size, 2 * config.hidden_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    found: dict[str, tuple[int, ...]] = {"post_attention_layernorm.weight": (wide,)}
    read = wide
    if config.kind == "eagle":
        found["fc.weight"] = (wide, joined)
        if config.fusion_bias:
            found["fc.bias"] = (wide,)
    else:
        read, told = joined, config.num_states * config.target_hidden_size
        found |= {
            "fc.weight": (wide, told),
            "input_layernorm.weight": (wide,),
            "hidden_norm.weight": (wide,),
            "norm.weight": (wide,),
            "lm_head.weight": (config.draft_vocab_size, wide),
        }
        if config.norm_before_fc:
            found["input_norm.weight"] = (told,)
    matrices = {
        "q_proj": (queries, read),
        "k_proj": (keys, read),
        "v_proj": (keys, read),
        "o_proj": (wide, queries),
        "gate_proj": (inner, wide),
        "up_proj": (inner, wide),
        "down_proj": (wide, inner),
    }
    for name, extent in matrices.items():
        found[f"{name}.weight"] = extent
        if config.attention_bias if name[0] in "qkvo" else config.mlp_bias:
            found[f"{name}.bias"] = extent[:1]
    return found


def read_eagle_weights(folder: Path, config: EagleConfig) -> EagleWeights:
    """Read the weights of a head.

    Parameters
    ----------
    folder : Path
        Holds safetensors files, or else ``pytorch_model.bin``, of which nothing but tensors
        is unpickled.
    config : EagleConfig
        What its ``config.json`` says.

    Returns
    -------
    EagleWeights
        The weights, checked.

    Raises
    ------
    ModelFileError
        If a tensor is missing, left over, of another shape or not finite, or if the map of
        tokens is none.
    """
    held = _named(folder)
    ids = _draft_ids(folder, held.pop("d2t", None), held.pop("t2d", None), config)
    wanted = expected_tensors(config)
    optional = {"embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    if config.kind == "eagle":
        optional["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    for name, extent in (wanted | optional).items():
        if name not in held and name in optional:
            continue
        found = tuple(held[name].shape) if name in held else "missing"
        if found != extent:
            raise ModelFileError(f"{folder}: tensor {name} is {found}; expected {extent}")
        if not held[name].is_floating_point() or not bool(held[name].isfinite().all()):
            raise ModelFileError(f"{folder}: tensor {name} holds what is no finite number")
    others = sorted(held.keys() - wanted.keys() - optional.keys() - _IDLE)
    if others:
        raise ModelFileError(
            f"{folder}: {len(others)} tensors that no option of the configuration explains: "
            f"{', '.join(others[:3])}"
        )
    return EagleWeights({name: held[name] for name in held.keys() - _IDLE}, ids)


def _named(folder: Path) -> dict[str, Any]:
    """Return all tensors by our names."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")) or [folder / "pytorch_model.bin"]:
        for name, tensor in _tensors(path).items():
            ours = _LAYER.sub("", _RENAMED.get(name, name))
            if name.endswith("rotary_emb.inv_freq"):  # follows from the configuration
                continue
            if ours in found:
                raise ModelFileError(f"{folder}: two tensors {ours}")
            found[ours] = tensor
    return found


def _tensors(path: Path) -> dict[str, Any]:
    try:
        if path.suffix == ".safetensors":
            read: dict[str, Any] = safetensors.torch.load_file(path)
            return read
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{path.parent}: no weights; expected safetensors files or {path.name}"
        ) from error
    except Exception as error:
        line = " ".join(str(error).split())[:200]
        raise ModelFileError(f"{path}: cannot be read: {line}") from error
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(each, torch.Tensor) for name, each in found.items()
    ):
        raise ModelFileError(f"{path}: is no mapping of names to tensors")
    return found


def _draft_ids(folder: Path, offsets: Any, marks: Any, config: EagleConfig) -> NDArray[np.int64]:
    """Return the token of each row: its number and the offset that the file has for it."""
    count, size = config.draft_vocab_size, config.vocab_size
    if offsets is None:
        if count != size:
            raise ModelFileError(f"{folder}: no d2t, which maps {count} drafted tokens to {size}")
        ids = np.arange(count)
    else:
        if tuple(offsets.shape) != (count,) or offsets.is_floating_point():
            raise ModelFileError(
                f"{folder}: d2t is {tuple(offsets.shape)} of {offsets.dtype}; expected {count} "
                "whole numbers"
            )
        ids = np.arange(count) + offsets.numpy().astype(np.int64)
    if ids.min() < 0 or ids.max() >= size or len(np.unique(ids)) < count:
        raise ModelFileError(
            f"{folder}: d2t maps {count} tokens to {len(np.unique(ids))} from {ids.min()} to "
            f"{ids.max()}; expected offsets to as many different ones of {size}"
        )
    if marks is not None and not np.array_equal(np.flatnonzero(marks.numpy()), np.sort(ids)):
        raise ModelFileError(f"{folder}: t2d marks other tokens than d2t maps to")
    return ids
