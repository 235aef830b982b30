"""Hugging Face transformers: `generate`, plain, with an assistant or with prompt lookup.

The reference law comes from the same model by plain forward passes, without a cache, and
from transformers' own filters in transformers' own order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.audit.subjects.draws import (
    Draws,
    Policy,
    RoundKind,
    overlong,
    own_seed,
    padded,
    placed_rounds,
    totals_of,
)
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError, ModelFileError
from draftproof.evidence import JointLaw, Outcome

__all__ = ["TransformersRecipe", "TransformersSubject", "known_options", "transformers_law"]

#: Sampling parameters that `generate` has too, with our meaning.
_KNOWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
#: Texts of one forward pass of the reference.
_TEXTS_PER_PASS = 256


def known_options(policy: Policy) -> dict[str, Any]:
    """Return the sampling parameters of a policy that `generate` has.

    Parameters
    ----------
    policy : Policy
        The policy.

    Returns
    -------
    dict of str to object
        All of them, so that none comes from the model's folder.

    Raises
    ------
    ConfigError
        If the policy has a parameter that `generate` lacks.
    """
    known = {name: getattr(policy.params, name) for name in _KNOWN}
    if SamplingParams(**known) != policy.params:
        raise ConfigError(
            f"policy {policy.params}: expected {', '.join(_KNOWN)} only, which transformers has"
        )
    return known


class TransformersSubject:
    """`generate` of a model in a folder.

    Parameters
    ----------
    model : PreTrainedModel
        The target, in evaluation mode.
    options : mapping of str to object
        What turns speculation on, such as ``prompt_lookup_num_tokens``.
    """

    def __init__(self, model: Any, options: dict[str, Any]) -> None:
        self.model = model
        self._options = options

    def draw(self, prompt_ids: Sequence[int], policy: Policy, num: int, first_seed: int) -> Draws:
        """Return continuations; see `draftproof.audit.subjects.Subject`.

        Every draw has a seed of its own.
        """
        from draftproof.audit.subjects.workers import transformers_engine

        wanted = known_options(policy) | {
            "max_tokens": policy.horizon,
            "eos_token_ids": sorted(policy.eos_token_ids),
        }
        seeds = [own_seed(first_seed + i) for i in range(num)]
        try:
            told = transformers_engine.draw(self.model, self._options, prompt_ids, wanted, seeds)
        except (ValueError, RuntimeError, IndexError) as error:
            raise BackendError(f"generate: {' '.join(str(error).split())}") from error
        rounds = {RoundKind(*kind): times for *kind, times in told["rounds"]}
        placed, drafting = placed_rounds(told["samples"], told["by_draw"], policy.horizon)
        tokens = padded(told["samples"], policy.horizon)
        too_long = overlong(told["samples"], policy)
        return Draws(tokens, rounds, True, totals_of(rounds, drafting), dict(placed), too_long)


@dataclass(frozen=True, slots=True)
class TransformersRecipe:
    """How to load the models, in this process or another.

    Parameters
    ----------
    folder : Path
        The target.
    assistant : Path, optional
        The draft model.
    prompt_lookup : int, optional
        Drafts of prompt lookup.
    early_exit : int, optional
        Layers of the target after which drafts are made.
    own_tokenizers : bool, default False
        Whether the assistant's tokenizer is another than the target's.
    num_assistant_tokens : int, optional
        Drafts of an assistant or an early exit; by default what their folder says.
    """

    folder: Path
    assistant: Path | None = None
    prompt_lookup: int | None = None
    early_exit: int | None = None
    own_tokenizers: bool = False
    num_assistant_tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse two drafters at once, and options of a drafter that is not there."""
        given = [self.assistant, self.prompt_lookup, self.early_exit]
        if sum(each is not None for each in given) > 1:
            raise ConfigError("an assistant, prompt lookup and early exit: expected one of them")
        if self.own_tokenizers and self.assistant is None:
            raise ConfigError("own tokenizers without an assistant: expected both")
        for name in ("prompt_lookup", "early_exit", "num_assistant_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: expected 1 or more")
        if self.num_assistant_tokens is not None and given[0] is None and given[2] is None:
            raise ConfigError(
                "num_assistant_tokens without an assistant or an early exit: expected one"
            )

    @property
    def has_drafter(self) -> bool:
        """Whether anything drafts."""
        return any(
            each is not None for each in (self.assistant, self.prompt_lookup, self.early_exit)
        )

    @property
    def drafter(self) -> str:
        """The drafter in words."""
        if self.prompt_lookup is not None:
            return f"prompt lookup of {self.prompt_lookup} tokens"
        if self.early_exit is not None:
            return f"drafts after layer {self.early_exit}"
        if self.assistant is None:
            return "no drafter"
        return f"the assistant {self.assistant.name}" + (
            " with a tokenizer of its own" if self.own_tokenizers else ""
        )

    def options(self) -> dict[str, Any]:
        """Return what the worker's ``Engine`` is made from; only what is set."""
        found = {
            "model": str(self.folder),
            "assistant": None if self.assistant is None else str(self.assistant),
            "prompt_lookup": self.prompt_lookup,
            "early_exit": self.early_exit,
            "own_tokenizers": self.own_tokenizers or None,
            "num_assistant_tokens": self.num_assistant_tokens,
        }
        return {name: value for name, value in found.items() if value is not None}

    def __call__(self) -> TransformersSubject:
        """Load the models."""
        for folder in (self.folder, self.assistant):
            if folder is not None and not (folder / "config.json").is_file():
                raise ModelFileError(f"{folder}: no config.json; expected a model's folder")
        try:
            from draftproof.audit.subjects.workers import transformers_engine
        except ImportError as error:
            raise ConfigError(
                f"transformers cannot be imported: {error}; "
                "hint: pip install 'draftproof[torch]', or --python"
            ) from error
        try:
            engine = transformers_engine.Engine(self.options())
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{self.folder}: {error}") from error
        return TransformersSubject(engine.model, engine.drafting)


