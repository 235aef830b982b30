"""What the auditor sees of every known fault: draws needed, and whether it names it.

Usage: ``python benchmarks/audit_self_test.py [--repeats 20] [--output FILE]``
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from measure import report

from draftproof.audit import self_test
from draftproof.audit.evidence_file import shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--samples", type=int, default=5000, help="null samples")
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    scores = []
    print(f"{'fault':48}{'TV':>8}{'draws':>8}{'alarms':>8}{'named':>7}{'tokens/pass':>16}")
    for score in self_test(
        num_draws=options.draws,
        repeats=options.repeats,
        calibration_samples=options.samples,
    ):
        scores.append(score)
        print(
            f"{score.name:48}{score.tv:8.4f}{score.draws or '-':>8}{score.alarms:8.2f}"
            f"{score.diagnosed:7.2f}{score.tokens_per_pass:8.3f}/{score.tokens_promised:.3f}",
            flush=True,
        )
    named = [score.diagnosed for score in scores if score.shows != "length"]
    report(
        {
            "benchmark": "audit_self_test",
            "draws_per_audit": options.draws,
            "audits_per_fault": options.repeats,
            "calibration_samples": options.samples,
            "alpha": 1e-3,
            "named_right": sum(named) / len(named),
            "most_draws": max(score.draws or 0 for score in scores),
            "results": [shown(asdict(score)) for score in scores],
        },
        options.output,
    )


if __name__ == "__main__":
    main()
