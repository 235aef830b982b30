"""Generation of transformers, plain and with prompt lookup, on weights of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from serving import Decode, Portions, serve


class Streamer(transformers.generation.streamers.BaseStreamer):
    """Counts what each pass committed; the prompt comes first."""

    def __init__(self, portions: Portions) -> None:
        self.portions = portions
        self.has_prompt = False

    def put(self, value: Any) -> None:
        """Take tokens."""
        if self.has_prompt:
            self.portions.add(value.numel())
        self.has_prompt = True

    def end(self) -> None:
        """Take the end of a text."""


def start(options: dict[str, Any]) -> Decode:
    """Load the model."""
    if options["threads"]:
        torch.set_num_threads(options["threads"])
    path = Path(options["model"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()

    def decode(asked: dict[str, Any], portions: Portions) -> list[int]:
        ids = torch.tensor([asked["prompt_ids"]])
        drafts = {"prompt_lookup_num_tokens": options["kappa"]} if asked["drafts"] else {}
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=asked["max_tokens"],
                eos_token_id=asked["eos_token_ids"],
                pad_token_id=asked["eos_token_ids"][0],
                streamer=Streamer(portions),
                **drafts,
            )
        return [int(token) for token in found[0, ids.shape[1] :]]

    return decode


if __name__ == "__main__":
    serve(start, ("torch", "transformers", "gguf"))
