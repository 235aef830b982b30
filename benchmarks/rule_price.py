"""What each exact rule accepts: block, standard, coupled and sample-match on one drafter.

The target is a real model. The drafter is the same model with a short memory: it sees
only the last few tokens, so that its law is right about grammar and wrong about the
matter, as a small draft model's is. Every rule decodes the same prompts with several
seeds; the mean acceptance length is 1 + accepted drafts per round, with the standard
error over texts.

    python rule_price.py --output results/rule_price.json
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from measure import report
from speculation import FREE

from draftproof.build import load_model
from draftproof.core.policy import SamplingParams, target_law
from draftproof.core.protocols import ModelBackend, ProposalRequest
from draftproof.core.types import Draft, FlatBatch, Row
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.verify import RULES


class ShortMemory:
    """Drafts from the model's law after the last tokens alone."""

    name = "short-memory"

    def __init__(self, model: ModelBackend, memory: int) -> None:
        self._model = model
        self._memory = memory

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft token by token, in one batch."""
        model = self._model
        held = [list(request.token_ids[-self._memory :]) for request in requests]
        sequences = [model.open() for _ in requests]
        tokens: list[list[int]] = [[] for _ in requests]
        laws: list[list] = [[] for _ in requests]
        for sequence, text, request in zip(sequences, held, requests, strict=True):
            model.reserve(sequence, len(text) + request.kappa)
        for i in range(max(request.kappa for request in requests)):
            live = [n for n, request in enumerate(requests) if i < request.kappa]
            rows = [
                Row(
                    sequences[n],
                    held[n] if i == 0 else tokens[n][-1:],
                    model.length(sequences[n]),
                    1,
                )
                for n in live
            ]
            logits = model.forward(FlatBatch.from_rows(rows))
            for row, n in zip(logits, live, strict=True):
                request = requests[n]
                law = target_law(row, request.params, request.history, tokens[n])
                size = law.vocab_size
                tokens[n].append(
                    law.race(request.coins.noise(i, size))
                    if request.coupled
                    else law.draw(request.coins.draft(i))
                )
                laws[n].append(law)
        for sequence in sequences:
            model.close(sequence)
        return [
            Draft(tuple(drafted), tuple(held_laws), self.name)
            for drafted, held_laws in zip(tokens, laws, strict=True)
        ]

    def release(self, request_id: str) -> None:
        """Keep nothing."""


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=60)
    parser.add_argument("--memory", type=int, default=4)
    parser.add_argument("--kappa", type=int, default=4)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    backend, tokenizer = load_model(options.model)
    core = EngineCore(
        backend,
        tokenizer=tokenizer,
        proposers=[ShortMemory(backend, options.memory)],
        kappa=options.kappa,
    )
    figures = []
    for policy, params in {
        "T=1": SamplingParams(temperature=1.0),
        "T=1, top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
        "T=0.6": SamplingParams(temperature=0.6),
    }.items():
        for rule in RULES:
            for index in range(options.texts):
                core.submit(
                    GenerateRequest(
                        tuple(tokenizer.encode(FREE[index % len(FREE)] + "\n\n")),
                        params,
                        options.max_tokens,
                        rule=rule,
                        seed=1000 + index,
                        ignore_eos=True,
                    )
                )
            results = list(core.run().values())
            lengths = [result.stats.mean_acceptance_length for result in results]
            pooled = results[0].stats
            for result in results[1:]:
                pooled = pooled.merge(result.stats)
            error = statistics.stdev(lengths) / len(lengths) ** 0.5
            rates = pooled.acceptance_rate_per_pos
            figures.append(
                {
                    "policy": policy,
                    "rule": rule,
                    "mean_acceptance_length": pooled.mean_acceptance_length,
                    "standard_error": error,
                    "acceptance_rate_per_pos": rates,
                    "num_drafted_per_pos": pooled.num_drafted_per_pos,
                }
            )
            print(
                f"{policy:15} {rule:13} {pooled.mean_acceptance_length:.3f} +- {error:.3f}   "
                + " ".join(f"{rate:.2f}" for rate in rates)
            )
    settings = {key: value for key, value in vars(options).items() if key != "output"}
    report({"benchmark": "rule_price", **settings, "figures": figures}, options.output)


if __name__ == "__main__":
    main()
