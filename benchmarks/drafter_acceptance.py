"""What drafters that need no training are worth: early exits, and a model of another vocabulary.

The target writes a text for each prompt, greedily and at temperature 1. Each drafter is then
asked for one draft at every position of these texts. What is reported is the chance that
the draft is kept there, from the two laws themselves: no coin of a verifier adds noise.

    python drafter_acceptance.py --output results/early_exit.json
    python drafter_acceptance.py --draft MODEL --draft-backend llamacpp --output ...

Times are not measured here: acceptance does not depend on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import environment

from draftproof.build.runtimes import RuntimeOptions, load_model
from draftproof.core.law import Law, OneHotLaw
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.protocols import ModelBackend, ProposalRequest, Proposer
from draftproof.core.rng import CoinSource
from draftproof.core.types import FlatBatch, Row
from draftproof.proposers import DraftModelProposer, RetokenisedProposer, SharedVocabulary
from draftproof.text import TextBridge

PROMPTS = {
    "facts": "The capital of France is Paris. The capital of Italy is Rome. The Eiffel Tower is",
    "story": "Once upon a time there was a little fox who lived in the forest. One day",
    "code": "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
}
POLICIES = {"greedy": SamplingParams(temperature=0.0), "temperature 1": SamplingParams()}


def write(target: ModelBackend, prompt: Sequence[int], params: SamplingParams, length: int) -> Any:
    """Return a text of the target, and its raw logits before each new token."""
    coins, tokens, history = CoinSource(7), list(prompt), History(prompt)
    sequence = target.open()
    fed, rows = list(prompt), []
    for _ in range(length):
        start = len(tokens) - len(fed)
        row = target.forward(FlatBatch.from_rows([Row(sequence, fed, start, 1)]))[0].copy()
        rows.append(row)
        law = target_law(row, params, history)
        token = law.draw(coins.round(len(tokens)).sample(0))
        tokens.append(token)
        history.append(token)
        fed = [token]
    target.close(sequence)
    return tokens, rows


def kept(draft: Law, target: Law) -> float:
    """Return the chance that a draft of a law is kept: the sum of the smaller probability."""
    if isinstance(draft, OneHotLaw):
        return target.prob(draft.draw(0.0))
    return float(np.minimum(draft.dense(), target.dense()).sum())


def chances(
    drafter: Proposer, tokens: Sequence[int], rows: Sequence[Any], params: SamplingParams
) -> Iterator[float]:
    """Yield at every position of a text the chance that one draft is kept there."""
    begin = len(tokens) - len(rows)
    text, history = list(tokens[:begin]), History(tokens[:begin])
    for index, row in enumerate(rows):
        request = ProposalRequest("a", text, 1, params, history, CoinSource(11).round(len(text)))
        (draft,) = drafter.propose([request])
        target = target_law(row, params, history)
        if draft.token_ids:
            token = draft.token_ids[0]
            yield kept(draft.laws[0] if draft.laws else OneHotLaw(token, len(row)), target)
        else:
            yield 0.0
        text.append(tokens[begin + index])
        history.append(tokens[begin + index])
    drafter.release("a")


def measured(drafter: Proposer, texts: dict[str, Any]) -> dict[str, Any]:
    """Return the mean chance by policy and prompt."""
    found: dict[str, Any] = {}
    for policy, by_prompt in texts.items():
        values = {
            name: list(chances(drafter, tokens, rows, POLICIES[policy]))
            for name, (tokens, rows) in by_prompt.items()
        }
        joined = np.concatenate([np.array(v) for v in values.values()])
        found[policy] = {
            "kept": float(joined.mean()),
            "standard_error": float(joined.std(ddof=1) / np.sqrt(len(joined))),
            "positions": len(joined),
            "by_prompt": {name: float(np.mean(v)) for name, v in values.items()},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--layers", type=int, nargs="*", default=[4, 8, 12, 16, 20, 24, 27])
    parser.add_argument("--draft", help="a draft model of another vocabulary, in place of exits")
    parser.add_argument("--draft-backend", default="auto")
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    target, tokenizer = load_model(options.model, threads=options.threads)
    texts = {
        policy: {
            name: write(target, tokenizer.encode(prompt), params, options.length)
            for name, prompt in PROMPTS.items()
        }
        for policy, params in POLICIES.items()
    }
    report: dict[str, Any] = {"model": target.info.name, "precision": target.info.precision}
    drafters: dict[str, Proposer] = {}
    if options.draft is None:
        report["layers"] = target.num_layers  # type: ignore[attr-defined]
        for count in options.layers:
            exit_ = target.early_exit(count)  # type: ignore[attr-defined]
            drafters[f"first {count} layers"] = DraftModelProposer(exit_)
    else:
        runtime = RuntimeOptions(options.draft_backend)
        draft, other = load_model(options.draft, runtime=runtime, threads=options.threads)
        bridge = TextBridge(tokenizer, other)
        shared = bridge.shared(target.info.vocab_size, draft.info.vocab_size)
        report |= {
            "draft": draft.info.name,
            "target_tokens": tokenizer.vocab_size,
            "draft_tokens": other.vocab_size,
            "shared_tokens": shared.num_shared,
        }
        drafters = {
            "intersection": DraftModelProposer(draft, vocabulary=SharedVocabulary(shared, bridge)),
            "retokenised, greedy": RetokenisedProposer(draft, bridge),
            "retokenised, sampled": RetokenisedProposer(draft, bridge, temperature=None),
        }
    report["drafters"] = {}
    for name, drafter in drafters.items():
        found = report["drafters"][name] = measured(drafter, texts)
        shown = ", ".join(
            f"{policy} {values['kept']:.3f} ({values['standard_error']:.3f})"
            for policy, values in found.items()
        )
        print(f"{name:24} {shown}", flush=True)
    report["environment"] = environment()
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
