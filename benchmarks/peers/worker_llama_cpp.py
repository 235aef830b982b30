"""llama-cpp-python, plain and with its prompt lookup."""

from __future__ import annotations

from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from serving import Decode, Portions, serve


def start(options: dict[str, Any]) -> Decode:
    """Load the model twice: the drafter is chosen when one is made."""
    models = {}
    for drafts in (False, True):
        lookup = LlamaPromptLookupDecoding(max_ngram_size=5, num_pred_tokens=options["kappa"])
        models[drafts] = llama_cpp.Llama(
            options["model"],
            n_ctx=2048,
            n_threads=options["threads"] or None,
            n_threads_batch=options["threads"] or None,
            draft_model=lookup if drafts else None,
            logits_all=drafts,
            verbose=False,
        )

    def decode(asked: dict[str, Any], portions: Portions) -> list[int]:
        tokens: list[int] = []
        for token in models[bool(asked["drafts"])].generate(asked["prompt_ids"], temp=0.0):
            portions.add(1)
            tokens.append(int(token))
            if token in asked["eos_token_ids"] or len(tokens) == asked["max_tokens"]:
                break
        return tokens

    return decode


if __name__ == "__main__":
    serve(start, ("llama-cpp-python",))
