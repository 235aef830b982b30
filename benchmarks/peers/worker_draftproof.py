"""Our engine with the n-gram drafter."""

from __future__ import annotations

from typing import Any

from serving import Decode, Portions, serve

import draftproof


def start(options: dict[str, Any]) -> Decode:
    """Load the engine."""
    engine = draftproof.load(
        options["model"],
        precision=options["precision"],
        threads=options["threads"],
        speculative_config={"method": "ngram", "num_speculative_tokens": options["kappa"]},
    )

    def decode(asked: dict[str, Any], portions: Portions) -> list[int]:
        tokens = []
        for output in engine.stream(
            asked["prompt_ids"],
            max_tokens=asked["max_tokens"],
            num_speculative_tokens=options["kappa"] if asked["drafts"] else 0,
        ):
            portions.add(len(output.tokens))
            tokens += [token.token_id for token in output.tokens]
        return tokens

    return decode


if __name__ == "__main__":
    serve(start, ("draftproof", "openvino"))
