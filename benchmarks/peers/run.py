"""Engines in turns, on the same prompts and weights; see README.md beside this file."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from measure import interleave, ratios, report, shown, summary  # noqa: E402

from draftproof.bench.workloads import Workloads  # noqa: E402
from draftproof.models import resolve  # noqa: E402
from draftproof.text import Tokenizer  # noqa: E402


class Worker:
    """One engine in a process of its own."""

    def __init__(self, name: str, python: str, options: dict[str, Any]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [python, str(HERE / f"worker_{name}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        self.versions = self.ask(options)["versions"]

    def ask(self, document: dict[str, Any]) -> dict[str, Any]:
        """Send one line and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(document) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the worker has gone"}
        if "error" in answer:
            raise SystemExit(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def pace(answer: dict[str, Any]) -> float:
    """Tokens after the first portion by the seconds after it."""
    times, counts = answer["times"], answer["counts"]
    return sum(counts[1:]) / (times[-1] - times[0])


def fork(left: list[int], right: list[int]) -> int | None:
    """Return the place of the first token that differs, None where texts are equal."""
    pairs = zip(left, right, strict=False)
    shorter = min(len(left), len(right))
    place = next((index for index, (a, b) in enumerate(pairs) if a != b), shorter)
    return None if len(left) == len(right) == place else place


def measure(
    workers: list[Worker], prompts: list[list[int]], options: argparse.Namespace, ends: list[int]
) -> dict[str, Any]:
    """Run every engine with and without drafts in rounds."""
    arms = {
        f"{worker.name}{', drafts' if drafts else ''}": (worker, drafts)
        for worker in workers
        for drafts in (False, True)
    }
    texts: dict[str, list[list[int]]] = {name: [] for name in arms}

    def subject(name: str) -> Callable[[], float]:
        worker, drafts = arms[name]

        def run() -> float:
            prompt = prompts[len(texts[name])]
            asked = {
                "prompt_ids": prompt,
                "max_tokens": options.max_tokens,
                "drafts": drafts,
                "eos_token_ids": ends,
            }
            answer = worker.ask(asked)
            texts[name].append(answer["token_ids"])
            return pace(answer)

        return run

    figures = interleave({name: subject(name) for name in arms}, repeats=options.rounds)
    table = {}
    for name, (worker, drafts) in arms.items():
        plain = worker.name
        entry: dict[str, Any] = {"tokens_per_s": summary(figures[name])}
        if drafts:
            entry["ratio_to_own_plain"] = ratios(figures[name], figures[plain])
            forks = [fork(*pair) for pair in zip(texts[name], texts[plain], strict=True)]
            entry["texts_that_leave_plain"] = sum(place is not None for place in forks)
        table[name] = entry
        ratio = f", x {shown(entry['ratio_to_own_plain'])} its own plain" if drafts else ""
        left = f", {entry['texts_that_leave_plain']} texts leave it" if drafts else ""
        print(f"  {name:28s} {shown(entry['tokens_per_s'], 1)} tokens/s{ratio}{left}")
    return table


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a GGUF file, or a name that has one")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--kappa", type=int, default=5)
    parser.add_argument("--precision", default="int8", help="of our engine")
    parser.add_argument("--workload", default="copy-edit,chat")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    source = resolve(options.model)
    tokenizer = Tokenizer.from_source(source)
    peers = dict(peer.split("=", 1) for peer in options.peer)
    shared = {"model": str(source.path), "kappa": options.kappa, "threads": options.threads}
    shared["precision"] = options.precision
    workers = [
        Worker(name, python, shared)
        for name, python in ({"draftproof": sys.executable} | peers).items()
    ]
    ends = sorted(tokenizer.eos_token_ids)
    tables = {}
    for kind in options.workload.split(","):
        print(kind)
        prompts = [
            tokenizer.encode_chat(
                [{"role": role, "content": text} for role, text in Workloads().prompt(kind, number)]
            )
            for number in range(options.rounds + 1)
        ]
        tables[kind] = measure(workers, prompts, options, ends)
    versions = {worker.name: worker.versions for worker in workers}
    for worker in workers:
        worker.close()
    settings = {key: value for key, value in vars(options).items() if key not in ("output", "peer")}
    report(
        {"benchmark": "peers", "settings": settings, "versions": versions, "figures": tables},
        options.output,
    )


if __name__ == "__main__":
    main()
