"""OpenVINO GenAI: `LLMPipeline`, plain, with prompt lookup or with a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

__all__ = ["Engine"]

#: Computed as the reference is: a rounded cache is another law than the model's.
_PROPERTIES = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}


class _Chunks(openvino_genai.StreamerBase):
    """Notes how many tokens each pass of the target committed."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def write(self, token: Any) -> Any:
        """Take the tokens of one pass."""
        self.sizes.append(1 if isinstance(token, int) else len(token))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Take the end of a text."""


class Engine:
    """A folder of OpenVINO IR, or a GGUF file, in OpenVINO GenAI.

    Parameters
    ----------
    options : dict
        ``model`` (path); ``prompt_lookup`` (drafts a round) and ``max_ngram_size``, or
        ``draft_model`` (path) and ``num_assistant_tokens``, or none of them;
        ``properties`` (of the device).
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._properties = {**_PROPERTIES, **(options.get("properties") or {})}
        self._config: dict[str, Any] = {}
        arguments: dict[str, Any] = dict(self._properties)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.cache_size = 1
        arguments["scheduler_config"] = scheduler
        self._has_draft_model = bool(options.get("draft_model"))
        if options.get("prompt_lookup"):
            arguments["prompt_lookup"] = True
            self._config["num_assistant_tokens"] = options["prompt_lookup"]
            self._config["max_ngram_size"] = options.get("max_ngram_size", 2)
        if self._has_draft_model:
            arguments["draft_model"] = openvino_genai.draft_model(
                options["draft_model"], "CPU", **self._properties
            )
            self._config["num_assistant_tokens"] = options["num_assistant_tokens"]
        model = Path(options["model"])
        if model.suffix == ".gguf":
            arguments["enable_save_ov_model"] = True
        self._pipeline = openvino_genai.LLMPipeline(str(model), "CPU", **arguments)
        graph = (model.parent if model.suffix == ".gguf" else model) / "openvino_model.xml"
        self._plain = openvino.Core().compile_model(str(graph), "CPU", self._properties)
        self._request = self._plain.create_infer_request()

    def describe(self) -> dict[str, Any]:
        """Say what it is, and in which order it filters."""
        config = self._pipeline.get_generation_config()
        ends = {token for token in (*config.stop_token_ids, config.eos_token_id) if token >= 0}
        packages = ("openvino", "openvino-genai", "openvino-tokenizers")
        return {
            "versions": {package: version(package) for package in packages},
            "vocab_size": self._plain.output(0).partial_shape[-1].get_length(),
            "eos_token_ids": sorted(ends),
            "parameters": [
                "temperature", "top_k", "top_p",
                "repetition_penalty", "presence_penalty", "frequency_penalty",
            ],
            "order": ["bias", "allowed", "penalties", "top_k", "temperature", "top_p"],
        }  # fmt: skip

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        found = self._pipeline.get_tokenizer().encode(text).input_ids.data
        return [int(token) for token in found[0]]

    def rows(self, texts: Sequence[Sequence[int]]) -> list[Any]:
        """Return the logits after each text: the same graph in plain passes of OpenVINO."""
        return [self._row(list(text)) for text in texts]

    def _row(self, text: list[int]) -> Any:
        self._request.reset_state()
        given = {
            "input_ids": np.array([text], dtype=np.int64),
            "attention_mask": np.ones((1, len(text)), dtype=np.int64),
            "position_ids": np.arange(len(text), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        names = {name for port in self._plain.inputs for name in port.get_names()}
        found = self._request.infer({name: value for name, value in given.items() if name in names})
        return np.array(found[self._plain.output(0)][0, -1], dtype=np.float32)

    def draw(
        self, prompt_ids: Sequence[int], policy: dict[str, Any], seeds: Sequence[int]
    ) -> dict[str, Any]:
        """Generate once per seed: a pipeline has one generator for all texts of a call."""
        config = self._pipeline.get_generation_config()
        config.do_sample = True
        config.max_new_tokens = policy["max_tokens"]
        # It wants an end token, even where it is to ignore it.
        config.eos_token_id = min(policy["eos_token_ids"], default=0)
        config.stop_token_ids = {config.eos_token_id, *policy["eos_token_ids"]}
        config.ignore_eos = not policy["eos_token_ids"]
        for name in (
            "temperature", "top_p",
            "repetition_penalty", "presence_penalty", "frequency_penalty",
        ):  # fmt: skip
            setattr(config, name, policy[name])
        if policy["top_k"]:
            config.top_k = policy["top_k"]
        for name, value in self._config.items():
            setattr(config, name, value)
        given = openvino.Tensor(np.array([list(prompt_ids)], dtype=np.int64))
        samples = []
        totals: dict[str, Any] = {"accepted": 0, "drafted": None, "rounds": 0}
        for seed in seeds:
            # GenAI takes it for a generator of 32 bits.
            config.rng_seed = seed % 2**32
            chunks = _Chunks()
            result = self._pipeline.generate(given, config, chunks)
            samples.append([int(token) for token in result.tokens[0]])
            self._count(totals, chunks.sizes, result)
        if not self._config:
            totals = {"accepted": 0, "drafted": 0, "rounds": 0}
        return {"samples": samples, "rounds": None, "totals": totals}

    def _count(self, totals: dict[str, Any], sizes: list[int], result: Any) -> None:
        """Add one text: the first pass drafts nothing, the others emit what they keep and one."""
        totals["rounds"] += len(sizes[1:])
        if self._has_draft_model:
            totals["accepted"] += result.extended_perf_metrics.get_num_accepted_tokens()
        else:
            totals["accepted"] += sum(size - 1 for size in sizes[1:])
