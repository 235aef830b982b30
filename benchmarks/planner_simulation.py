"""The controller against static draft lengths and a batch-size schedule, simulated.

Step costs are the published fit of an 8B model on an H100 (see
``draftproof/planner/data/step_costs.json``). Requests arrive at random; a third each
accept drafts at 0.9, 0.7 and 0.35 per position. The schedule is the planner's own, for
the pooled acceptance and the mean context. Goodput counts the tokens of requests that
waited at most 25 ms per output token after admission. Nothing here is a measurement of hardware;
decision times are.

    python benchmarks/planner_simulation.py [--seconds 20] [--output FILE]

Prints a table, and one line of JSON last.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import report

from draftproof.core.kappa_policy import KappaPolicy, RowChoice, RowState
from draftproof.core.types import StepRecord
from draftproof.planner.acceptance import mixture_survival
from draftproof.planner.controller import GoodputController
from draftproof.planner.estimate import SurvivalEstimate
from draftproof.planner.plan import make_plan
from draftproof.planner.rounds import RoundCost, published_round_cost
from draftproof.planner.simulate import (
    SchedulePolicy,
    SimulationResult,
    StaticPolicy,
    poisson_requests,
    simulate,
)

ALPHAS, SHARES = (0.9, 0.7, 0.35), (1 / 3, 1 / 3, 1 / 3)
MAX_KAPPA = 8
#: Seconds per output token that a request must keep to count as good.
LIMIT_S = 0.025


class Timed:
    """A policy, and the processor time its decisions took."""

    def __init__(self, policy: KappaPolicy) -> None:
        self.policy = policy
        self.seconds: list[tuple[int, float]] = []
        self.learning_s = 0.0
        self.num_records = 0

    def choose(self, rows: list[RowState]) -> list[RowChoice]:
        """Choose, timed."""
        begin = time.thread_time()
        choices = self.policy.choose(rows)
        self.seconds.append((len(rows), time.thread_time() - begin))
        return choices

    def observe(self, record: StepRecord) -> None:
        """Learn, timed."""
        begin = time.thread_time()
        self.policy.observe(record)
        self.learning_s += time.thread_time() - begin
        self.num_records += 1

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self.policy.release(request_id)

    def reset(self) -> None:
        """Forget everything."""
        self.policy.reset()


def policies(cost: RoundCost, context: float, max_rows: int) -> dict[str, Any]:
    curve = mixture_survival(ALPHAS, SHARES, MAX_KAPPA)
    known = SurvivalEstimate(curve, curve, curve, 0.0, 0, 0.0)
    plan = make_plan(cost, known, (1, max_rows), max_kappa=MAX_KAPPA, context=context)
    return {
        "plain": StaticPolicy(0),
        "static 3": StaticPolicy(3),
        "static 5": StaticPolicy(5),
        "schedule": SchedulePolicy(plan.schedule),
        "controller": Timed(GoodputController(cost)),
    }


def figures(result: SimulationResult, outputs: list[int]) -> dict[str, float]:
    times = np.asarray(result.token_times_s) * 1e3
    seconds = sum(outputs) / result.tokens_per_s
    return {
        "tokens_per_s": round(result.tokens_per_s, 1),
        "goodput_tokens_per_s": round(result.goodput(LIMIT_S, outputs, seconds), 1),
        "latency_mean_s": round(float(np.mean(result.latencies_s)), 3),
        "latency_p95_s": round(float(np.quantile(result.latencies_s, 0.95)), 3),
        "token_time_mean_ms": round(float(times.mean()), 3),
        "token_time_p95_ms": round(float(np.quantile(times, 0.95)), 3),
        "mean_batch": round(result.mean_batch, 1),
        "acceptance": round(result.accepted / result.drafted, 3) if result.drafted else 0.0,
        "drafted_per_step": round(result.drafted / max(result.num_steps, 1), 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals at each rate")
    parser.add_argument("--rates", default="10,40,80")
    parser.add_argument("--max-rows", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=None)
    args = parser.parse_args()
    cost = published_round_cost("llama-3.1-8b-h100-eagle")
    print(
        f"{'per s':>6} {'policy':<11} {'tok/s':>8} {'good':>8} {'ms/token':>9} {'p95':>8} "
        f"{'latency s':>10} {'p95':>8} {'batch':>6} {'accept':>7}"
    )
    loads = []
    decisions: list[tuple[int, float]] = []
    learning = [0.0, 0]
    for rate in (float(each) for each in args.rates.split(",")):
        count = round(rate * args.seconds)
        requests = poisson_requests(count, rate, ALPHAS, SHARES, seed=args.seed)
        row: dict[str, Any] = {"arrivals_per_s": rate, "requests": count}
        for name, policy in policies(cost, 612.0, args.max_rows).items():
            result = simulate(requests, cost, policy, max_rows=args.max_rows)
            row[name] = shown = figures(result, [each.output_tokens for each in requests])
            print(
                f"{rate:>6g} {name:<11} {shown['tokens_per_s']:>8} "
                f"{shown['goodput_tokens_per_s']:>8} "
                f"{shown['token_time_mean_ms']:>9} {shown['token_time_p95_ms']:>8} "
                f"{shown['latency_mean_s']:>10} {shown['latency_p95_s']:>8} "
                f"{shown['mean_batch']:>6} {shown['acceptance']:>7}",
                flush=True,
            )
            if isinstance(policy, Timed):
                decisions += policy.seconds
                learning[0] += policy.learning_s
                learning[1] += policy.num_records
        loads.append(row)
    by_batch = {}
    for low, high in ((1, 4), (5, 16), (17, 64), (65, 256)):
        held = [seconds for rows, seconds in decisions if low <= rows <= high]
        if held:
            by_batch[f"{low}-{high}"] = round(float(np.mean(held)) * 1e6, 1)
    print(
        f"decision, mean processor microseconds by rows: {by_batch}; "
        f"per observed round: {learning[0] / learning[1] * 1e6:.2f}"
    )
    record = {
        "benchmark": "planner_simulation",
        "simulated": True,
        "costs": "llama-3.1-8b-h100-eagle",
        "alphas": ALPHAS,
        "seconds": args.seconds,
        "goodput_limit_s": LIMIT_S,
        "seed": args.seed,
        "max_rows": args.max_rows,
        "loads": loads,
        "decision_us_by_rows": by_batch,
        "observe_us": round(learning[0] / learning[1] * 1e6, 2),
    }
    report(record, args.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
