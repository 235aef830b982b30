"""What a grammar costs per position: masks, drafts of certain text, compilation.

Replays JSON texts through a constraint as the engine would: masks of the committed
text and of K drafts, then the tokens are committed. No model runs.

    python benchmarks/grammar_cost.py --output benchmarks/results/grammar_cost.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from measure import interleave, report, shown, summary

from draftproof.core.constraint import GrammarSpec
from draftproof.grammar import make_constraints
from draftproof.models import resolve
from draftproof.text import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "status": {"enum": ["active", "inactive"]},
    },
    "required": ["name", "age", "tags", "status"],
    "additionalProperties": False,
}
COMPACT = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
SPACED = '{"name": "Ada King", "age": 36, "tags": ["mathematics", "engines"], "status": "active"}'
TIGHT = '{"name":"Ada King","age":36,"tags":["mathematics","engines"],"status":"active"}'
WORKLOADS = {
    "schema": (GrammarSpec("json_schema", json.dumps(SCHEMA)), SPACED),
    "schema, compact": (GrammarSpec("json_schema", json.dumps(COMPACT)), TIGHT),
    "any object": (GrammarSpec("json_object"), SPACED),
    "regex": (GrammarSpec("regex", r"[A-Z][a-z]+ [A-Z][a-z]+, \d{1,3}"), "Ada King, 36"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--kappa", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_source(resolve(options.model))
    size = tokenizer.vocab_size
    builds = []
    for _ in range(3):
        start = time.perf_counter()
        make = make_constraints(tokenizer, size)
        builds.append(time.perf_counter() - start)
    rows = {}
    for name, (spec, text) in WORKLOADS.items():
        ids = tokenizer.encode(text, add_special=False)
        fresh = make_constraints(tokenizer, size)
        start = time.perf_counter()
        fresh(spec)
        compiled = time.perf_counter() - start

        def plain(spec=spec, ids=ids) -> float:
            constraint = make(spec)
            start = time.perf_counter()
            for token in ids:
                constraint.allowed()
                constraint.advance(token)
            return (time.perf_counter() - start) / len(ids) * 1e6

        def drafted(spec=spec, ids=ids) -> float:
            # Every round rejects all its drafts: each position is asked K + 1 times over.
            constraint = make(spec)
            asked = 0
            start = time.perf_counter()
            for place, token in enumerate(ids):
                drafts = (*ids[place : place + options.kappa - 1], ids[0])
                for count in range(len(drafts) + 1):
                    constraint.allowed(drafts[:count])
                    asked += 1
                constraint.advance(token)
            return (time.perf_counter() - start) / asked * 1e6

        def likely(spec=spec, ids=ids) -> float:
            constraint = make(spec)
            spent = 0.0
            for token in ids:
                constraint.allowed()
                start = time.perf_counter()
                constraint.likely(options.kappa)
                spent += time.perf_counter() - start
                constraint.advance(token)
            return spent / len(ids) * 1e6

        figures = interleave(
            {"plain": plain, "drafted": drafted, "likely": likely}, repeats=options.repeats
        )
        rows[name] = {
            "tokens": len(ids),
            "compile_ms": compiled * 1e3,
            "drafted_free": free_drafts(make(spec), ids),
            **{f"{key}_us": summary(values) for key, values in figures.items()},
        }
        row = rows[name]
        print(
            f"{name:16} {len(ids):3} tokens, compile {row['compile_ms']:.1f} ms, "
            f"us per position: plain {shown(row['plain_us'], 0)}, "
            f"drafted {shown(row['drafted_us'], 0)}, likely {shown(row['likely_us'], 0)}, "
            f"tokens from likely {row['drafted_free']}"
        )
    print(f"vocabulary of {size}: {min(builds):.2f} s")
    report({"vocabulary_s": builds, "vocab_size": size, "kappa": options.kappa, "rows": rows},
           options.output)  # fmt: skip


def free_drafts(constraint, ids) -> int:
    """Count the tokens of the text that `likely` drafts rightly."""
    place = free = 0
    while place < len(ids):
        drafts = constraint.likely(8)
        right = 0
        while right < len(drafts) and ids[place : place + right + 1] == list(drafts[: right + 1]):
            right += 1
        free += right
        for token in ids[place : place + right + 1]:
            constraint.advance(token)
        place += right + 1
    return free


if __name__ == "__main__":
    main()
