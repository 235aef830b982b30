"""OpenVINO GenAI, plain and with prompt lookup, on a GGUF file or an IR folder."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai
from serving import Decode, Portions, serve


class Streamer(openvino_genai.StreamerBase):
    """Counts what each pass committed."""

    def __init__(self, portions: Portions) -> None:
        super().__init__()
        self.portions = portions

    def write(self, token: Any) -> Any:
        """Take tokens."""
        self.portions.add(1 if isinstance(token, int) else len(token))
        return openvino_genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Take the end of a text."""


def start(options: dict[str, Any]) -> Decode:
    """Load two pipelines: prompt lookup is chosen when one is made."""
    properties: dict[str, Any] = {}
    if options["threads"]:
        properties["INFERENCE_NUM_THREADS"] = options["threads"]
    pipelines = {}
    for drafts in (False, True):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = True
        more = {"prompt_lookup": True} if drafts else {}
        pipelines[drafts] = openvino_genai.LLMPipeline(
            options["model"], "CPU", scheduler_config=scheduler, **properties, **more
        )

    def decode(asked: dict[str, Any], portions: Portions) -> list[int]:
        drafts = bool(asked["drafts"])
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = asked["max_tokens"]
        config.do_sample = False
        config.stop_token_ids = set(asked["eos_token_ids"])
        if drafts:
            config.num_assistant_tokens = options["kappa"]
            config.max_ngram_size = 5
        ids = openvino.Tensor(np.asarray([asked["prompt_ids"]], dtype=np.int64))
        found = pipelines[drafts].generate(ids, config, Streamer(portions))
        return [int(token) for token in found.tokens[0]]

    return decode


if __name__ == "__main__":
    serve(start, ("openvino", "openvino-genai", "openvino-tokenizers"))
