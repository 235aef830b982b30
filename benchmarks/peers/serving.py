"""What the workers share: one JSON object per line in, one per line out.

Uses the standard library only, since it runs in every peer's environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any


@dataclass
class Portions:
    """Notes when how many tokens came."""

    times: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, count: int) -> None:
        """Take tokens that came together."""
        if count:
            self.times.append(time.perf_counter())
            self.counts.append(count)


Decode = Callable[[dict[str, Any], Portions], list[int]]


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of some packages."""
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def serve(
    start: Callable[[dict[str, Any]], Decode],
    packages: tuple[str, ...],
    program: Callable[[], dict[str, str]] = dict,
) -> None:
    """Read options, load, say so, and decode until the input ends.

    ``program`` tells the version of what is not a Python package.

    Libraries print to stdout as they like; answers go to the stream that was stdout when
    the process began.
    """
    answers, sys.stdout = sys.stdout, sys.stderr
    lines = iter(sys.stdin)

    def say(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        decode = start(json.loads(next(lines)))
    except Exception as error:  # noqa: BLE001  the other side is to be told
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"versions": versions(*packages) | program()})
    for line in lines:
        asked = json.loads(line)
        portions = Portions()
        try:
            tokens = decode(asked, portions)
        except Exception as error:  # noqa: BLE001  the other side is to be told
            say({"error": f"{type(error).__name__}: {error}"})
            continue
        say({"times": portions.times, "counts": portions.counts, "token_ids": tokens})
