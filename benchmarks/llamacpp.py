"""llama.cpp and OpenVINO on one GGUF file: what a pass of n tokens costs, and decoding.

Passes of one sequence over a context, each rolled back again; plain greedy decoding; and
n-gram drafts on a prompt that repeats itself. Both runtimes stand in one process and take
turns, one pass or one text at a time. On a machine that others use, ``--clock cpu
--threads 1`` counts the time of the processor in place of that of the wall.

    python benchmarks/llamacpp.py --output benchmarks/results/llamacpp.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import interleave, ratios, report, shown, summary

from draftproof.build.runtimes import RuntimeOptions, load_model
from draftproof.core.protocols import ModelBackend
from draftproof.core.types import FlatBatch, Row
from draftproof.engine import Engine, EngineCore
from draftproof.models import pull
from draftproof.proposers import NgramProposer
from draftproof.text import Tokenizer

PROMPT = (
    "Repeat the text word for word.\n\nText: A cache that cannot go back must be told so before "
    "the first draft, not after the first rejection. Who drafts pays for what is thrown away.\n\n"
    "Copy: A cache that cannot"
)


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def passes(
    backends: dict[str, ModelBackend],
    widths: list[int],
    past: int,
    repeats: int,
    clock: Callable[[], float],
) -> dict[str, list[float]]:
    """Return seconds of passes by runtime and width."""
    tokens = np.random.default_rng(0).integers(0, 1000, past + max(widths)).tolist()

    def timed(backend: ModelBackend, sequence: int, width: int) -> Callable[[], float]:
        batch = FlatBatch.from_rows([Row(sequence, tokens[past : past + width], past, width)])

        def run() -> float:
            begin = clock()
            backend.forward(batch)
            seconds = clock() - begin
            backend.truncate(sequence, past)
            return seconds

        return run

    subjects = {}
    for name, backend in backends.items():
        sequence = backend.open()
        backend.forward(FlatBatch.from_rows([Row(sequence, tokens[:past], 0, 0)]))
        for width in widths:
            subjects[f"{name}/{width}"] = timed(backend, sequence, width)
    return interleave(subjects, repeats=repeats)


def decoding(
    loaded: dict[str, tuple[ModelBackend, Tokenizer]],
    kappa: int,
    count: int,
    repeats: int,
    clock: Callable[[], float],
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return tokens per second of greedy texts, and what drafting did."""
    seen: dict[str, Any] = {}
    engines: dict[str, Engine] = {}
    for name, (backend, tokenizer) in loaded.items():
        core = EngineCore(backend, tokenizer=tokenizer, proposers=[NgramProposer()], kappa=kappa)
        engines[name] = Engine(core)

    def timed(name: str, drafts: int) -> Callable[[], float]:
        def run() -> float:
            begin = clock()
            result = engines[name].generate(
                PROMPT,
                max_tokens=count,
                ignore_eos=True,
                temperature=0.0,
                num_speculative_tokens=drafts,
            )
            seconds = clock() - begin
            seen[f"{name}/{drafts}"] = {
                "token_ids": list(result.token_ids),
                "acceptance_rate": result.stats.acceptance_rate,
            }
            return count / seconds

        return run

    subjects = {f"{name}/{k}": timed(name, k) for name in loaded for k in (0, kappa)}
    return interleave(subjects, repeats=repeats), seen


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="A GGUF file; smollm2 by default.")
    parser.add_argument("--widths", type=int, nargs="+", default=list(range(1, 17)))
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--kappa", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", default="wall", choices=tuple(CLOCKS))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    path = options.model or pull("smollm2")
    loaded = {
        name: load_model(path, runtime=RuntimeOptions(backend, precision), threads=options.threads)
        for name, backend, precision in (
            ("llamacpp", "llamacpp", None),
            ("openvino int8", "openvino", "int8"),
        )
    }
    clock = CLOCKS[options.clock]
    backends = {name: backend for name, (backend, _) in loaded.items()}
    seconds = passes(backends, options.widths, options.context, options.repeats, clock)
    speeds, seen = decoding(loaded, options.kappa, options.tokens, options.repeats, clock)
    figures: dict[str, Any] = {
        "clock": options.clock,
        "context": options.context,
        "passes": [],
        "decoding": [],
    }
    for name in loaded:
        first = seconds[f"{name}/{options.widths[0]}"]
        for width in options.widths:
            row = seconds[f"{name}/{width}"]
            figures["passes"].append(
                {
                    "runtime": name,
                    "tokens": width,
                    "ms": summary([1e3 * value for value in row]),
                    "least_ms": 1e3 * min(row),
                    "to_first": ratios(row, first),
                    "least_to_first": min(row) / min(first),
                }
            )
            shown_ratio = shown(figures["passes"][-1]["to_first"])
            print(f"{name:14} n = {width:2}: {1e3 * min(row):7.1f} ms least, ratio {shown_ratio}")
        plain, drafting = (speeds[f"{name}/{k}"] for k in (0, options.kappa))
        facts = seen[f"{name}/{options.kappa}"]
        figures["decoding"].append(
            {
                "runtime": name,
                "precision": backends[name].info.precision,
                "plain_tokens_per_s": summary(plain),
                "ngram_tokens_per_s": summary(drafting),
                "ngram_to_plain": ratios(drafting, plain),
                "acceptance_rate": facts["acceptance_rate"],
                "same_text": facts["token_ids"] == seen[f"{name}/0"]["token_ids"],
            }
        )
        print(
            f"{name:14} plain {shown(summary(plain), 1)} tok/s, n-gram "
            f"{shown(summary(drafting), 1)} tok/s, ratio {shown(ratios(drafting, plain))}, "
            f"accepted {facts['acceptance_rate']:.2f}, "
            f"same text {figures['decoding'][-1]['same_text']}"
        )
    first_texts = [seen[f"{name}/0"]["token_ids"] for name in loaded]
    figures["runtimes_agree_on"] = next(
        (at for at, pair in enumerate(zip(*first_texts, strict=True)) if len(set(pair)) > 1),
        len(first_texts[0]),
    )
    report(figures, options.output)


if __name__ == "__main__":
    main()
