"""What turning a row of logits into a law costs, beside reading the row once.

Prints medians in nanoseconds per entry of one row, then one JSON line.
Usage: ``python benchmarks/law_cost.py [--repeats 101]``
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure import report

from draftproof.core.law import Law, OneHotLaw
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import CoinSource

SIZES = (49152, 128256)
POLICIES = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top_k 50": SamplingParams(temperature=0.8, top_k=50),
    "top_p .9": SamplingParams(temperature=0.8, top_p=0.9),
    "top_k, top_p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "min_p .05": SamplingParams(temperature=0.8, min_p=0.05),
    "penalties": SamplingParams(temperature=0.8, repetition_penalty=1.1),
}


def median_ns(call: Callable[[], object], repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times)


def actions(size: int) -> dict[str, Callable[[], object]]:
    """Return what is timed; logits spread like a language model's, sigma 3."""
    rng = np.random.default_rng(0)
    logits = (3 * rng.normal(size=size)).astype(np.float32)
    other = (logits + rng.normal(size=size)).astype(np.float32)
    history = History(rng.integers(0, size, 500).tolist())
    shifted = logits - logits.max()
    p, q = (target_law(row, SamplingParams(), history) for row in (logits, other))
    few = target_law(other, SamplingParams(top_k=50), history)
    source = CoinSource(1)
    noise = source.round(0).noise(0, size)

    def law(params: SamplingParams) -> Callable[[], Law]:
        return lambda: target_law(logits, params, history)

    return {
        "read once (max)": lambda: logits.max(),
        "exp alone": lambda: np.exp(shifted),
        **{f"law: {name}": law(params) for name, params in POLICIES.items()},
        "draw": lambda: p.draw(0.37),
        "residual, dense q": lambda: p.residual(q),
        "residual, sparse q": lambda: p.residual(few),
        "residual, one-hot q": lambda: p.residual(OneHotLaw(7, size)),
        "noise": lambda: source.round(0).noise(0, size),
        "race": lambda: p.race(noise),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=101)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    table = {
        size: {
            name: median_ns(call, options.repeats) / size for name, call in actions(size).items()
        }
        for size in SIZES
    }
    print(f"{'ns per entry':22}" + "".join(f"{f'V={size}':>12}" for size in SIZES))
    for name in table[SIZES[0]]:
        print(f"{name:22}" + "".join(f"{table[size][name]:12.2f}" for size in SIZES))
    results = {
        str(size): {name: round(value, 3) for name, value in row.items()}
        for size, row in table.items()
    }
    report(
        {
            "benchmark": "law_cost",
            "unit": "ns per row entry, median",
            "repeats": options.repeats,
            "results": results,
        },
        options.output,
    )


if __name__ == "__main__":
    main()
