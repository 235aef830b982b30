"""Hugging Face transformers: `generate`, plain, with an assistant or with prompt lookup.

The reference law comes from the same model by plain forward passes, without a cache, and
from transformers' own filters in transformers' own order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.audit.subjects.draws import Draws, Policy, RoundKind, padded
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError, ModelFileError
from draftproof.evidence import JointLaw, Outcome

__all__ = ["TransformersRecipe", "TransformersSubject", "generate_options", "transformers_law"]

#: Sampling parameters that `generate` knows, by our name.
_KNOWN = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
#: Texts of one forward pass of the reference.
_TEXTS_PER_PASS = 256


def generate_options(policy: Policy) -> dict[str, Any]:
    """Return the arguments of `generate` for a policy.

    Parameters
    ----------
    policy : Policy
        The policy.

    Returns
    -------
    dict of str to object
        Every sampling parameter is given, so that none comes from the model's folder.

    Raises
    ------
    ConfigError
        If the policy has a parameter that `generate` lacks.
    """
    known = {ours: getattr(policy.params, ours) for ours in _KNOWN}
    if SamplingParams(**known) != policy.params:
        raise ConfigError(
            f"policy {policy.params}: expected {', '.join(_KNOWN)} only, which transformers has"
        )
    ends = sorted(policy.eos_token_ids)
    return {_KNOWN[ours]: value for ours, value in known.items()} | {
        "do_sample": True,
        "max_new_tokens": policy.horizon,
        "min_p": known["min_p"] or None,
        "eos_token_id": ends or None,
        "pad_token_id": ends[0] if ends else 0,
        "num_return_sequences": 1,
    }


@dataclass(slots=True)
class _Passes:
    """Watches the target's passes: how long its cache was, and how many tokens came."""

    seen: list[tuple[int, int]] = field(default_factory=list)

    def __call__(self, _module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        # Its name differs between versions.
        caches = [value for value in kwargs.values() if hasattr(value, "get_seq_length")]
        held = int(caches[0].get_seq_length()) if caches else 0
        self.seen.append((held, int(ids.shape[1])))

    def rounds(self, num_prompt: int, num_emitted: int, is_stopped: bool) -> list[RoundKind]:
        """Return what the passes of one text were: the text grows by what a pass emits."""
        starts = [held + 1 if index else num_prompt for index, (held, _) in enumerate(self.seen)]
        ends = [*starts[1:], num_prompt + num_emitted]
        kinds = []
        for (held, width), start, end in zip(self.seen, starts, ends, strict=True):
            drafted, emitted = held + width - start, end - start
            accepted = min(max(emitted - 1, 0), drafted)
            cut = end == ends[-1] and (is_stopped or emitted <= drafted)
            kinds.append(RoundKind(drafted, accepted, emitted, cut))
        return kinds


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

        Assisted generation takes one text at a time. torch has one stream for all draws
        of a call, seeded once.
        """
        import torch

        torch.manual_seed(first_seed)
        given = torch.tensor([list(prompt_ids)])
        options = generate_options(policy) | self._options
        passes = _Passes()
        hook = self.model.register_forward_pre_hook(passes, with_kwargs=True)
        samples: list[list[int]] = []
        rounds: Counter[RoundKind] = Counter()
        try:
            for _ in range(num):
                passes.seen.clear()
                output = self.model.generate(
                    given, attention_mask=torch.ones_like(given), **options
                )
                sample = output[0, given.shape[1] :].tolist()
                samples.append(sample)
                is_stopped = bool(sample) and sample[-1] in policy.eos_token_ids
                rounds.update(passes.rounds(given.shape[1], len(sample), is_stopped))
        finally:
            hook.remove()
        return Draws(padded(samples, policy.horizon), dict(rounds), True)


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
    """

    folder: Path
    assistant: Path | None = None
    prompt_lookup: int | None = None

    def __post_init__(self) -> None:
        """Refuse two drafters at once."""
        if self.assistant is not None and self.prompt_lookup is not None:
            raise ConfigError("an assistant and prompt lookup: expected one of them")
        if self.prompt_lookup is not None and self.prompt_lookup < 1:
            raise ConfigError(f"prompt lookup of {self.prompt_lookup} tokens: expected 1 or more")

    @property
    def has_drafter(self) -> bool:
        """Whether anything drafts."""
        return self.assistant is not None or self.prompt_lookup is not None

    def __call__(self) -> TransformersSubject:
        """Load the models."""
        options: dict[str, Any] = {}
        if self.prompt_lookup is not None:
            options["prompt_lookup_num_tokens"] = self.prompt_lookup
        if self.assistant is not None:
            options["assistant_model"] = _load(self.assistant)
        return TransformersSubject(_load(self.folder), options)


def _load(folder: Path) -> Any:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ConfigError(
            f"transformers cannot be imported: {error}; hint: pip install 'draftproof[torch]'"
        ) from error
    if not (folder / "config.json").is_file():
        raise ModelFileError(f"{folder}: no config.json; expected a model's folder")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="float32")
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{folder}: {error}") from error
    return model.eval()


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
        If there are more continuations.
    BackendError
        If a row of the model is not finite.
    """
    import torch

    filters = _filters(policy)
    prompt = list(prompt_ids)
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
    generate_options(policy)  # refuses what transformers lacks
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
