"""llama-cpp-python: the high-level `Llama`, plain or with prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

__all__ = ["Engine"]

#: 2**32 - 1 asks llama.cpp for a seed of its own choice.
_NUM_SEEDS = 2**32 - 1


class _Watched:
    """A drafter that notes which text it was asked about, and what it said."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.calls: list[tuple[int, list[int]]] = []

    def __call__(self, input_ids: Any, **options: Any) -> Any:
        drafts = self._drafter(input_ids, **options)
        self.calls.append((len(input_ids), [int(token) for token in drafts]))
        return drafts


class Engine:
    """A GGUF file in llama.cpp.

    Parameters
    ----------
    options : dict
        ``model`` (path); ``prompt_lookup`` (drafts a round) and ``max_ngram_size`` (longest
        n-gram that is looked up), or neither; ``n_ctx`` (tokens of context); ``threads``.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._drafter = None
        if options.get("prompt_lookup"):
            self._drafter = _Watched(
                LlamaPromptLookupDecoding(
                    max_ngram_size=options.get("max_ngram_size", 2),
                    num_pred_tokens=options["prompt_lookup"],
                )
            )
        size = options.get("n_ctx", 512)
        self._llm = llama_cpp.Llama(
            options["model"],
            n_ctx=size,
            n_batch=size,
            draft_model=self._drafter,
            logits_all=True,
            # Its threads wait for each other in loops: small models are faster on one.
            n_threads=options.get("threads", 1),
            n_threads_batch=options.get("threads", 1),
            verbose=False,
        )

    def describe(self) -> dict[str, Any]:
        """Say what it is, and in which order it filters."""
        ends = self._llm.token_eos()
        return {
            "versions": {"llama-cpp-python": llama_cpp.__version__},
            "vocab_size": self._llm.n_vocab(),
            "eos_token_ids": [ends] if ends >= 0 else [],
            # Its repetition penalty does not count the prompt, ours does.
            "parameters": [
                "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty",
            ],
            "order": [
                "bias", "penalties", "allowed", "top_k", "top_p", "min_p", "temperature",
            ],
        }  # fmt: skip

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return list(self._llm.tokenize(text.encode("utf-8")))

    def rows(self, texts: Sequence[Sequence[int]]) -> list[Any]:
        """Return the logits after each text, each in one plain pass of its own."""
        found = []
        for text in texts:
            self._llm.reset()
            self._llm.eval(list(text))
            found.append(np.array(self._llm.scores[len(text) - 1], dtype=np.float32))
        return found

    def draw(
        self, prompt_ids: Sequence[int], policy: dict[str, Any], seeds: Sequence[int]
    ) -> dict[str, Any]:
        """Generate once per seed; the rounds are read from what the drafter was asked."""
        samples, by_draw = [], []
        for seed in seeds:
            if self._drafter is not None:
                self._drafter.calls.clear()
            self._llm.set_seed(seed % _NUM_SEEDS)
            sample: list[int] = []
            stream = self._llm.generate(
                list(prompt_ids),
                temp=policy["temperature"],
                top_k=policy["top_k"],
                top_p=policy["top_p"],
                min_p=policy["min_p"],
                presence_penalty=policy["presence_penalty"],
                frequency_penalty=policy["frequency_penalty"],
                repeat_penalty=1.0,
            )
            for token in stream:
                sample.append(int(token))
                if len(sample) == policy["max_tokens"] or sample[-1] in policy["eos_token_ids"]:
                    break
            stream.close()
            samples.append(sample)
            by_draw.append(self._rounds(len(prompt_ids), sample))
        rounds = [[*kind, 1] for kinds in by_draw for kind in kinds]
        return {"samples": samples, "rounds": rounds, "by_draw": by_draw, "totals": None}

    def _rounds(self, num_prompt: int, sample: list[int]) -> list[tuple[int, int, int, bool]]:
        """Return (drafted, accepted, emitted, cut) of the rounds of one text."""
        if self._drafter is None:
            return [(0, 0, 1, False)] * len(sample)
        calls = self._drafter.calls
        found = [(0, 0, 1, False)]  # the token after the prompt
        for place, (length, drafts) in enumerate(calls):
            begin = length - num_prompt
            end = calls[place + 1][0] - num_prompt if place + 1 < len(calls) else len(sample)
            emitted = sample[begin:end]
            accepted = 0
            while accepted < min(len(emitted), len(drafts)) and (
                emitted[accepted] == drafts[accepted]
            ):
                accepted += 1
            # The text ended on a draft: this round never came to its last token.
            found.append((len(drafts), accepted, len(emitted), accepted == len(emitted)))
        return found
