"""Hugging Face transformers: `generate`, plain or assisted in one of its ways.

The auditor uses this file in its own process too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
import transformers

__all__ = ["Engine", "Passes", "draw"]

#: What `generate` is asked for; each is given, so that none comes from the model's folder.
_KNOBS = ("temperature", "top_k", "top_p", "repetition_penalty")
_TEXTS_PER_PASS = 256

#: (drafted, accepted, emitted, cut)
Kind = tuple[int, int, int, bool]


class Passes:
    """Watches the target's passes: how long its cache was, and how many tokens came."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._num_layers = model.config.num_hidden_layers
        self.seen: list[tuple[int, int]] = []

    def __call__(self, _module: Any, args: Any, kwargs: Any) -> None:
        """Note a pass; drafts by early exit are passes of the same model with fewer layers."""
        if self._model.config.num_hidden_layers != self._num_layers:
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        # Its name differs between versions.
        caches = [value for value in kwargs.values() if hasattr(value, "get_seq_length")]
        held = int(caches[0].get_seq_length()) if caches else 0
        self.seen.append((held, int(ids.shape[1])))

    def rounds(self, num_prompt: int, num_emitted: int, is_stopped: bool) -> list[Kind]:
        """Return what the passes of one text were: the text grows by what a pass emits."""
        starts = [held + 1 if place else num_prompt for place, (held, _) in enumerate(self.seen)]
        ends = [*starts[1:], num_prompt + num_emitted]
        kinds = []
        for (held, width), start, end in zip(self.seen, starts, ends):  # noqa: B905  Python 3.9
            drafted, emitted = held + width - start, end - start
            accepted = min(max(emitted - 1, 0), drafted)
            cut = end == ends[-1] and (is_stopped or emitted <= drafted)
            kinds.append((drafted, accepted, emitted, cut))
        return kinds


class Engine:
    """A model's folder in transformers, on the CPU in float32.

    Parameters
    ----------
    options : dict
        ``model`` (path); one of ``prompt_lookup`` (drafts a round), ``assistant`` (path)
        and ``early_exit`` (layers), or none; ``own_tokenizers`` (the assistant has
        another tokenizer); ``num_assistant_tokens`` (drafts of an assistant).
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._folder = options["model"]
        self.model = _load(self._folder)
        #: Arguments of `generate` that turn speculation on.
        self.drafting: dict[str, Any] = {}
        drafter = self.model
        if options.get("prompt_lookup"):
            self.drafting["prompt_lookup_num_tokens"] = options["prompt_lookup"]
        if options.get("early_exit"):
            layers = self.model.config.num_hidden_layers
            if options["early_exit"] >= layers:
                raise ValueError(
                    f"early exit after layer {options['early_exit']} of {layers}: "
                    "expected fewer layers than the model has"
                )
            self.drafting["assistant_early_exit"] = options["early_exit"]
        if options.get("assistant"):
            drafter = _load(options["assistant"])
            self.drafting["assistant_model"] = drafter
        if options.get("own_tokenizers"):
            self.drafting["tokenizer"] = _tokenizer(self._folder)
            self.drafting["assistant_tokenizer"] = _tokenizer(options["assistant"])
        if options.get("num_assistant_tokens"):
            # Only the drafter's own configuration is read.
            drafter.generation_config.num_assistant_tokens = options["num_assistant_tokens"]
            drafter.generation_config.num_assistant_tokens_schedule = "constant"

    def describe(self) -> dict[str, Any]:
        """Say what it is, and in which order it filters."""
        ends = self.model.generation_config.eos_token_id
        return {
            "versions": {"torch": torch.__version__, "transformers": version("transformers")},
            "vocab_size": self.model.config.vocab_size,
            "eos_token_ids": [] if ends is None else [ends] if isinstance(ends, int) else ends,
            "parameters": [*_KNOBS, "min_p"],
            "order": ["bias", "penalties", "allowed", "temperature", "top_k", "top_p", "min_p"],
        }

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = _tokenizer(self._folder)(text)["input_ids"]
        return ids

    def rows(self, texts: Sequence[Sequence[int]]) -> list[Any]:
        """Return the logits after each text, in plain passes without a cache."""
        found: list[Any] = []
        for begin in range(0, len(texts), _TEXTS_PER_PASS):
            given = torch.tensor([list(text) for text in texts[begin : begin + _TEXTS_PER_PASS]])
            with torch.no_grad():
                logits = self.model(given, use_cache=False).logits[:, -1, :].float()
            found += list(logits.numpy())
        return found

    def draw(
        self, prompt_ids: Sequence[int], policy: dict[str, Any], seeds: Sequence[int]
    ) -> dict[str, Any]:
        """Generate one text per seed."""
        return draw(self.model, self.drafting, prompt_ids, policy, seeds)


def draw(
    model: Any,
    options: dict[str, Any],
    prompt_ids: Sequence[int],
    policy: dict[str, Any],
    seeds: Sequence[int],
) -> dict[str, Any]:
    """Generate one text at a time: assisted generation takes no more.

    Parameters
    ----------
    model : PreTrainedModel
        The target.
    options : dict
        Arguments of `generate` that turn speculation on.
    prompt_ids : sequence of int
        The prompt.
    policy : dict
        Sampling parameters, ``max_tokens`` and ``eos_token_ids``.
    seeds : sequence of int
        One per text.

    Returns
    -------
    dict
        ``samples``, ``rounds`` with how often each was played, ``by_draw`` the rounds of each
        sample in order, ``totals``.
    """
    ends = list(policy["eos_token_ids"])
    asked = {name: policy[name] for name in _KNOBS}
    asked.update(
        do_sample=True,
        max_new_tokens=policy["max_tokens"],
        min_p=policy["min_p"] or None,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        num_return_sequences=1,
    )
    given = torch.tensor([list(prompt_ids)])
    mask = torch.ones_like(given)
    passes = Passes(model)
    hook = model.register_forward_pre_hook(passes, with_kwargs=True)
    samples = []
    by_draw: list[list[Kind]] = []
    try:
        for seed in seeds:
            passes.seen.clear()
            torch.manual_seed(seed)
            output = model.generate(given, attention_mask=mask, **{**asked, **options})
            sample = output[0, given.shape[1] :].tolist()
            samples.append(sample)
            is_stopped = bool(sample) and sample[-1] in ends
            by_draw.append(passes.rounds(given.shape[1], len(sample), is_stopped))
    finally:
        hook.remove()
    rounds = Counter(kind for kinds in by_draw for kind in kinds)
    told = [[*kind, times] for kind, times in sorted(rounds.items())]
    return {"samples": samples, "rounds": told, "by_draw": by_draw, "totals": None}


def _load(folder: str) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, local_files_only=True, dtype="float32"
    )
    return model.eval()


def _tokenizer(folder: str) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
