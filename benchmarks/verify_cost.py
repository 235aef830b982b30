"""What one pass of the target costs, by its width.

Speculation pays when a pass over several tokens costs little more than a pass over
one. This measures that: n tokens of one sequence (a verify block), and one token of B
sequences (a plain batch), for each precision. Repeats of all sizes are interleaved, so
that a slow moment of the machine hits all of them.

    python benchmarks/verify_cost.py MODEL.gguf [--precisions f32,f16,int8] [--output FILE]

Prints a table, and one line of JSON last. Each precision runs in a process of its own,
so that peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from measure import report

from draftproof.backends.openvino import OpenVINOBackend, load_openvino, prepare, read_manifest
from draftproof.core.types import FlatBatch, Row

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)


def memory_mib() -> dict[str, int]:
    """Return peak and current memory of this process, in MiB; empty where unknown."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return {}
    wanted = ("VmHWM", "VmRSS", "RssAnon", "RssFile")
    fields = (line.split() for line in status.read_text(encoding="utf-8").splitlines())
    return {f[0][:-1]: int(f[1]) // 1024 for f in fields if f and f[0][:-1] in wanted}


class Passes:
    """The passes that are timed, over sequences that are rolled back after each."""

    def __init__(self, backend: OpenVINOBackend, context: int) -> None:
        self.backend = backend
        self.context = context
        rng = np.random.default_rng(0)
        self.tokens = rng.integers(0, backend.info.vocab_size, context + max(SIZES)).tolist()
        self.handles = [backend.open() for _ in range(max(SIZES))]
        for handle in self.handles:
            row = Row(handle, self.tokens[:context], 0, 0)
            backend.forward(FlatBatch.from_rows([row]))

    def time_ms(self, num_rows: int, width: int) -> float:
        """Time a pass that has the shape of the one before, and take both back."""
        block = self.tokens[self.context : self.context + width]
        rows = [Row(handle, block, self.context, width) for handle in self.handles[:num_rows]]
        elapsed = 0.0
        for _ in range(2):
            begin = time.perf_counter()
            self.backend.forward(FlatBatch.from_rows(rows))
            elapsed = time.perf_counter() - begin
            for handle in self.handles[:num_rows]:
                self.backend.truncate(handle, self.context)
        return elapsed * 1e3


def measure(model: Path, precision: str, args: argparse.Namespace) -> dict[str, object]:
    """Measure one precision in this process."""
    folder = prepare(model, precision, args.cache_dir)
    begin = time.perf_counter()
    backend = load_openvino(folder, threads=args.threads)
    load_s = time.perf_counter() - begin
    loaded = memory_mib()
    passes = Passes(backend, args.context)
    shapes = [(1, n) for n in SIZES] + [(b, 1) for b in SIZES[1:]]
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    for repeat in range(args.repeats + 2):
        for shape in shapes:
            elapsed = passes.time_ms(*shape)
            if repeat >= 2:  # the first rounds make kernels and pack weights
                times[shape].append(elapsed)
    manifest = read_manifest(folder)
    base = statistics.median(times[1, 1])
    fastest = min(times[1, 1])
    rows = []
    for (num_rows, width), values in times.items():
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
        rows.append(
            {
                "rows": num_rows,
                "width": width,
                "median_ms": round(median, 3),
                "quartiles_ms": [round(low, 3), round(high, 3)],
                "min_ms": round(min(values), 3),
                "cost": round(median / base, 3),
                "cost_of_min": round(min(values) / fastest, 3),
                "tokens_per_s": round(num_rows * width / median * 1e3, 1),
            }
        )
    return {
        "precision": precision,
        "mean_tv": manifest.mean_tv if manifest else None,
        "weights_mib": round((folder / "openvino_model.bin").stat().st_size / 2**20, 1),
        "load_s": round(load_s, 2),
        "memory_loaded_mib": loaded,
        "memory_mib": memory_mib(),
        "kv_held_mib": round(backend.usage.held_bytes / 2**20, 1),
        "passes": rows,
    }


def table(result: dict[str, object]) -> str:
    """Return the figures of one precision as text."""
    lines = [
        f"{result['precision']}: {result['weights_mib']} MiB of weights, loaded in "
        f"{result['load_s']} s, memory {result['memory_mib']}, KV held {result['kv_held_mib']} MiB",
        f"{'rows x width':>14} {'median ms':>10} {'quartiles':>16} {'min ms':>8} {'cost':>6} "
        f"{'of min':>7} {'tok/s':>8}",
    ]
    for row in result["passes"]:  # type: ignore[attr-defined]
        low, high = row["quartiles_ms"]
        lines.append(
            f"{row['rows']:>6} x {row['width']:<5} {row['median_ms']:>10.2f} "
            f"{low:>8.2f}-{high:<7.2f} {row['min_ms']:>8.2f} {row['cost']:>6.2f} "
            f"{row['cost_of_min']:>7.2f} {row['tokens_per_s']:>8.1f}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run every precision in a process of its own and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--precisions", default="f32,f16,int8")
    parser.add_argument("--context", type=int, default=200, help="cached tokens per sequence")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--cache-dir", type=Path, default=None)
    parser.add_argument("--output", type=Path, default=None, help="write the JSON here too")
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.model, args.one, args)))
        return 0
    record: dict[str, object] = {"benchmark": "verify_cost", "context": args.context}
    record |= {"repeats": args.repeats, "results": []}
    for precision in args.precisions.split(","):
        prepare(args.model, precision, args.cache_dir, lambda line: print(line, file=sys.stderr))
        command = [sys.executable, *sys.argv, "--one", precision]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        result = json.loads(done.stdout.splitlines()[-1])
        record["results"].append(result)  # type: ignore[attr-defined]
        print(table(result), flush=True)
    report(record, args.output)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
