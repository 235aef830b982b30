"""What judging a pass costs in torch on this CPU, beside the definition and a plain read.

Each case is a pass of rows with kappa drafts whose laws live where the judge wants them.
Figures are nanoseconds of CPU time per entry of the logits of the pass, on one thread. The
plain read is the largest entry of every row, in numpy. The definition looks only at the
rows that the rule reaches, the torch executor at all of them, as a device does.
Prints a table, then one JSON line.
Usage: ``python benchmarks/device_verify.py [--rows 4] [--kappa 3] [--vocab 49152] [--repeats 15]``
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from device_cases import CASES, make_logits, make_rows
from measure import interleave, ratios, report, shown, summary

from draftproof.device import TorchExecutor
from draftproof.verify import NumpyExecutor, VerifyRow

Judge = Callable[..., object]


def timed(call: Callable[[], object], entries: int) -> Callable[[], float]:
    def run() -> float:
        begin = time.process_time_ns()
        call()
        return (time.process_time_ns() - begin) / entries

    return run


def renewed(rows: list[VerifyRow]) -> list[VerifyRow]:
    """Return the rows with coins that remember nothing, as every round has them."""
    return [replace(row, coins=row.coins._source.round(row.coins.start)) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--kappa", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logits = make_logits(given.rows * (given.kappa + 1), given.vocab, "cpu", torch.float32)
    plain = logits.numpy()
    entries = logits.numel()
    results = {}
    print(f"{'case':28} {'read':>20} {'definition':>22} {'torch':>22} {'torch/definition':>22}")
    for name in CASES:
        rows = make_rows(name, logits, given.kappa)
        twins = make_rows(name, logits, given.kappa, on_device=False)
        executor, definition = TorchExecutor(), NumpyExecutor()
        same = executor.judge(rows, logits) == definition.judge(twins, plain)
        assert same, f"{name}: decisions differ"

        def torch_pass(rows: list[VerifyRow] = rows, judge: Judge = executor.judge) -> object:
            return judge(renewed(rows), logits)

        def definition_pass(
            rows: list[VerifyRow] = twins, judge: Judge = definition.judge
        ) -> object:
            return judge(renewed(rows), plain)

        figures = interleave(
            {
                "read": timed(lambda: plain.max(axis=1), entries),
                "definition": timed(definition_pass, entries),
                "torch": timed(torch_pass, entries),
            },
            repeats=given.repeats,
        )
        results[name] = {key: summary(values) for key, values in figures.items()}
        results[name]["torch over definition"] = ratios(figures["torch"], figures["definition"])
        results[name]["near edge"] = executor.counts.num_near_edge / executor.counts.num_native
        line = [shown(results[name][key]) for key in ("read", "definition", "torch")]
        ratio = shown(results[name]["torch over definition"])
        print(f"{name:28} {line[0]:>20} {line[1]:>22} {line[2]:>22} {ratio:>22}")
    report({"unit": "ns per entry", "arguments": vars(given) | {"output": None}, "cases": results},
           given.output)  # fmt: skip


if __name__ == "__main__":
    main()
