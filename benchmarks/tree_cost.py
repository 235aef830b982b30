"""What a pass over a tree costs, relative to a chain of the same number of tokens.

One sequence with a context, one pass of a pending token and its drafts, rolled back
after each measurement; the masked row of the default mode and the paths of the
bit-identical mode beside chains in the same process. The rollback to one path is timed
with the pass that it follows.

    python benchmarks/tree_cost.py --precision int8 --output benchmarks/results/…
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import interleave, ratios, report, shown, summary

from draftproof.backends.openvino import OpenVINOBackend, load_openvino, prepare
from draftproof.core.types import FlatBatch, Row
from draftproof.models import pull
from draftproof.proposers.tree_shapes import Shape, shape_of

#: name -> shape below the pending token.
SHAPES: dict[str, Shape] = {
    "2-1 (4 nodes)": shape_of(99, 0.6, (2, 1)),
    "2-2-1 (10 nodes)": shape_of(99, 0.6, (2, 2, 1)),
    "fan of 8": shape_of(99, 0.6, (8,)),
}


def parents_of(shape: Shape) -> list[int]:
    """Return the parents of a row that holds a pending token and a tree, by depth."""
    parents, level = [-1], [(0, shape)]
    while level:
        below = []
        for node, children in level:
            for child in children:
                below.append((len(parents), child))
                parents.append(node)
        level = below
    return parents


def timed(backend: OpenVINOBackend, seq: int, past: int, parents: list[int] | None, count: int,
          tokens: list[int]) -> Callable[[], float]:  # fmt: skip
    """Return a function that runs one pass, keeps one path, and says how long it took."""
    path, node = [], count - 1
    while node > 0:
        path.append(past + node)
        node = parents[node] if parents else node - 1
    row = Row(seq, tokens[:count], past, count, parents)
    batch = FlatBatch.from_rows([row])

    def run() -> float:
        begin = time.perf_counter()
        backend.forward(batch)
        backend.truncate(seq, past + 1, path[::-1])
        seconds = time.perf_counter() - begin
        backend.truncate(seq, past)
        return seconds

    return run


def measure(precision: str, contexts: list[int], repeats: int) -> list[dict[str, Any]]:
    """Time all shapes at all context lengths in both modes."""
    folder = prepare(pull("smollm2"), precision)
    tokens = np.random.default_rng(0).integers(0, 49152, 4096).tolist()
    results = []
    for mode, deterministic in (("masked row", False), ("paths, to the bit", True)):
        backend = load_openvino(folder, kv_cache_bytes=128 << 20, deterministic=deterministic)
        for past in contexts:
            seq = backend.open()
            backend.forward(FlatBatch.from_rows([Row(seq, tokens[:past], 0, 0)]))
            subjects = {"one token": timed(backend, seq, past, None, 1, tokens)}
            for name, shape in SHAPES.items():
                parents = parents_of(shape)
                size = len(parents)
                subjects[f"tree {name}"] = timed(backend, seq, past, parents, size, tokens)
                subjects[f"chain {name}"] = timed(backend, seq, past, None, size, tokens)
            seconds = interleave(subjects, repeats=repeats)
            for name, shape in SHAPES.items():
                tree, chain = seconds[f"tree {name}"], seconds[f"chain {name}"]
                results.append(
                    {
                        "mode": mode,
                        "context": past,
                        "shape": name,
                        "tokens": len(parents_of(shape)),
                        "tree_ms": summary([1e3 * s for s in tree]),
                        "chain_ms": summary([1e3 * s for s in chain]),
                        "least_tree_ms": 1e3 * min(tree),
                        "least_chain_ms": 1e3 * min(chain),
                        "tree_to_chain": ratios(tree, chain),
                        "tree_to_one_token": ratios(tree, seconds["one token"]),
                    }
                )
            backend.close(seq)
    return results


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="int8", choices=("f32", "f16", "int8"))
    parser.add_argument("--contexts", type=int, nargs="+", default=[300])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results = measure(options.precision, options.contexts, options.repeats)
    for row in results:
        print(
            f"{row['mode']:18} context {row['context']:5} {row['shape']:16} "
            f"{row['tokens']:2} tokens: tree / chain {shown(row['tree_to_chain'])}, least "
            f"{row['least_tree_ms']:.1f} / {row['least_chain_ms']:.1f} ms, "
            f"tree / one token {shown(row['tree_to_one_token'])}"
        )
    report({"precision": options.precision, "passes": results}, options.output)


if __name__ == "__main__":
    main()
