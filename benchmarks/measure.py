"""What every benchmark shares: the environment record, interleaving, the report.

A script prints a table for people and, as its last line, one JSON object with the
figures, the environment and the command, so that ``tail -1`` gives a program the data.
"""

from __future__ import annotations

import json
import os
import platform
import random
import resource
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from draftproof.machine import installed_version, processor_name

PACKAGES = ("draftproof", "numpy", "openvino", "tokenizers", "gguf", "transformers", "torch")


def environment() -> dict[str, Any]:
    """Describe the machine, the versions and the command."""
    return {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := installed_version(name))},
        "commit": _commit(),
        "command": shlex.join(["python", *sys.argv]).replace(str(Path.home()), "~"),
    }


def interleave(
    subjects: Mapping[str, Callable[[], float]],
    *,
    repeats: int,
    seed: int = 0,
    warm_up: bool = True,
) -> dict[str, list[float]]:
    """Time subjects in rounds, each round in another random order.

    Parameters
    ----------
    subjects : mapping of str to callable
        Each runs once and returns its figure.
    repeats : int
        Rounds that count.
    seed : int
        Seed of the orders.
    warm_up : bool
        Run one more round before, which does not count.

    Returns
    -------
    dict of str to list of float
        Figures by subject, in order of the rounds, so that ratios can be taken within
        a round.
    """
    order = list(subjects)
    shuffler = random.Random(seed)
    figures: dict[str, list[float]] = {name: [] for name in order}
    for round_number in range(0 if warm_up else 1, repeats + 1):
        shuffler.shuffle(order)
        for name in order:
            figure = subjects[name]()
            if round_number:
                figures[name].append(figure)
    return figures


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median, quartiles and number of measurements."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return {"median": ordered[0], "q1": ordered[0], "q3": ordered[0], "n": 1}
    q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive")
    return {"median": median, "q1": q1, "q3": q3, "n": len(ordered)}


def ratios(of: Sequence[float], to: Sequence[float]) -> dict[str, float]:
    """Return the summary of the ratios of paired figures."""
    return summary([a / b for a, b in zip(of, to, strict=True)])


def peak_memory_bytes() -> int:
    """Return the largest resident size of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def shown(stats: Mapping[str, float], digits: int = 2) -> str:
    """Format a summary as ``median [q1, q3]``."""
    return f"{stats['median']:.{digits}f} [{stats['q1']:.{digits}f}, {stats['q3']:.{digits}f}]"


def report(figures: Mapping[str, Any], output: Path | None) -> None:
    """Print the JSON line last and keep a copy."""
    record = {"environment": environment(), **figures}
    if output is not None:
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record))


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
