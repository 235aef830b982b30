"""Predicted against measured tokens per second, on settings that calibration did not time.

Drafts per row by rows, drafters and workloads: acceptance is counted on prompts one at a time
with most drafts, the pace predicted from a profile of ``draftproof calibrate``, and measured on
the same prompts, greedy, in rounds of all settings. Errors are given as they are, and at the
pace of the machine: after every prediction of one drafter and workload is multiplied by plain
decoding measured over plain decoding predicted.

    draftproof calibrate -m smollm2 -o profile.json
    python benchmarks/planner_grid.py profile.json --output benchmarks/results/planner_grid.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from measure import report

from draftproof.bench.workloads import Workloads
from draftproof.build import load
from draftproof.planner.profile import read_profile
from draftproof.planner.validate import Validation, quantile, validate

#: Drafters by name: configuration, and whose costs of the profile they have.
DRAFTERS: dict[str, dict[str, Any]] = {"ngram": {"method": "ngram"}, "suffix": {"method": "suffix"}}


def main() -> None:
    """Predict, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("profile", type=Path)
    parser.add_argument("--drafters", default="ngram,suffix")
    parser.add_argument("--workloads", default="copy-edit,chat")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 3, 6, 12])
    parser.add_argument("--kappas", type=int, nargs="+", default=[0, 2, 3, 5, 7])
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    profile = read_profile(args.profile)
    cost = profile.round_cost("ngram")
    figures: dict[str, Any] = {}
    errors: list[float] = []
    raw: list[float] = []
    for name in args.drafters.split(","):
        engine = load(
            profile.model,
            speculative_config=DRAFTERS[name],
            precision=profile.precision,
            max_rows=max(args.batches),
        )
        for kind in args.workloads.split(","):
            prompts = [
                engine.tokenizer.encode_chat(
                    [{"role": role, "content": text} for role, text in Workloads().prompt(kind, n)]
                )
                for n in range(2 * max(args.batches))
            ]
            found = validate(
                engine.core,
                engine.core.default_proposer,
                cost,
                prompts,
                batches=args.batches,
                kappas=args.kappas,
                max_tokens=args.max_tokens,
                repeats=args.repeats,
            )
            figures[f"{name}, {kind}"] = show(f"{name}, {kind}", found)
            errors += found.errors_at_pace()
            raw += [point.error for point in found.points]
        engine.close()
    total = {
        "settings": len(errors),
        "median_error": quantile(raw, 0.5),
        "p90_error": quantile(raw, 0.9),
        "median_error_at_pace": quantile(errors, 0.5),
        "p90_error_at_pace": quantile(errors, 0.9),
    }
    print(f"\nall: {total}")
    report({"benchmark": "planner_grid", "total": total, "figures": figures}, args.output)


def show(title: str, found: Validation) -> dict[str, Any]:
    """Print one table and return it."""
    pace = found.pace or 1.0
    print(f"\n{title}: the machine runs at {pace:.2f} of the profile's pace")
    print("rows drafts  predicted  measured  error  at that pace")
    points = []
    for point, error in zip(found.points, found.errors_at_pace(), strict=True):
        print(
            f"{point.batch:4d} {point.kappa:6d} {point.predicted:10.1f} {point.measured:9.1f} "
            f"{point.error:+6.0%} {error:+13.0%}"
        )
        points.append([point.batch, point.kappa, point.predicted, point.measured, error])
    return {
        "pace": pace,
        "survival": list(found.survival.curve.rates),
        "median_error": found.median_error,
        "median_error_at_pace": found.median_error_at_pace,
        "points": points,
    }


if __name__ == "__main__":
    main()
