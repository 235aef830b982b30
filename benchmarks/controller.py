"""Draft lengths chosen in each round against fixed ones, and what the choice costs.

Greedy decoding of text that copies and of free text, n-gram drafts, several batch sizes.
Every length runs interleaved in one process on the same prompts; the pace is that of the
whole batch from the step on in which every request has its first token. Texts are equal.
A second table times the decisions alone, on rounds that are made up. What such choices
yield on recorded texts and in made-up mixtures, without a model: ``controller_choices.py``.

    python benchmarks/controller.py --output benchmarks/results/controller.json
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from measure import environment, interleave, ratios, report, shown, summary
from speculation import copying_prompt, free_prompt

from draftproof.build import load
from draftproof.build.lengths import make_policy
from draftproof.build.speculative import SpeculativeConfig
from draftproof.core.kappa_policy import RowState
from draftproof.core.types import ModelInfo, StepRecord
from draftproof.engine import Engine

#: Plain decoding once more: its ratio to plain decoding is the noise.
AGAIN = "0 again"
AUTO = {"method": "ngram", "num_speculative_tokens": "auto"}


def one_run(engine: Engine, workload: str, batch: int, turn: int, kappa: int | None, tokens: int):
    """Return tokens per second of the batch, seconds of decisions, seconds, steps, tokens."""
    make = copying_prompt if workload == "copying" else free_prompt
    core = engine.core
    requests = [
        engine.request(
            make(turn * batch + index),
            max_tokens=tokens,
            ignore_eos=True,
            num_speculative_tokens=kappa,
            request_id=str(index),
        )
        for index in range(batch)
    ]
    for request in requests:
        core.submit(request)
    done = dict.fromkeys(range(batch), 0)
    begin, before, counted, texts = None, None, 0, {}
    while core.has_work:
        for output in core.step():
            done[int(output.request_id)] += len(output.tokens)
            if output.result is not None:
                texts[output.request_id] = output.result.token_ids
        if begin is None and all(done.values()):
            begin, before, counted = time.perf_counter(), replace(core.clock), sum(done.values())
    seconds = time.perf_counter() - begin
    clock = core.clock
    return {
        "pace": (sum(done.values()) - counted) / seconds,
        "policy_s": clock.policy_s - before.policy_s,
        "seconds": seconds,
        "steps": clock.num_passes - before.num_passes,
        "pass_tokens": clock.num_pass_tokens - before.num_pass_tokens,
        "texts": texts,
    }


def sweep(engine: Engine, workload: str, batch: int, options) -> dict:
    """Measure every length on one workload and batch size."""
    names = ["auto", AGAIN, *map(str, options.kappas)]
    held: dict[str, list[dict]] = {name: [] for name in names}

    def subject(name: str):
        def run() -> float:
            kappa = None if name == "auto" else int(name.split()[0])
            turn = len(held[name])
            held[name].append(one_run(engine, workload, batch, turn, kappa, options.max_tokens))
            return held[name][-1]["pace"]

        return run

    paces = interleave({name: subject(name) for name in names}, repeats=options.repeats)
    print(f"\n{workload}, batch {batch}")
    table = {}
    for name in names:
        over = ratios(paces[name], paces["0"])
        runs = held[name][1:]
        each = median(run["policy_s"] / run["steps"] for run in runs)
        share = median(run["policy_s"] / run["seconds"] for run in runs)
        pairs = zip(runs, held["0"][1:], strict=True)
        same = sum(run["texts"] == plain["texts"] for run, plain in pairs)
        table[name] = {
            "tokens_per_s": summary(paces[name]),
            "ratio_to_plain": over,
            "policy_us_per_step": each * 1e6,
            "policy_share": share,
            "steps": [run["steps"] for run in runs],
            "pass_tokens": [run["pass_tokens"] for run in runs],
            "batches_with_the_plain_texts": [same, len(runs)],
        }
        print(
            f"  {name:>7}: {shown(table[name]['tokens_per_s'], 1)} tok/s, x {shown(over)}, "
            f"decisions {each * 1e6:.0f} us per step ({share:.2%})"
        )
    best = max(options.kappas, key=lambda kappa: median(paces[str(kappa)]))
    table["best_static"] = best
    table["auto_to_best_static"] = ratios(paces["auto"], paces[str(best)])
    print(f"  auto to the best fixed length, {best}: x {shown(table['auto_to_best_static'])}")
    return table


def decision_cost(batch: int, rounds: int = 400) -> dict[str, float]:
    """Time one decision with its observations, per step, on rounds that are made up."""
    config = SpeculativeConfig.parse(AUTO)
    policy, _note = make_policy(config, ModelInfo("", "", 1, 1, precision="int8"), "ngram")
    chance = random.Random(0)
    seconds = []
    for turn in range(rounds):
        rows = [RowState(str(index), 200 + turn, 15, ("ngram",), (3,)) for index in range(batch)]
        begin = time.perf_counter()
        choices = policy.choose(rows)
        middle = time.perf_counter()
        records = []
        for row, choice in zip(rows, choices, strict=True):
            kept = 0
            while kept < choice.kappa and chance.random() < 0.8:
                kept += 1
            records.append(StepRecord(row.request_id, turn, (0,) * choice.kappa, kept, (0,)))
        again = time.perf_counter()
        for record in records:
            policy.observe(record)
        seconds.append(middle - begin + time.perf_counter() - again)
    return {
        "mean_us": sum(seconds) / rounds * 1e6,
        "median_us": median(seconds) * 1e6,
        "p90_us": sorted(seconds)[rounds * 9 // 10] * 1e6,
    }


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--profile", help="costs of this machine; the built-in ones if not given")
    parser.add_argument("--kappas", type=int, nargs="+", default=[0, 3, 7, 15])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    costs = {} if options.profile is None else {"profile": options.profile}
    engine = load(options.model, precision=options.precision, speculative_config=AUTO | costs)
    print(environment()["cpu"])
    decisions = {str(batch): decision_cost(batch) for batch in (1, 4, 16, 32)}
    for batch, cost in decisions.items():
        print(f"decision for {batch} rows: mean {cost['mean_us']:.0f} us per step")
    figures: dict[str, dict] = {}
    for batch in options.batches:
        for workload in ("copying", "free"):
            figures[f"{workload}, batch {batch}"] = sweep(engine, workload, batch, options)
            report(  # after each cell, so that a run that is cut short leaves something
                {
                    "benchmark": "controller",
                    "precision": options.precision,
                    "costs": "built-in" if options.profile is None else "profile",
                    "max_tokens": options.max_tokens,
                    "figures": figures,
                    "decision_us_per_step": decisions,
                },
                options.output,
            )


if __name__ == "__main__":
    main()
