"""What a trace costs: the same requests with traces off, in memory, and in a file.

Drafts are what the target will say anyway (an oracle), so that every place of every draft
is judged and traced: the most that a trace can cost. Under ``coupled`` it also makes sums
that the race itself does without. All arms emit the same tokens, which is checked.

Before that, the parts alone and without a model, in microseconds per round of 4 drafts:
judging a row with and without a trace, and writing the line.

Wall seconds depend on what else the machine does; seconds of the processor, over all
threads of the process, depend on it less. Both are ratios within a round of random order.

    python benchmarks/trace_cost.py --output benchmarks/results/trace_cost_int8.json
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import interleave, ratios, report, shown, summary

from draftproof.bench.environment import describe_environment
from draftproof.bench.trace_record import TRACE_FORMAT, TraceHeader
from draftproof.bench.trace_writer import TraceWriter
from draftproof.build import load_model
from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ModelBackend
from draftproof.core.rng import CoinSource
from draftproof.core.trace import RoundTrace
from draftproof.core.types import Draft
from draftproof.engine import EngineCore, GenerateRequest, GenerateResult, StepOutput
from draftproof.testing.scripted import OracleProposer
from draftproof.verify import NumpyExecutor, Reached, VerifyRow

TOKENS = 48
PROMPT_TOKENS = 60
KAPPA = 4
VOCABULARY = 49_152
PARTS = (("standard", 0.0), ("standard", 1.0), ("block", 1.0), ("coupled", 1.0))
ARMS = ("off", "in memory", "in a file")


@dataclass(frozen=True)
class Case:
    """What is decoded: rows, drafts per round, rule and temperature."""

    name: str
    rows: int
    kappa: int
    rule: str | None
    temperature: float


CASES = (
    Case("batch 1, plain, T=1", 1, 0, None, 1.0),
    Case("batch 1, kappa 4, greedy", 1, KAPPA, "standard", 0.0),
    Case("batch 1, kappa 4, sample-match, T=1", 1, KAPPA, "sample-match", 1.0),
    Case("batch 1, kappa 4, coupled, T=1", 1, KAPPA, "coupled", 1.0),
    Case("batch 8, kappa 4, coupled, T=1", 8, KAPPA, "coupled", 1.0),
)


class Subject:
    """One case, run with a trace or without."""

    def __init__(self, backend: ModelBackend, case: Case, folder: Path) -> None:
        self.backend, self.case, self.path = backend, case, folder / "trace.jsonl"
        generator = np.random.default_rng(5)
        self.asked = [
            GenerateRequest(
                tuple(generator.integers(1000, 20000, PROMPT_TOKENS).tolist()),
                SamplingParams(temperature=case.temperature),
                max_tokens=TOKENS,
                ignore_eos=True,
                seed=row,
                rule=case.rule,
                request_id=f"r{row}",
            )
            for row in range(case.rows)
        ]
        self.known: dict[str, list[int]] = {}
        plain = self.decode("off", 0)
        self.known = {name: [*held.prompt_ids, *held.token_ids] for name, held in plain.items()}
        self.expected = _texts(self.decode("off", case.kappa))
        self.cpu: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self.bytes_per_round = 0.0

    def decode(self, arm: str, kappa: int) -> dict[str, GenerateResult]:
        """Run the requests."""
        core = EngineCore(self.backend, proposers=[OracleProposer(self.known)], kappa=kappa)
        writer = None
        if arm == "in a file":
            self.path.unlink(missing_ok=True)
            writer = TraceWriter(self.path)
            writer.begin(TraceHeader(TRACE_FORMAT, describe_environment([], None), {}))
            core.listeners.add(writer)
        wall, cpu = time.perf_counter(), time.process_time()
        for request in self.asked:
            core.submit(replace(request, trace=arm == "in memory"))
        results = core.run()
        if writer is not None:
            writer.close()
        self.spent = time.perf_counter() - wall, time.process_time() - cpu
        return results

    def timed(self, arm: str) -> float:
        """Run once; return wall seconds, and keep those of the processor."""
        results = self.decode(arm, self.case.kappa)
        wall_s, cpu_s = self.spent
        self.cpu[arm].append(cpu_s)
        if _texts(results) != self.expected:
            raise SystemExit(f"{self.case.name}: another text with the trace {arm}")
        if arm == "in a file":
            num_rounds = sum(len(held.records) for held in results.values())
            self.bytes_per_round = self.path.stat().st_size / num_rounds
        return wall_s

    def measure(self, repeats: int) -> dict[str, Any]:
        """Interleave the arms and print what was found."""
        wall = interleave({arm: partial(self.timed, arm) for arm in ARMS}, repeats=repeats)
        cpu = {arm: held[1:] for arm, held in self.cpu.items()}  # the first round warmed up
        print(f"\n{self.case.name}: seconds, relative to no trace")
        figures: dict[str, Any] = {"bytes_per_round": self.bytes_per_round}
        for arm in ARMS:
            held = {
                "wall_s": summary(wall[arm]),
                "wall_ratio": ratios(wall[arm], wall["off"]),
                "cpu_s": summary(cpu[arm]),
                "cpu_ratio": ratios(cpu[arm], cpu["off"]),
            }
            figures[arm] = held
            print(
                f"  {arm:10} wall {shown(held['wall_s'])} x {shown(held['wall_ratio'], 3)}   "
                f"processor {shown(held['cpu_s'])} x {shown(held['cpu_ratio'], 3)}"
            )
        return figures


def parts(rule: str, temperature: float, repeats: int, folder: Path) -> dict[str, Any]:
    """Time the parts of a trace on one row of random logits, most drafts accepted."""
    generator = np.random.default_rng(7)
    logits = generator.normal(0, 2, (KAPPA + 1, VOCABULARY)).astype(np.float32)
    tokens = tuple(range(100, 100 + KAPPA))
    logits[np.arange(KAPPA), tokens] = 16.0
    executor, path = NumpyExecutor(), folder / "parts.jsonl"
    spent: dict[str, list[float]] = {"judge": [], "judge, traced": [], "write a line": []}
    with TraceWriter(path) as writer:
        writer.begin(TraceHeader(TRACE_FORMAT, describe_environment([], None), {}))
        for number in range(repeats):
            row = VerifyRow(
                "r", rule, Draft(tokens, None, "oracle"), SamplingParams(temperature=temperature),
                History([1, 2]), CoinSource(1).round(number),
            )  # fmt: skip
            pair = {"judge": row, "judge, traced": replace(row, reached=Reached())}
            for name in sorted(pair, reverse=bool(number % 2)):
                begin = time.thread_time()
                executor.judge([pair[name]], logits)
                spent[name].append(1e6 * (time.thread_time() - begin))
            line = StepOutput("r", trace=_round(pair["judge, traced"], number))
            begin = time.thread_time()
            writer.on_output(line)
            spent["write a line"].append(1e6 * (time.thread_time() - begin))
    added = [on - off for on, off in zip(spent["judge, traced"], spent["judge"], strict=True)]
    print(f"  {rule}, T={temperature:g}: ", end="")
    print(", ".join(f"{name} {shown(summary(held), 0)}" for name, held in spent.items()))
    return {name: summary(held) for name, held in (*spent.items(), ("added to judging", added))}


def _round(row: VerifyRow, number: int) -> RoundTrace:
    assert row.reached is not None
    probs = tuple(row.reached.probs.get(node) for node in range(KAPPA))
    return RoundTrace(
        number, number, number, KAPPA, "standard", "oracle", ("oracle",) * KAPPA,
        row.draft.token_ids, None, probs, (None,) * KAPPA, (row.coins.accept(0),) * KAPPA,
        (0, 1), (100, 101, 5), 5, "recovered", row.reached.token_prob, 1,
        0.00123, 0.0456, 0.00078, 0.00012, KAPPA + 1,
    )  # fmt: skip


def _texts(results: Mapping[str, GenerateResult]) -> dict[str, list[int]]:
    return {name: held.token_ids for name, held in results.items()}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--parts-only", action="store_true", help="without a model")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print("microseconds of one thread per round of 4 drafts")
        alone = {
            f"{rule}, T={temperature:g}": parts(rule, temperature, 300, Path(folder))
            for rule, temperature in PARTS
        }
    if options.parts_only:
        report({"benchmark": "trace_cost", "microseconds_per_round": alone}, options.output)
        return
    backend, _ = load_model(options.model, precision=options.precision, threads=options.threads)
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            case.name: Subject(backend, case, Path(folder)).measure(options.repeats)
            for case in CASES
            if options.only in case.name
        }
    figures = {"microseconds_per_round": alone, **figures}
    report({"benchmark": "trace_cost", "tokens": TOKENS, "figures": figures}, options.output)


if __name__ == "__main__":
    main()
