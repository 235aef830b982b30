"""What the ``config.json`` of a published EAGLE head says.

Two formats are read: that of vLLM's speculators, for the types ``eagle`` (without norms)
and ``eagle3``, and that of EAGLE-3's authors, which SGLang, SpecForge and ModelOpt write
too. Both are written by transformers, which leaves out what equals the defaults of
``LlamaConfig``: those defaults are filled in here. An option that would change the
network and is not known here is refused by its name.

References
----------
Li et al., EAGLE, 2401.15077; EAGLE-3, 2503.01840.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

from draftproof.errors import ModelFileError

__all__ = ["EagleConfig", "describes_eagle", "read_eagle_config"]

#: Names under which the authors' format is known.
_ARCHITECTURES: Final = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
#: Keys that say nothing about the network.
_IDLE: Final = frozenset({
    "_name_or_path", "architectures", "attention_dropout", "attn_implementation", "auto_map",
    "bos_token_id", "chunk_size_feed_forward", "dtype", "embed_requires_grad",
    "enable_sp_ulysses", "eos_token_id", "has_no_defaults_at_init", "id2label",
    "initializer_range", "is_encoder_decoder", "label2id", "max_window_layers",
    "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "return_dict",
    "speculators_config", "speculators_version", "torch_dtype", "transformer_layer_architecture",
    "transformers_version", "use_cache",
})  # fmt: skip
#: Keys that have one value here.
_FIXED: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    ("hidden_act", ("silu",)),
    ("is_causal", (True,)),
    ("layer_types", (["full_attention"],)),
    ("logit_scale", (1, 1.0)),
    ("model_type", ("llama",)),
    ("num_hidden_layers", (1,)),
    ("tie_word_embeddings", (False,)),
    ("use_sliding_window", (False,)),
)
#: What the authors' format may say in ``eagle_config`` beside the layers.
_NESTED: Final = (
    ("use_aux_hidden_state", True),
    ("use_input_layernorm_in_first_layer", True),
    ("use_last_layernorm", True),
    ("use_mtp_layernorm", False),
)


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """The numbers and switches of a published head.

    Parameters
    ----------
    kind : {"eagle", "eagle3"}
        What it reads: the last hidden state, or several of them.
    hidden_size, target_hidden_size : int
        Width E of the head, and width of the target's hidden states.
    num_heads, num_kv_heads, head_dim : int
        Query heads, key and value heads, their width.
    ffn_size : int
        Inner units.
    vocab_size, draft_vocab_size : int
        Token ids of the target, and those that can be drafted.
    norm_epsilon : float
        Of all norms.
    rotation : mapping of str to value
        ``rope_type``, ``rope_theta`` and what the type needs, as transformers names them.
    max_positions : int
        Longest text that the head was made for.
    attention_bias, mlp_bias, fusion_bias : bool
        Whether those matrices have a bias.
    norm_before_residual : bool
        Whether the residual stream starts with the normed hidden state.
    norm_before_fc : bool
        Whether the joined hidden states are normed before they are fused.
    layers : tuple of int or None
        Which hidden states are read: 0 is the embedding, ``i`` what layer ``i`` reads.
        None leaves it to the usual choice for the target.
    """

    kind: Literal["eagle", "eagle3"]
    hidden_size: int
    target_hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    draft_vocab_size: int
    norm_epsilon: float
    rotation: Mapping[str, Any]
    max_positions: int
    attention_bias: bool = False
    mlp_bias: bool = False
    fusion_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse what no head can be."""
        for name in ("hidden_size", "target_hidden_size", "num_heads", "num_kv_heads", "head_dim",
                     "ffn_size", "vocab_size", "draft_vocab_size"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ModelFileError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise ModelFileError(
                f"{self.num_heads} heads of width {self.head_dim} over {self.num_kv_heads}; "
                "expected groups of equal size and an even width"
            )
        if self.kind == "eagle3" and self.num_states * self.target_hidden_size == self.hidden_size:
            raise ModelFileError(
                f"{self.num_states} states of width {self.target_hidden_size} are as wide as the "
                "head; expected another width, which tells them from what the head predicts"
            )
        if self.draft_vocab_size > self.vocab_size:
            raise ModelFileError(
                f"draft_vocab_size is {self.draft_vocab_size}; expected at most vocab_size, "
                f"{self.vocab_size}"
            )

    @property
    def num_states(self) -> int:
        """Number of hidden states that are joined for each token."""
        if self.kind == "eagle":
            return 1
        return 3 if self.layers is None else len(self.layers)


def describes_eagle(config: Mapping[str, Any]) -> bool:
    """Say whether a configuration is that of a draft head, and of no model.

    Parameters
    ----------
    config : mapping
        The contents of a ``config.json``.

    Returns
    -------
    bool
        True for both formats. The authors' own files call themselves a Llama, but have a
        draft vocabulary.
    """
    named = config.get("architectures") or ()
    is_named = isinstance(named, list) and any(name in _ARCHITECTURES for name in named)
    return "speculators_model_type" in config or is_named or "draft_vocab_size" in config


def read_eagle_config(path: Path) -> EagleConfig:
    """Read the configuration of a published head.

    Parameters
    ----------
    path : Path
        Its ``config.json``.

    Returns
    -------
    EagleConfig
        The head.

    Raises
    ------
    ModelFileError
        If it is damaged, describes another kind of drafter, or has an option that is not
        known here; the message names it.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(config, dict) or not describes_eagle(config):
            raise ModelFileError("describes no draft head")
        return _Reader(config).head()
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path}: is not the configuration of a draft head: {error!r}"
        ) from error


class _Reader:
    """Takes keys out of a configuration, and refuses what is left over."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._top = dict(config)
        kind = self._top.pop("speculators_model_type", "eagle3")
        if kind not in ("eagle", "eagle3"):
            raise ModelFileError(f"a drafter of type {kind!r}; expected 'eagle' or 'eagle3'")
        self._kind: Literal["eagle", "eagle3"] = kind
        self._nested = dict(self._top.pop("eagle_config", None) or {})
        # The authors' format has the numbers of the layer beside the others.
        inner = self._top.pop("transformer_layer_config", None)
        self._layer = self._top if inner is None else dict(inner)
        self._is_speculators = "speculators_model_type" in config

    def head(self) -> EagleConfig:
        """Return the head."""
        size = self._number("hidden_size", 4096)
        heads = self._number("num_attention_heads", 32)
        vocab = self._number("vocab_size", 32000)
        width = self._top.pop("target_hidden_size", None)
        drafted = self._drafted(vocab)
        found = EagleConfig(
            kind=self._kind,
            hidden_size=size,
            target_hidden_size=size if width is None else int(width),
            num_heads=heads,
            num_kv_heads=self._number("num_key_value_heads", heads),
            head_dim=self._number("head_dim", size // max(heads, 1)),
            ffn_size=self._number("intermediate_size", 11008),
            vocab_size=vocab,
            draft_vocab_size=drafted,
            norm_epsilon=float(self._layer.pop("rms_norm_eps", 1e-6)),
            rotation=self._rotation(),
            max_positions=self._number("max_position_embeddings", 2048),
            attention_bias=self._switch(self._layer, "attention_bias"),
            mlp_bias=self._switch(self._layer, "mlp_bias"),
            fusion_bias=self._switch(self._top, "fusion_bias"),
            norm_before_residual=self._switch(self._top, "norm_before_residual"),
            norm_before_fc=self._switch(self._top, "norm_before_fc"),
            layers=self._layers(),
        )
        self._refuse_rest()
        return found

    def _number(self, name: str, default: int) -> int:
        value = self._layer.pop(name, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFileError(f"{name} is {value!r}; expected a whole number")
        return value

    @staticmethod
    def _switch(where: dict[str, Any], name: str) -> bool:
        value = where.pop(name, None)
        if value not in (None, True, False):
            raise ModelFileError(f"{name} is {value!r}; expected true or false")
        return bool(value)

    def _drafted(self, vocab: int) -> int:
        if self._kind == "eagle":
            if self._switch(self._top, "layernorms"):
                raise ModelFileError(
                    "a head of type 'eagle' with layernorms that draftproof did not write; its "
                    "file does not say which state is fed back. Expected layernorms false"
                )
            return vocab
        value = self._top.pop("draft_vocab_size", None)
        if value is None:
            return 32000 if self._is_speculators else vocab
        return int(value)

    def _rotation(self) -> dict[str, Any]:
        theta = self._layer.pop("rope_theta", None)
        found: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
        for name in ("rope_scaling", "rope_parameters"):
            found |= self._layer.pop(name, None) or {}
        if theta is not None:
            found["rope_theta"] = theta
        if "type" in found:  # its name in older files
            found["rope_type"] = found.pop("type")
        known = ("default", "linear", "llama3", "yarn")
        if found["rope_type"] not in known:
            raise ModelFileError(
                f"rotation of type {found['rope_type']!r}; expected one of {', '.join(known)}"
            )
        return found

    def _layers(self) -> tuple[int, ...] | None:
        named = self._top.pop("eagle_aux_hidden_state_layer_ids", None)
        for name, expected in _NESTED:
            if self._nested.pop(name, expected) != expected:
                raise ModelFileError(f"eagle_config has {name} {not expected}; expected {expected}")
        # There a number names the layer whose output is read, which the next one reads.
        behind = self._nested.pop("eagle_aux_hidden_state_layer_ids", None)
        if not named and behind:
            named = [number + 1 for number in behind]
        if self._nested:
            raise ModelFileError(f"eagle_config has the unknown key {next(iter(self._nested))!r}")
        if not named:
            return None
        if self._kind == "eagle":
            raise ModelFileError("a head of type 'eagle' that names layers; expected 'eagle3'")
        found = tuple(int(number) for number in named)
        if any(low >= high for low, high in pairwise(found)) or found[0] < 0:
            raise ModelFileError(
                f"eagle_aux_hidden_state_layer_ids is {list(found)}; expected rising numbers"
            )
        return found

    def _refuse_rest(self) -> None:
        for name, allowed in _FIXED:
            for where in (self._layer, self._top):
                # The type of the whole is "speculator_model" in some files.
                is_outer = name == "model_type" and where is self._top and self._is_speculators
                value = where.pop(name, None)
                if value is not None and not is_outer and value not in allowed:
                    raise ModelFileError(f"{name} is {value!r}; expected {allowed[0]!r}")
        for where in (self._layer, self._top):
            for name, value in where.items():
                if value is not None and name not in _IDLE:
                    raise ModelFileError(f"the option {name} = {value!r} is not known")
