"""Whether draws that know nothing of each other are called dependent, and what is seen.

Null audits of laws of several shapes, each with all tests of the order at the level of one
sample: shares at three levels with their 99 % intervals. Then copies of the draw ``lag``
before, in shares around the one that is stated to be seen, and stretches that come twice.
Usage: ``python benchmarks/audit_dependence.py [--audits 500] [--output FILE]``
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from measure import report
from numpy.typing import NDArray
from scipy.stats import beta

from draftproof.audit.draw_order import DrawOrder, dependence_of
from draftproof.evidence.lags import smallest_repeated_share

LEVELS = (0.05, 0.01, 0.001)
LAWS = {
    "2 outcomes, even": np.full(2, 0.5),
    "2 outcomes, 0.98": np.array([0.98, 0.02]),
    "81 outcomes, skewed": np.sort(np.random.default_rng(0).dirichlet(np.full(81, 0.3))),
    "81 outcomes, one of 0.97": np.array([0.97, *np.full(80, 0.03 / 80)]),
    "256 outcomes, even": np.full(256, 1 / 256),
    "nearly certain": np.array([1 - 2e-4, 1e-4, 1e-4]),
}


def p_value(codes: NDArray[np.int64]) -> float:
    return min(test.p_value for test in dependence_of([("draws", DrawOrder.of(codes))]))


def interval(hits: int, num: int) -> list[float]:
    low = float(beta.ppf(0.005, hits, num - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.995, hits + 1, num - hits)) if hits < num else 1.0
    return [low, high]


def null(law: NDArray[np.float64], num: int, audits: int, seed: list[int]) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    p = np.array([p_value(rng.choice(len(law), num, p=law)) for _ in range(audits)])
    rows = {}
    for level in LEVELS:
        hits = int((p <= level).sum())
        rows[str(level)] = {"alarms": hits, "interval": interval(hits, audits)}
    return {"audits": audits, "draws": num, "levels": rows}


def copied(codes: NDArray[np.int64], lag: int, share: float, rng: np.random.Generator) -> None:
    for place in lag + np.flatnonzero(rng.random(len(codes) - lag) < share):
        codes[place] = codes[place - lag]


def copies(law: NDArray[np.float64], num: int, audits: int, seed: list[int]) -> dict[str, object]:
    """Plant copies at lag 8, at and around the share that is stated at power 0.99."""
    rng = np.random.default_rng(seed)
    stated = smallest_repeated_share(law, num, 1e-3 / 3, 0.99)
    rows = {}
    for factor in (0.5, 1.0, 1.5):
        share, hits = min(1.0, factor * stated), 0
        for _ in range(audits):
            codes = rng.choice(len(law), num, p=law)
            copied(codes, 8, share, rng)
            hits += p_value(codes) <= 1e-3
        rows[f"{share:.4g}"] = {"seen": hits, "of": audits}
    return {"draws": num, "stated": stated, "shares": rows}


def stretches(law: NDArray[np.float64], num: int, seed: list[int]) -> dict[str, object]:
    """Find the shortest stretch, of a few lengths, that is seen in 20 of 20 audits."""
    rng = np.random.default_rng(seed)
    for length in (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048):
        hits = 0
        for _ in range(20):
            codes = rng.choice(len(law), num, p=law)
            begin = int(rng.integers(0, num // 2 - length))
            codes[num // 2 : num // 2 + length] = codes[begin : begin + length]
            hits += p_value(codes) <= 1e-3
        if hits == 20:
            return {"draws": num, "seen": length}
    return {"draws": num, "seen": None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--audits", type=int, default=500)
    parser.add_argument("--draws", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, object]] = {}
    for index, (name, law) in enumerate(LAWS.items()):
        seed = [options.seed, index]
        found = {
            "null": null(law, options.draws, options.audits, seed),
            "copies": copies(law, 5000, 20, seed),
            "stretches": stretches(law, 5000, seed),
        }
        results[name] = found
        print(name, found, flush=True)
    total = {
        str(level): sum(found["null"]["levels"][str(level)]["alarms"] for found in results.values())  # type: ignore[index]
        for level in LEVELS
    }
    audits = options.audits * len(LAWS)
    print(f"{audits} null audits; alarms {total}")
    report(
        {
            "benchmark": "audit_dependence",
            "audits": audits,
            "alarms": total,
            "results": results,
        },
        options.output,
    )


if __name__ == "__main__":
    main()
