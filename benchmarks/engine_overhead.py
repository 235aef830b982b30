"""How much of a step is not the model.

Compares the engine with a bare loop over the backend that runs the same passes: same
rows, same block widths, argmax of the rows it needs and nothing else. The difference
is everything the engine does: scheduling, laws, rules, stops, bookkeeping, records.

Three workloads: plain decoding at batch 1 (with and without a drafter configured),
and 16 rows that each draft 4 tokens in every round.

    python benchmarks/engine_overhead.py --precision int8 --output benchmarks/results/…
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from measure import interleave, ratios, report, shown, summary

from draftproof.build import load_model
from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import ModelBackend
from draftproof.core.types import FlatBatch, Row
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.proposers import NgramProposer
from draftproof.testing.scripted import FixedProposer

STEPS = {1: 48, 16: 12}
PROMPT_TOKENS = 200


def prompts(count: int) -> list[tuple[int, ...]]:
    """Make token prompts that share no page."""
    generator = np.random.default_rng(5)
    return [tuple(generator.integers(1000, 20000, PROMPT_TOKENS).tolist()) for _ in range(count)]


def bare_loop(backend: ModelBackend, rows: Sequence[tuple[int, ...]], width: int) -> float:
    """Seconds per pass of a loop that only runs passes and takes argmax."""
    sequences, steps = [], STEPS[len(rows)]
    for prompt in rows:
        sequence = backend.open(())
        backend.forward(FlatBatch.from_rows([Row(sequence, prompt, 0, 1)]))
        sequences.append(sequence)
    begin = time.perf_counter()
    for step in range(steps):
        start = PROMPT_TOKENS + step
        batch = FlatBatch.from_rows(
            [Row(sequence, [17] * width, start, width) for sequence in sequences]
        )
        logits = backend.forward(batch)
        for row in range(len(sequences)):
            int(logits[row * width].argmax())
        for sequence in sequences:
            backend.truncate(sequence, start + 1)
    elapsed = time.perf_counter() - begin
    for sequence in sequences:
        backend.close(sequence)
    return elapsed / steps


def engine_loop(
    backend: ModelBackend, rows: Sequence[tuple[int, ...]], kappa: int, params: SamplingParams
) -> float:
    """Seconds per pass of the engine on the same passes."""
    # Token 17 is never the model's choice here: every round drafts, none is accepted.
    proposers = [FixedProposer([17] * kappa)] if kappa else [NgramProposer()]
    steps = STEPS[len(rows)]
    core = EngineCore(backend, proposers=proposers, kappa=kappa)
    request = GenerateRequest(
        rows[0], params, max_tokens=steps + 2 + kappa, ignore_eos=True, seed=3
    )
    for prompt in rows:
        core.submit(replace(request, prompt_ids=prompt))
    while not all(session.num_generated for session in core._sessions.values()):
        core.step()
    begin = time.perf_counter()
    for _ in range(steps):
        core.step()
    elapsed = time.perf_counter() - begin
    for request_id in list(core._sessions):
        core.abort(request_id)
    core.reap()
    return elapsed / steps


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    backend, _ = load_model(options.model, precision=options.precision)
    banned = {"banned_token_ids": (17,)}
    policies = {
        "greedy": SamplingParams(temperature=0.0),
        "T=1": SamplingParams(),
        "top_p=0.9": SamplingParams(top_p=0.9),
    }
    figures = {}
    for name, count, kappa in (("batch 1, plain", 1, 0), ("batch 16, kappa 4", 16, 4)):
        rows = prompts(count)
        subjects = {"bare": lambda rows=rows, kappa=kappa: bare_loop(backend, rows, kappa + 1)}
        for label, params in policies.items():
            policy = replace(params, **banned) if kappa else params
            subjects[label] = lambda rows=rows, kappa=kappa, policy=policy: engine_loop(
                backend, rows, kappa, policy
            )
        runs = interleave(subjects, repeats=options.repeats)
        print(f"\n{name}: ms per pass, and the engine relative to the bare loop")
        figures[name] = {}
        for label, seconds in runs.items():
            over = ratios(seconds, runs["bare"])
            figures[name][label] = {"seconds": summary(seconds), "ratio": over}
            ms = summary([1e3 * value for value in seconds])
            print(f"  {label:10} {shown(ms)} ms   x {shown(over, 3)}")
    report({"benchmark": "engine_overhead", "figures": figures}, options.output)


if __name__ == "__main__":
    main()
