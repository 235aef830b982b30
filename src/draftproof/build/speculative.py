"""The speculation a user asks for, in the keys that vLLM's users know.

Keys that this package adds are marked *ours*. A key that is not listed is an error
that names the nearest known one; no key is accepted and ignored.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from draftproof.errors import ConfigError

__all__ = ["SpeculativeConfig"]

#: Drafts per round where the user gives none: n-grams cost nothing, a model's do.
DEFAULT_KAPPA = {"ngram": 5, "draft_model": 3, "none": 0}


class SpeculativeConfig(BaseModel):
    """Which drafter runs, how far it drafts and which rule verifies.

    Parameters
    ----------
    method : {"none", "ngram", "draft_model"}
        The drafter. ``"draft_model"`` when only ``model`` is given.
    model : str, optional
        The draft model, for ``"draft_model"``.
    num_speculative_tokens : int, optional
        Most drafts per round.
    prompt_lookup_min, prompt_lookup_max : int
        Shortest and longest suffix that ``"ngram"`` looks up.
    rejection_sample_method : str, optional
        ``"standard"``, ``"block"``, ``"coupled"`` or ``"sample-match"``. None takes
        ``"block"`` for sampled drafts and ``"standard"`` for deterministic ones.
    draft_sample_method : {"probabilistic", "greedy"}
        How ``"draft_model"`` draws: from its law, or always its best token.
    draft_temperature : float, optional
        *Ours*: temperature of the draft model; the request's when None.
    min_confidence : float, optional
        *Ours*: stop drafting where the drafter's best token has less probability
        than this. The cut never looks at the token drawn.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    method: Literal["none", "ngram", "draft_model"] = "none"
    model: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=0)
    prompt_lookup_min: int = Field(default=2, ge=1)
    prompt_lookup_max: int = Field(default=5, ge=1)
    rejection_sample_method: Literal["standard", "block", "coupled", "sample-match"] | None = None
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"
    draft_temperature: float | None = Field(default=None, ge=0.0)
    min_confidence: float | None = Field(default=None, ge=0.0, le=1.0)

    @model_validator(mode="after")
    def _check_keys_fit_method(self) -> SpeculativeConfig:
        """Refuse a key that the chosen drafter would ignore."""
        owners = {
            "model": "draft_model",
            "prompt_lookup_min": "ngram",
            "prompt_lookup_max": "ngram",
            "draft_sample_method": "draft_model",
            "draft_temperature": "draft_model",
            "min_confidence": "draft_model",
        }
        for key, owner in owners.items():
            if key in self.model_fields_set and self.method != owner:
                raise ValueError(f"{key} has no effect with method {self.method!r}; use {owner!r}")
        if self.method == "none" and self.num_speculative_tokens:
            raise ValueError(
                f"num_speculative_tokens is {self.num_speculative_tokens} but no method drafts; "
                "name one of 'ngram', 'draft_model'"
            )
        if self.method == "draft_model" and self.model is None:
            raise ValueError("method 'draft_model' needs model")
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min {self.prompt_lookup_min} is above "
                f"prompt_lookup_max {self.prompt_lookup_max}"
            )
        return self

    @property
    def kappa(self) -> int:
        """Most drafts per round, with the drafter's default filled in."""
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
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ConfigError(f"speculative config is not JSON: {error}") from error
        if not isinstance(value, Mapping):
            raise ConfigError(f"speculative config is {value!r}; expected a JSON object")
        for key in value:
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.0)[0]
                raise ConfigError(
                    f"speculative config has the unknown key {key!r}; nearest known key: {near!r}"
                )
        data = dict(value)
        if data.get("model") is not None:
            data.setdefault("method", "draft_model")
        try:
            return cls(**data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "speculative config"
            message = first["msg"].removeprefix("Value error, ")
            got = "" if not first["loc"] else f", got {first['input']!r}"
            raise ConfigError(f"{where}: {message}{got}") from error
