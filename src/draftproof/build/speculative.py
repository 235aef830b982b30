"""The speculation a user asks for, in the keys that vLLM's users know.

Keys that this package adds are marked *ours*. A key that is not listed is an error
that names the nearest known one; no key is accepted and ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from draftproof.build.methods import (
    AUTO_KAPPA,
    DEFAULT_KAPPA,
    DRAWN_TREES,
    HEADS,
    LAWFUL,
    OWNERS,
    TREES,
)
from draftproof.build.rules import RULE_OWNERS, rule_from
from draftproof.core import strict_json
from draftproof.errors import ConfigError
from draftproof.models.head_files import is_head
from draftproof.verify import AllowLossy

__all__ = ["SpeculativeConfig"]


class SpeculativeConfig(BaseModel):
    """Which drafter runs, how far it drafts and which rule verifies.

    Parameters
    ----------
    method : str
        ``"none"``, ``"ngram"``, ``"suffix"``, ``"prediction"``, ``"draft_model"``,
        ``"draft_head"``, ``"early_exit"``, ``"hybrid"``, ``"ngram_tree"``, ``"suffix_tree"``,
        ``"prediction_tree"``, ``"draft_model_tree"``, ``"draft_head_tree"`` or
        ``"hybrid_tree"``. The drafter. When only ``model`` is given, ``"draft_head"`` where it
        is a head, else ``"draft_model"``. ``"hybrid"`` drafts from the request's prediction,
        else from suffixes, and lets the model go on.
    model : str, optional
        The draft model, for ``"draft_model"``, ``"hybrid"`` and their trees; the name or the
        folder of a head, for ``"draft_head"``, ``"hybrid"`` and their trees.
    num_layers : int, optional
        *Ours*: how many of the target's own layers ``"early_exit"`` drafts with, followed by
        its final norm and head. ``"hybrid"``, ``"draft_model_tree"`` and ``"hybrid_tree"``
        take it in place of ``model``.
    vocab_mapping : {"auto", "intersection", "retokenise", "none"}
        *Ours*: what is done about a draft model of another vocabulary. ``"intersection"``
        draws from the tokens that both have; ``"retokenise"`` drafts what the target's
        tokenizer makes of the drafter's text, which it writes greedily unless
        ``draft_sample_method`` or ``draft_temperature`` is given; ``"none"`` refuses it.
        ``"auto"`` takes the first where half of the target's tokens are shared, else the
        second.
    num_speculative_tokens : int or "auto", optional
        Most drafts per round. *Ours*: ``"auto"`` chooses them anew in each round, for the
        pace of the whole batch, from what was accepted before and from costs.
    num_speculative_tokens_per_batch_size : list of (int, int, int), optional
        Drafts by the number of requests that decode: first batch, last batch, drafts; from
        1 on, without gaps. Beyond the last range nothing is drafted.
    profile : str, optional
        *Ours*: the file of ``draftproof calibrate`` whose costs ``"auto"`` follows;
        built-in ones when None. Trees then have as many nodes as pay, up to
        ``num_speculative_tokens``; without one they always have that many.
    prompt_lookup_min, prompt_lookup_max : int
        Shortest and longest suffix that ``"ngram"`` and ``"ngram_tree"`` look up.
    tree_max_paths : int
        *Ours*: most candidates that ``"ngram_tree"`` merges into a tree.
    tree_widths : list of int, optional
        *Ours*: children per node at each depth, for a model or a head; None takes the
        best shape for the number of nodes.
    tree_acceptance : float, optional
        *Ours*: the acceptance that trees are shaped for; ``"suffix_tree"`` goes by counts,
        ``"prediction_tree"`` by what agrees.
    rejection_sample_method : str, optional
        ``"standard"``, ``"block"``, ``"coupled"`` or ``"sample-match"``. None takes
        ``"block"`` for sampled drafts and ``"standard"`` for deterministic ones. Rules
        that change the law are ``"lenience"``, ``"threshold"``, ``"typical"`` and
        ``"synthetic"``; they need ``allow_lossy``.
    allow_lossy : bool
        *Ours*: allow a rule that changes the law. The text is labelled with it.
    lenience : float, optional
        *Ours*: drafts are kept with probability min(1, p / (lenience q)).
    threshold_acc, threshold_single : float, optional
        *Ours*: the knobs of ``"threshold"``.
    typical_epsilon, typical_alpha : float, optional
        *Ours*: the knobs of ``"typical"``.
    synthetic_acceptance_rates : list of float, optional
        *Ours*: for load tests, the unconditional acceptance per position.
    draft_sample_method : {"probabilistic", "greedy"}
        How ``"draft_model"`` draws: from its law, or always its best token.
    draft_temperature : float, optional
        *Ours*: temperature of the draft model; the request's when None.
    min_confidence : float, optional
        *Ours*: stop drafting where the drafter's best token has less probability
        than this. The cut never looks at the token drawn.
    suffix_min_match, suffix_max_match : int
        *Ours*: shortest suffix that is used, and longest that is told apart.
    suffix_min_score : float, optional
        *Ours*: a suffix draft ends where the guessed probability that it is accepted so
        far falls below this; 0.1, and 0.3 where a model goes on behind a chain.
    suffix_window : int
        *Ours*: most tokens of a request that are searched, newest first.
    suffix_tenant_tokens : int
        *Ours*: most tokens of earlier outputs that are kept per tenant and searched for
        its later requests. 0, the default, shares nothing. A server takes the tenant from
        the field ``user``, which nobody checks: only where all clients may read each other.
    prediction_min_context : int
        *Ours*: agreeing tokens from which on a place in a predicted output is trusted.
    prediction_min_score : float
        *Ours*: the same for predicted drafts.
    hybrid_model_tokens : int
        *Ours*: most tokens per round that the model adds behind a draftless draft; most
        levels of what it adds to a tree.
    hybrid_enough : int, optional
        *Ours*: draftless tokens from which on the model is not asked; 4 unless it is given, 1
        where a draft head stands behind.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), strict=True, allow_inf_nan=False
    )

    method: Literal[
        "none",
        "ngram",
        "suffix",
        "prediction",
        "draft_model",
        "early_exit",
        "draft_head",
        "hybrid",
        "ngram_tree",
        "suffix_tree",
        "prediction_tree",
        "draft_model_tree",
        "draft_head_tree",
        "hybrid_tree",
    ] = "none"
    model: str | None = None
    num_layers: int | None = Field(default=None, ge=1)
    vocab_mapping: Literal["auto", "intersection", "retokenise", "none"] = "auto"
    num_speculative_tokens: int | Literal["auto"] | None = None
    num_speculative_tokens_per_batch_size: tuple[tuple[int, int, int], ...] | None = None
    profile: str | None = None
    prompt_lookup_min: int = Field(default=2, ge=1)
    prompt_lookup_max: int = Field(default=5, ge=1)
    rejection_sample_method: str | None = None
    allow_lossy: bool = False
    lenience: float | None = None
    threshold_acc: float | None = None
    threshold_single: float | None = None
    typical_epsilon: float | None = None
    typical_alpha: float | None = None
    synthetic_acceptance_rates: tuple[float, ...] | None = None
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"
    draft_temperature: float | None = Field(default=None, ge=0.0)
    min_confidence: float | None = Field(default=None, ge=0.0, le=1.0)
    suffix_min_match: int = Field(default=1, ge=1)
    suffix_max_match: int = Field(default=32, ge=1, le=1024)
    suffix_min_score: float | None = Field(default=None, gt=0.0, le=1.0)
    suffix_window: int = Field(default=131_072, ge=1)
    suffix_tenant_tokens: int = Field(default=0, ge=0)
    prediction_min_context: int = Field(default=3, ge=1, le=32)
    prediction_min_score: float = Field(default=0.1, gt=0.0, lt=1.0)
    hybrid_model_tokens: int = Field(default=3, ge=1)
    hybrid_enough: int | None = Field(default=None, ge=1)
    tree_max_paths: int = Field(default=4, ge=1)
    tree_widths: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(default=None, min_length=1)
    tree_acceptance: float | None = Field(default=None, gt=0.0, lt=1.0)

    @field_validator("num_speculative_tokens", mode="before")
    @classmethod
    def _check_number(cls, value: object) -> object:
        """Refuse in one message what is neither a number of drafts nor ``auto``."""
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if value is None or value == "auto" or is_number:
            return value
        raise ValueError("expected 'auto' or a whole number from 0 on")

    @model_validator(mode="after")
    def _check_keys_fit_method(self) -> SpeculativeConfig:
        """Refuse a key that the chosen drafter would ignore."""
        for key, owners in OWNERS.items():
            if key in self.model_fields_set and self.method not in owners:
                raise ValueError(
                    f"{key} has no effect with method {self.method!r}; "
                    f"use {' or '.join(map(repr, owners))}"
                )
        if self.method == "none" and self.num_speculative_tokens:
            raise ValueError(
                f"num_speculative_tokens is {self.num_speculative_tokens} but no method drafts; "
                f"name one of {', '.join(repr(name) for name in DEFAULT_KAPPA if name != 'none')}"
            )
        if self.method in LAWFUL and self.model is None and self.num_layers is None:
            raise ValueError(f"method {self.method!r} needs model")
        self._check_exit()
        runs_model = self.method in ("draft_model", "draft_model_tree")
        if runs_model and self.model is not None and is_head(self.model):
            raise ValueError(
                f"{self.model!r} is a draft head, which method {self.method!r} cannot run; "
                f"expected method {self.method.replace('model', 'head')!r}"
            )
        if self.has_head and "vocab_mapping" in self.model_fields_set:
            raise ValueError(
                f"vocab_mapping has no effect with the draft head {self.model!r}: it drafts the "
                "target's tokens"
            )
        self._check_lengths()
        for low, high in (
            ("prompt_lookup_min", "prompt_lookup_max"),
            ("suffix_min_match", "suffix_max_match"),
        ):
            if getattr(self, low) > getattr(self, high):
                raise ValueError(
                    f"{low} {getattr(self, low)} is above {high} {getattr(self, high)}"
                )
        if isinstance(self.rule, AllowLossy) and self.method in TREES:
            raise ValueError(
                f"rejection_sample_method {self.rule.name!r} judges chains only; "
                f"{self.method!r} drafts trees"
            )
        return self

    def _check_exit(self) -> None:
        """Refuse an early exit without layers, beside a model, or with a mapping."""
        if self.method == "early_exit" and self.num_layers is None:
            raise ValueError("method 'early_exit' needs num_layers")
        if self.method in DRAWN_TREES and self.vocab_mapping == "retokenise":
            raise ValueError(
                f"vocab_mapping 'retokenise' makes chains only; {self.method!r} drafts trees"
            )
        if self.num_layers is None:
            return
        if self.model is not None:
            raise ValueError(
                f"model {self.model!r} and num_layers {self.num_layers}: expected one of them"
            )
        if "vocab_mapping" in self.model_fields_set:
            raise ValueError(
                f"vocab_mapping has no effect with num_layers {self.num_layers}: an early exit "
                "has the target's vocabulary"
            )

    def _check_lengths(self) -> None:
        """Refuse lengths that contradict one another or that nobody could choose."""
        ranges = self.num_speculative_tokens_per_batch_size
        if self.is_auto and self.method in TREES:
            raise ValueError(
                f"num_speculative_tokens 'auto' counts chains only; {self.method!r} drafts "
                "trees, expected a number"
            )
        if self.profile is not None and not self.is_auto and self.method not in TREES:
            raise ValueError("profile has no effect unless num_speculative_tokens is 'auto'")
        if ranges is None:
            return
        key = "num_speculative_tokens_per_batch_size"
        if self.is_auto:
            raise ValueError(f"num_speculative_tokens 'auto' and {key}: expected one of them")
        if self.profile is not None:
            raise ValueError(f"profile and {key}: expected one of them")
        starts = [1, *(high + 1 for _low, high, _kappa in ranges)]
        for start, (low, high, kappa) in zip(starts, ranges, strict=False):
            if low != start or high < low or kappa < 0:
                raise ValueError(
                    f"{key} has {[low, high, kappa]}; expected ranges without gaps from 1 on, "
                    f"here [{start}, {start} or more, 0 or more]"
                )
        most = max((kappa for _low, _high, kappa in ranges), default=-1)
        limit = self.num_speculative_tokens
        if most < 0 or (isinstance(limit, int) and most > limit):
            raise ValueError(
                f"{key} has {most if ranges else 'no range'}; expected at least one range and at "
                f"most num_speculative_tokens, {limit}"
            )

    @property
    def has_head(self) -> bool:
        """Whether a draft head drafts, alone or behind what costs nothing."""
        is_hybrid = self.method in ("hybrid", "hybrid_tree") and self.model is not None
        return self.method in HEADS or (is_hybrid and is_head(str(self.model)))

    @property
    def is_auto(self) -> bool:
        """Whether draft lengths are chosen anew in each round."""
        return self.num_speculative_tokens == "auto"

    @property
    def rule(self) -> str | AllowLossy | None:
        """The verification rule, as an engine takes it."""
        knobs = {key: getattr(self, key) for key in RULE_OWNERS if getattr(self, key) is not None}
        return rule_from(self.rejection_sample_method, knobs, allow_lossy=self.allow_lossy)

    @property
    def kappa(self) -> int:
        """Most drafts per round, with the drafter's default filled in."""
        if self.num_speculative_tokens_per_batch_size is not None:
            return max(kappa for _l, _h, kappa in self.num_speculative_tokens_per_batch_size)
        if self.num_speculative_tokens == "auto":
            return AUTO_KAPPA[self.method]
        if self.num_speculative_tokens is not None and self.method != "none":
            return self.num_speculative_tokens
        return DEFAULT_KAPPA[self.method]

    @classmethod
    def parse(cls, value: str | Mapping[str, Any] | SpeculativeConfig | None) -> SpeculativeConfig:
        """Read a configuration.

        Parameters
        ----------
        value : str, mapping, SpeculativeConfig or None
            JSON text or the object it stands for; None is plain decoding.

        Returns
        -------
        SpeculativeConfig
            The checked configuration.

        Raises
        ------
        ConfigError
            If it is not an object, a key is unknown, or a value is out of range.
        """
        if value is None:
            return cls()
        if isinstance(value, SpeculativeConfig):
            return value
        if isinstance(value, str):
            try:
                value = strict_json.loads(value)
            except ValueError as error:
                raise ConfigError(f"speculative config is not JSON: {error}") from error
        if not isinstance(value, Mapping):
            raise ConfigError(f"speculative config is {value!r}; expected a JSON object")
        for key in value:
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.0)[0]
                raise ConfigError(
                    f"speculative config has the unknown key {key!r}; nearest known key: {near!r}"
                )
        data = {key: _as_tuple(item) for key, item in value.items()}
        if isinstance(data.get("method"), str):
            # Records and rules are spelled with hyphens; nobody shall have to remember which.
            data["method"] = data["method"].replace("-", "_")
        if data.get("model") is not None:
            is_a_head = is_head(str(data["model"]))
            data.setdefault("method", "draft_head" if is_a_head else "draft_model")
        try:
            return cls(**data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "speculative config"
            message = first["msg"].removeprefix("Value error, ")
            got = "" if not first["loc"] else f", got {first['input']!r}"
            raise ConfigError(f"{where}: {message}{got}") from error


def _as_tuple(value: Any) -> Any:
    """Return a list of JSON as the tuple that a frozen value holds."""
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
