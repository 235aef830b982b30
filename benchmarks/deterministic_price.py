"""What the deterministic mode costs: the same work with and without it.

Two engines over the same weights take turns: plain text alone, copying with drafts alone,
plain text in a batch, and reading a long prompt. The ratio is time in the mode over time
without it, within rounds; above 1 the mode is slower.

    python deterministic_price.py --precision int8 --output results/deterministic_price_int8.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from measure import interleave, ratios, report, shown, summary
from speculation import FREE, copying_prompt

from draftproof.build import load
from draftproof.engine import Engine


def work(engine: Engine, name: str) -> Callable[[], float]:
    """Return a task that runs once and gives its seconds."""
    count = 0

    def run() -> float:
        nonlocal count
        count += 1  # a prompt of its own each time: nothing is found in the prefix cache
        if name == "plain, batch 1":
            prompts, tokens, kappa = [f"{count}. {FREE[0]}"], 64, 0
        elif name == "copying, kappa 7, batch 1":
            prompts, tokens, kappa = [f"{count}. {copying_prompt(count)}"], 96, 7
        elif name == "plain, batch 16":
            prompts = [f"{count}. {FREE[i % len(FREE)]} {i}" for i in range(16)]
            tokens, kappa = 32, 0
        else:
            prompts = [f"{count}. " + " ".join(copying_prompt(count + i) for i in range(8))]
            tokens, kappa = 1, 0
        requests = [
            engine.request(prompt, max_tokens=tokens, num_speculative_tokens=kappa, ignore_eos=True)
            for prompt in prompts
        ]
        begin = perf_counter()
        engine.generate_many(requests)
        return perf_counter() - begin

    return run


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    config = {"method": "ngram", "num_speculative_tokens": 7}
    engines = {
        mode: load(
            options.model,
            precision=options.precision,
            speculative_config=config,
            deterministic=mode == "deterministic",
        )
        for mode in ("ordinary", "deterministic")
    }
    figures = {}
    for name in ("plain, batch 1", "copying, kappa 7, batch 1", "plain, batch 16", "reading"):
        seconds = interleave(
            {mode: work(engine, name) for mode, engine in engines.items()},
            repeats=options.repeats,
        )
        price = ratios(seconds["deterministic"], seconds["ordinary"])
        figures[name] = {"seconds": {m: summary(s) for m, s in seconds.items()}, "price": price}
        print(f"{name:28} {shown(price)} x the time")
    report(
        {
            "benchmark": "deterministic_price",
            "precision": options.precision,
            "figures": figures,
        },
        options.output,
    )


if __name__ == "__main__":
    main()
