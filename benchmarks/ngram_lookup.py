"""Time prompt lookup against context length and n-gram range.

Run: ``python benchmarks/ngram_lookup.py``. Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import report

from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.proposers import NgramProposer

LENGTHS = (1_000, 10_000, 100_000)
RANGES = ((2, 4), (2, 64), (10, 500), (1, 500))
ROUNDS = 60
SEED = 0


def texts(length: int) -> Iterator[tuple[str, list[int]]]:
    """Ordinary and hostile texts: word-like, few symbols, one symbol, runs, Fibonacci."""
    rng = np.random.default_rng(SEED)
    yield "zipf", np.minimum(rng.zipf(1.2, length), 49_000).tolist()
    yield "uniform 50", rng.integers(0, 50, length).tolist()
    yield "constant", [7] * length
    runs: list[int] = []
    while len(runs) < length:
        runs += [7] * 100 + [int(rng.integers(8, 1000))]
    yield "runs of 100", runs[: length - 50] + [7] * 50
    older, word = [0], [0, 1]
    while len(word) < length:
        older, word = word, word + older
    yield "fibonacci", word[:length]


def measure(text: list[int], low: int, high: int) -> tuple[float, float]:
    """Return the first call, which reads the prompt, and the median of later ones, in us."""
    proposer, tokens = NgramProposer(low, high), list(text)
    history, coins = History(text[:10]), CoinSource(1).round(0)
    params = SamplingParams()

    def call() -> float:
        request = ProposalRequest("a", tokens, 8, params, history, coins)
        begin = time.perf_counter()
        proposer.propose([request])
        return 1e6 * (time.perf_counter() - begin)

    first, later = call(), []
    for turn in range(ROUNDS):
        tokens.extend(text[3 * turn : 3 * turn + 3])
        tokens[-3:] = text[-3:]
        later.append(call())
    return first, statistics.median(later)


def main() -> None:
    """Measure all texts, lengths and ranges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'text':12} {'tokens':>7} {'range':>9} {'first us':>9} {'us/token':>9} {'then us':>8}")
    for length in LENGTHS:
        for name, text in texts(length):
            for low, high in RANGES:
                first, then = measure(text, low, high)
                rows.append([name, length, low, high, round(first), round(then)])
                head = f"{name:12} {length:7} {f'{low}..{high}':>9}"
                print(f"{head} {first:9.0f} {first / length:9.2f} {then:8.0f}")
    columns = ["text", "tokens", "min_n", "max_n", "first_us", "median_us"]
    report(
        {"benchmark": "ngram_lookup", "seed": SEED, "columns": columns, "rows": rows},
        options.output,
    )


if __name__ == "__main__":
    main()
