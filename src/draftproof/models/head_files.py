"""A draft head on disk: ``config.json`` and ``model.safetensors``.

The configuration and the names of the tensors follow vLLM's speculators for the type
``eagle`` with norms. Whether its tools load such a file was not tried. Two things are ours
and stand under keys of their own: a draft vocabulary that is smaller than the target's
(``d2t``, ``t2d`` as in the type ``eagle3``), and a window of attention; a reader that knows
neither computes something else.

A head of width E with H query heads, K key-value heads of width D, and F inner units is

::

    x = fusion_fc [norm(embedding of the token) ; feature of the position before]
    x = x + attention(norm(x))
    x = x + feed_forward(norm(x))
    feature = norm(x)

and the feature times the rows of the target's output layer gives draft logits.

References
----------
Li et al., EAGLE, 2401.15077, section 4; draft vocabulary: EAGLE-3, 2503.01840.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ModelFileError
from draftproof.models.eagle_config import describes_eagle
from draftproof.models.tensor_file import read_tensors, write_tensors

__all__ = [
    "HeadShape",
    "HeadWeights",
    "built_in_heads",
    "find_head",
    "is_head",
    "is_own_head",
    "read_head",
    "weights_file",
    "write_head",
]

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
#: What the weights of published heads are called beside; several files are one head.
_OTHERS: Final = ("*.safetensors", "pytorch_model.bin")
_FOLDER: Final = Path(__file__).parent / "heads"
#: Names of heads that come with the package, and the folder of each.
_NAMED: Final = (("smollm2-head", "smollm2-135m-instruct"),)


@dataclass(frozen=True, slots=True)
class HeadShape:
    """The numbers that make a head.

    Parameters
    ----------
    hidden_size : int
        Width E of the target's features.
    num_heads, num_kv_heads, head_dim : int
        Query heads H, key-value heads K, their width D.
    ffn_size : int
        Inner units F.
    vocab_size : int
        Token ids V of the target.
    draft_vocab_size : int
        Token ids that can be drafted.
    window : int
        How many positions a head attends to, its own included.
    norm_epsilon : float
        Of all norms.
    rope_theta : float
        Base of the rotation.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    draft_vocab_size: int
    window: int = 256
    norm_epsilon: float = 1e-5
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        """Refuse what no head can be."""
        for name, least in (("window", 2), ("draft_vocab_size", 1), ("ffn_size", 1)):
            if getattr(self, name) < least:
                raise ModelFileError(f"{name} is {getattr(self, name)}; expected {least} or more")
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ModelFileError(
                f"{self.num_heads} heads of width {self.head_dim} over {self.num_kv_heads}; "
                "expected groups of equal size and an even width"
            )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight, by its name in the file."""
        wide, inner = self.hidden_size, self.ffn_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = "transformer."
        return {
            "embedding_layernorm.weight": (wide,),
            "fusion_fc.weight": (wide, 2 * wide),
            layer + "input_layernorm.weight": (wide,),
            layer + "self_attn.q_proj.weight": (queries, wide),
            layer + "self_attn.k_proj.weight": (keys, wide),
            layer + "self_attn.v_proj.weight": (keys, wide),
            layer + "self_attn.o_proj.weight": (wide, queries),
            layer + "post_attention_layernorm.weight": (wide,),
            layer + "mlp.gate_proj.weight": (inner, wide),
            layer + "mlp.up_proj.weight": (inner, wide),
            layer + "mlp.down_proj.weight": (wide, inner),
            "pre_lm_head_layernorm.weight": (wide,),
        }


@dataclass(frozen=True, slots=True, eq=False)
class HeadWeights:
    """A draft head.

    Parameters
    ----------
    shape : HeadShape
        Its numbers.
    tensors : mapping of str to ndarray of float32
        Weights by the names of `HeadShape.tensors`.
    draft_ids : ndarray of int64, shape (draft_vocab_size,)
        Rising ids of the target that can be drafted.
    target : str
        Name of the model that the head was trained for.
    notes : mapping of str to value
        How it was trained, and what was measured; for people.
    """

    shape: HeadShape
    tensors: Mapping[str, NDArray[np.float32]]
    draft_ids: NDArray[np.int64]
    target: str
    notes: Mapping[str, Any]


def built_in_heads() -> dict[str, Path]:
    """Return the heads that this installation has, by name."""
    found = {name: _FOLDER / folder for name, folder in _NAMED}
    return {name: folder for name, folder in found.items() if (folder / _CONFIG).is_file()}


def find_head(ref: str) -> Path:
    """Return the folder that a name or a path of a head means.

    Parameters
    ----------
    ref : str
        A name of `built_in_heads`, or the path of a folder.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    ModelFileError
        If it holds no head.
    """
    known = built_in_heads()
    path = known.get(ref, Path(ref).expanduser())
    has_weights = any(any(path.glob(pattern)) for pattern in _OTHERS)
    if not (path / _CONFIG).is_file() or not has_weights:
        expected = ", ".join([*known, f"a folder with {_CONFIG} and {_WEIGHTS}"])
        raise ModelFileError(f"{ref}: no draft head; expected {expected}")
    return path


def is_head(ref: str) -> bool:
    """Say whether a name or a path means a draft head, and no model.

    Parameters
    ----------
    ref : str
        What a user typed.

    Returns
    -------
    bool
        True for names of `built_in_heads` and for folders whose ``config.json`` says so,
        in our format, in that of speculators or in that of EAGLE-3's authors.
    """
    if ref in built_in_heads():
        return True
    try:
        config = json.loads((Path(ref).expanduser() / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and describes_eagle(config)


def is_own_head(folder: Path) -> bool:
    """Say whether a head is in the format that `write_head` writes.

    Parameters
    ----------
    folder : Path
        What `find_head` returned.

    Returns
    -------
    bool
        False for published heads, which `draftproof.models.eagle_config` reads. True also
        for what describes no head, which `read_head` refuses with the reason.
    """
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return True
    if not isinstance(config, dict) or not describes_eagle(config):
        return True
    return config.get("speculators_model_type") == "eagle" and "window" in config


def weights_file(folder: Path) -> Path:
    """Return where a head of our format keeps its weights.

    Parameters
    ----------
    folder : Path
        Of the head.

    Returns
    -------
    Path
        The file, which need not exist.
    """
    return folder / _WEIGHTS


def write_head(folder: Path, head: HeadWeights) -> None:
    """Write a head, its weights in float16.

    Parameters
    ----------
    folder : Path
        Made when it does not exist.
    head : HeadWeights
        The head.
    """
    folder.mkdir(parents=True, exist_ok=True)
    is_drafted = np.zeros(head.shape.vocab_size, dtype=np.bool_)
    is_drafted[head.draft_ids] = True
    offsets = head.draft_ids - np.arange(len(head.draft_ids))
    tensors: dict[str, NDArray[Any]] = {
        name: np.asarray(head.tensors[name], dtype=np.float16) for name in head.shape.tensors()
    }
    write_tensors(folder / _WEIGHTS, tensors | {"d2t": offsets, "t2d": is_drafted})
    text = json.dumps(_config(head), indent=2)
    (folder / _CONFIG).write_text(text + "\n", encoding="utf-8")


def _config(head: HeadWeights) -> dict[str, Any]:
    shape = head.shape
    return {
        "architectures": ["EagleSpeculator", "LlamaDecoderLayer"],
        "speculators_model_type": "eagle",
        "transformer_layer_architecture": "LlamaDecoderLayer",
        "transformer_layer_config": {
            "model_type": "llama",
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.ffn_size,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "num_hidden_layers": 1,
            "rms_norm_eps": shape.norm_epsilon,
            "rope_theta": shape.rope_theta,
            "vocab_size": shape.vocab_size,
        },
        "layernorms": True,
        "fusion_bias": False,
        "draft_vocab_size": shape.draft_vocab_size,
        "window": shape.window,
        "speculators_config": {
            "algorithm": "eagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": head.target, "architectures": ["LlamaForCausalLM"]},
        },
        "draftproof": dict(head.notes),
    }


def read_head(folder: Path) -> HeadWeights:
    """Read a head.

    Parameters
    ----------
    folder : Path
        What `write_head` wrote.

    Returns
    -------
    HeadWeights
        The head, in float32.

    Raises
    ------
    ModelFileError
        If a file is missing, damaged, or describes another kind of drafter.
    """
    path = folder / _CONFIG
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        kind = config["speculators_model_type"]
        if kind == "eagle3":
            raise ModelFileError(
                f"{path}: a drafter of type 'eagle3', which reads hidden states of three of the "
                "target's layers and runs beside a target on torch. Expected type 'eagle'"
            )
        if kind != "eagle" or not config["layernorms"] or config["fusion_bias"]:
            raise ModelFileError(
                f"{path}: a drafter of type {kind!r}; expected 'eagle' with layernorms and "
                "without fusion_bias"
            )
        shape = _shape(config)
        target = str(config["speculators_config"]["verifier"]["name_or_path"])
        notes = dict(config.get("draftproof", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFileError(
            f"{path}: is not the configuration of a draft head: {error}"
        ) from error
    held = read_tensors(folder / _WEIGHTS)
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, extent in shape.tensors().items():
        if name not in held or held[name].shape != extent:
            found = held[name].shape if name in held else "nothing"
            raise ModelFileError(f"{folder}: tensor {name} is {found}, expected {extent}")
        tensors[name] = held[name].astype(np.float32)
        if not np.isfinite(tensors[name]).all():
            raise ModelFileError(f"{folder}: tensor {name} holds NaN or infinity")
    return HeadWeights(shape, tensors, _draft_ids(folder, held, shape), target, notes)


def _shape(config: dict[str, Any]) -> HeadShape:
    layer = config["transformer_layer_config"]
    return HeadShape(
        hidden_size=int(layer["hidden_size"]),
        num_heads=int(layer["num_attention_heads"]),
        num_kv_heads=int(layer["num_key_value_heads"]),
        head_dim=int(layer["head_dim"]),
        ffn_size=int(layer["intermediate_size"]),
        vocab_size=int(layer["vocab_size"]),
        draft_vocab_size=int(config["draft_vocab_size"]),
        window=int(config["window"]),
        norm_epsilon=float(layer["rms_norm_eps"]),
        rope_theta=float(layer["rope_theta"]),
    )


def _draft_ids(
    folder: Path, held: Mapping[str, NDArray[Any]], shape: HeadShape
) -> NDArray[np.int64]:
    """Return the ids that can be drafted, which both maps must agree on."""
    offsets, is_drafted = held.get("d2t"), held.get("t2d")
    if offsets is not None and offsets.shape == (shape.draft_vocab_size,):
        ids = (offsets + np.arange(len(offsets))).astype(np.int64)
        rises = len(ids) > 0 and ids[0] >= 0 and ids[-1] < shape.vocab_size
        rises = rises and bool((np.diff(ids) > 0).all())
        if rises and is_drafted is not None and np.array_equal(np.flatnonzero(is_drafted), ids):
            return ids
    raise ModelFileError(f"{folder}: d2t and t2d are no map of {shape.draft_vocab_size} tokens")
