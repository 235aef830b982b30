"""Where a run was made: what may change its figures."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from draftproof.bench.run_record import Environment
from draftproof.machine import installed_version, processor_name

__all__ = ["describe_environment", "environment_differences", "finish_environment"]

_PACKAGES = (
    "draftproof",
    "numpy",
    "openvino",
    "openvino-genai",
    "tokenizers",
    "gguf",
    "torch",
    "transformers",
    "llguidance",
    "httpx",
    "vllm",
    "llama-cpp-python",
)
#: A load per core that differs by more makes two runs hard to compare.
_LOAD_PER_CORE = 0.25


def describe_environment(arguments: Sequence[str], threads: int | None) -> Environment:
    """Describe this machine before a run.

    Parameters
    ----------
    arguments : sequence of str
        The command as it was typed.
    threads : int, optional
        Threads of the model's runtime, where they were chosen.

    Returns
    -------
    Environment
        Without its end.
    """
    found = {name: installed_version(name) for name in _PACKAGES}
    return Environment(
        cpu=processor_name(),
        cores=os.cpu_count(),
        threads=threads,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: held for name, held in found.items() if held is not None},
        commit=_commit(),
        command=shlex.join(arguments).replace(str(Path.home()), "~"),
        started=_now(),
        load_before=_load(),
    )


def finish_environment(environment: Environment) -> Environment:
    """Add the end of a run.

    Parameters
    ----------
    environment : Environment
        As it was described before.

    Returns
    -------
    Environment
        With the time and the load after the run.
    """
    return replace(environment, ended=_now(), load_after=_load())


def environment_differences(left: Environment, right: Environment) -> list[str]:
    """Say in what two environments differ that may explain a difference of figures.

    Parameters
    ----------
    left, right : Environment
        The environments.

    Returns
    -------
    list of str
        One phrase each; empty when nothing differs.
    """
    found = []
    for name in ("cpu", "cores", "threads", "system", "python"):
        ours, theirs = getattr(left, name), getattr(right, name)
        if ours != theirs:
            found.append(f"{name}: {ours} against {theirs}")
    for name in sorted({*left.packages, *right.packages}):
        old, new = left.packages.get(name, "none"), right.packages.get(name, "none")
        if old != new:
            found.append(f"{name}: {old} against {new}")
    loads = [each for each in map(_load_per_core, (left, right)) if each is not None]
    if len(loads) == 2 and abs(loads[0] - loads[1]) > _LOAD_PER_CORE:
        found.append(f"load per core before: {loads[0]:.2f} against {loads[1]:.2f}")
    return found


def _load_per_core(environment: Environment) -> float | None:
    if environment.load_before is None or not environment.cores:
        return None
    return environment.load_before[0] / environment.cores


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _load() -> tuple[float, float, float] | None:
    try:
        return os.getloadavg()
    except (AttributeError, OSError):
        return None


def _commit() -> str | None:
    """Return the commit that the package runs from, None for an installed one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
