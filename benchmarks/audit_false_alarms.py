"""How often the auditor accuses a decoder that is right.

Thousands of null audits of each test: draws of the reference law itself, a new fixture
and a new calibration for every block of audits. Shares at two levels with their 99 %
intervals. Usage: ``python benchmarks/audit_false_alarms.py [--blocks 20] [--output FILE]``
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from measure import report
from scipy.stats import beta

from draftproof.evidence import (
    Calibrations,
    Counts,
    JointLaw,
    SequentialAudit,
    StreamAudit,
    combine,
    discrepancies,
    localise,
    serial_test,
    two_sample_counts,
)

LEVELS = (1e-2, 1e-3)


def law_of(rng: np.random.Generator, sizes: tuple[int, ...], sharpness: float) -> JointLaw:
    texts = tuple(np.ndindex(*sizes))
    return JointLaw(texts, rng.dirichlet(np.full(len(texts), sharpness)), len(sizes))


def fixed(rng: np.random.Generator, seed: int) -> list[float]:
    """One fixture of 81 outcomes, from flat to very skewed; 1,000 audits."""
    law = law_of(rng, (3, 3, 3, 3), float(rng.choice([50.0, 3.0, 0.7, 0.2])))
    n = int(rng.choice([500, 5000, 50_000]))
    calibration = Calibrations(20_000, seed).of(law.probs, n)
    counts = rng.multinomial(n, law.probs, 1000)
    return calibration.p_values(*discrepancies(counts, law.probs)).tolist()


def prompts(rng: np.random.Generator, seed: int) -> list[float]:
    """Ten prompts of 27 outcomes, Bonferroni and Fisher; 200 audits."""
    calibrations, columns = Calibrations(20_000, seed), []
    for prompt in range(10):
        law = law_of(rng, (3, 3, 3), 1.0)
        counts = rng.multinomial(1000, law.probs, 200)
        calibration = calibrations.of(law.probs, 1000, stream=prompt)
        columns.append(calibration.p_values(*discrepancies(counts, law.probs)))
    return [combine(row.tolist()).p_value for row in np.stack(columns, axis=1)]


def nodes(rng: np.random.Generator, seed: int) -> list[float]:
    """Four prefixes, Holm; 40 audits."""
    calibrations, found = Calibrations(20_000, seed), []
    law = law_of(rng, (3, 3), 2.0)
    for _ in range(40):
        found.append(
            localise(law, Counts(rng.multinomial(300, law.probs)), calibrations)[0].adjusted
        )
    return found


def pairs(rng: np.random.Generator, _: int) -> list[float]:
    """Two samples of a law with many rare outcomes; 40 audits."""
    law = law_of(rng, (3, 3, 3), 0.5)
    return [
        two_sample_counts(
            rng.multinomial(300, law.probs),
            rng.multinomial(200, law.probs),
            num_samples=2000,
            seed=i,
        ).p_value
        for i in range(40)
    ]


def monitoring(rng: np.random.Generator, _: int) -> list[float]:
    """Fifty looks at 27 outcomes; 40 audits."""
    law, found = law_of(rng, (3, 3, 3), 1.0), []
    for _ in range(40):
        audit = SequentialAudit([law])
        for _ in range(50):
            audit.add(0, Counts(rng.multinomial(50, law.probs)))
        found.append(audit.p_value)
    return found


def streams(rng: np.random.Generator, _: int) -> list[float]:
    """Texts of 400 tokens over a vocabulary of 50; 40 audits."""
    found = []
    for _ in range(40):
        logits = 2 * rng.normal(size=(400, 50))
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        q = np.exp(logits + rng.normal(size=logits.shape))
        q /= q.sum(axis=1, keepdims=True)
        audit = StreamAudit()
        audit.add(p, q, (np.cumsum(p, axis=1) > rng.random((400, 1))).argmax(axis=1))
        found.append(float(np.exp(-audit.log_peak)))
    return found


def serial(rng: np.random.Generator, _: int) -> list[float]:
    """Draws in order of request; 40 audits."""
    return [
        serial_test(rng.integers(0, 5, 300).tolist(), num_samples=2000, seed=i).p_value
        for i in range(40)
    ]


KINDS = {f.__name__: f for f in (fixed, prompts, nodes, pairs, monitoring, streams, serial)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results = {}
    for name in options.kinds:
        rng = np.random.default_rng([options.seed, *name.encode()])
        p = np.concatenate([KINDS[name](rng, block) for block in range(options.blocks)])
        rows = {}
        for level in LEVELS:
            hits = int((p <= level).sum())
            low = float(beta.ppf(0.005, hits, len(p) - hits + 1)) if hits else 0.0
            high = float(beta.ppf(0.995, hits + 1, len(p) - hits))
            rows[str(level)] = {"alarms": hits, "share": hits / len(p), "interval": [low, high]}
        results[name] = {"audits": len(p), "levels": rows}
        shares = ", ".join(
            f"{level}: {row['alarms']} ({row['share']:.4f})" for level, row in rows.items()
        )
        print(f"{name:12}{len(p):7} null audits; alarms at {shares}", flush=True)
    total = sum(result["audits"] for result in results.values())
    report({"benchmark": "audit_false_alarms", "audits": total, "results": results}, options.output)


if __name__ == "__main__":
    main()
