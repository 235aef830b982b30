"""What a pass costs when the pass before had another shape, with one graph and with copies.

Passes of one row: the same width again and again, two widths in turns, and many. First with
one copy of the graph, then with as many as the runner makes; both in one process, in rounds.

    python shape_change.py --output results/shape_change.json
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import interleave, report, shown, summary

from draftproof.backends.openvino import OpenVINOBackend, prepare, read_manifest
from draftproof.backends.openvino.runner import GraphRunner, compile_paged
from draftproof.core.types import FlatBatch, Row
from draftproof.models import resolve

CONTEXT = 100
#: Widths in turns, by name.
ORDERS = {
    "1 alone": (1,),
    "4 alone": (4,),
    "5 alone": (5,),
    "1 and 4 in turns": (1, 4),
    "1 and 5 in turns": (1, 5),
    "1 to 8 in turns": (1, 2, 3, 4, 5, 6, 7, 8),
}


def backend_of(
    folder: Path, lanes: int, threads: int | None
) -> tuple[OpenVINOBackend, GraphRunner]:
    """Return a backend with so many copies of its graph."""

    def compiled() -> Any:
        return compile_paged(folder, "f32", threads)

    runner = GraphRunner(compiled(), 64 << 20, compile_more=compiled, most_lanes=lanes, patience=1)
    manifest = read_manifest(folder)
    assert manifest is not None
    made = OpenVINOBackend(
        runner, name=manifest.source_name, precision=manifest.precision, context_length=1024
    )
    return made, runner


def subject(backend: OpenVINOBackend, widths: tuple[int, ...], passes: int) -> Any:
    """Return a call that times some passes and returns milliseconds of one."""
    handle = backend.open()
    backend.forward(FlatBatch.from_rows([Row(handle, list(range(CONTEXT)), 0, 0)]))
    batches = [FlatBatch.from_rows([Row(handle, [7] * n, CONTEXT, n)]) for n in widths]

    def run() -> float:
        for batch in batches:  # the first ones may change the shape
            backend.forward(batch)
            backend.truncate(handle, CONTEXT)
        begin = time.perf_counter()
        for turn in range(passes):
            backend.forward(batches[turn % len(batches)])
            backend.truncate(handle, CONTEXT)
        return (time.perf_counter() - begin) / passes * 1e3

    return run


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--passes", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = prepare(resolve(options.model).path, options.precision)
    one, _ = backend_of(folder, 1, options.threads)
    several, runner = backend_of(folder, options.lanes, options.threads)
    subjects = {
        f"{name}, {label}": subject(backend, widths, options.passes)
        for name, widths in ORDERS.items()
        for label, backend in (("one graph", one), ("copies", several))
    }
    figures = interleave(subjects, repeats=options.repeats)
    assert runner.num_lanes == options.lanes
    for name, values in figures.items():
        print(f"{name:30} {shown(summary(values), 1)} ms per pass")
    report(
        {
            "benchmark": "shape_change",
            "precision": options.precision,
            "lanes": options.lanes,
            "ms_per_pass": {
                name: {key: float(np.round(each, 2)) for key, each in summary(values).items()}
                for name, values in figures.items()
            },
        },
        options.output,
    )


if __name__ == "__main__":
    main()