def transformers_law(
    model: Any, prompt_ids: Sequence[int], policy: Policy, max_outcomes: int = 4096
) -> JointLaw:
    """Enumerate the law of a transformers model by plain forward passes.

    Parameters
    ----------
    model : PreTrainedModel
        The target.
    prompt_ids : sequence of int
        The prompt.
    policy : Policy
        The policy; what transformers lacks is refused.
    max_outcomes : int, default 4096
        Most continuations.

    Returns
    -------
    JointLaw
        Products of float64 conditional probabilities of transformers' float32 scores.

    Raises
    ------
    ConfigError
        If there are more continuations, or the prompt holds no token of the model's.
    BackendError
        If a row of the model is not finite.
    """
    import torch

    filters = _filters(policy)
    prompt = list(prompt_ids)
    vocab_size = model.config.vocab_size
    if not prompt or min(prompt) < 0 or max(prompt) >= vocab_size:
        raise ConfigError(f"prompt ids {prompt}: expected 1 or more, from 0 to {vocab_size - 1}")
    done: dict[Outcome, float] = {}
    level: list[tuple[Outcome, float]] = [((), 1.0)]
    for depth in range(1, policy.horizon + 1):
        grown: list[tuple[Outcome, float]] = []
        for begin in range(0, len(level), _TEXTS_PER_PASS):
            chunk = level[begin : begin + _TEXTS_PER_PASS]
            texts = torch.tensor([[*prompt, *text] for text, _ in chunk])
            with torch.no_grad():
                scores = model(texts, use_cache=False).logits[:, -1, :].float()
            for process in filters:
                scores = process(texts, scores)
            probs = torch.softmax(scores.double(), dim=-1).numpy()
            if not np.isfinite(probs).all():
                raise BackendError(f"a row of token {depth} is not finite")
            for (text, mass), row in zip(chunk, probs, strict=True):
                grown += [((*text, t), mass * float(row[t])) for t in np.flatnonzero(row).tolist()]
        level = []
        for text, mass in grown:
            if depth == policy.horizon or text[-1] in policy.eos_token_ids:
                done[text] = mass
            else:
                level.append((text, mass))
        if len(done) + len(level) > max_outcomes:
            raise ConfigError(
                f"more than {max_outcomes} continuations at token {depth} of {policy.horizon}: "
                "expected a smaller top_k (2 to 4) or horizon"
            )
    return JointLaw.from_mapping(done, policy.horizon, policy.eos_token_ids)


def _filters(policy: Policy) -> list[Any]:
    """Return transformers' own processors in the order in which `generate` applies them."""
    from transformers.generation import logits_process as lp

    params = policy.params
    known_options(policy)  # refuses what transformers lacks
    found: list[Any] = []
    if params.repetition_penalty != 1.0:
        found.append(lp.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature != 1.0:
        found.append(lp.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        found.append(lp.TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        found.append(lp.TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        found.append(lp.MinPLogitsWarper(params.min_p))
    return found
