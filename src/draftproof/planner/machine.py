"""Which machine a profile belongs to, and where profiles are kept."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from draftproof.machine import processor_name

__all__ = ["describe_machine", "is_this_machine", "profile_folder", "profile_path"]


def describe_machine(threads: int | None) -> dict[str, Any]:
    """Return what a profile says of the machine that it was measured on.

    Parameters
    ----------
    threads : int, optional
        Threads of the runtime; None where the runtime chose.

    Returns
    -------
    dict
        JSON's own types.
    """
    return {
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
        "draftproof": version("draftproof"),
    }


def is_this_machine(machine: Any) -> bool:
    """Say whether a profile's machine has this one's processor and number of cores."""
    return isinstance(machine, dict) and (machine.get("cpu"), machine.get("cores")) == (
        processor_name(),
        os.cpu_count(),
    )


def profile_folder(cache_dir: Path | None) -> Path:
    """Return where profiles are kept when no file is named."""
    from platformdirs import user_cache_path

    return (cache_dir or user_cache_path("draftproof")) / "profiles"


def profile_path(cache_dir: Path | None, model: str, runtime: str, precision: str) -> Path:
    """Return where the profile of a model on a runtime is kept when no file is named.

    Parameters
    ----------
    cache_dir : Path, optional
        The user's cache when None.
    model, runtime, precision : str
        As `draftproof.core.types.ModelInfo` names them.

    Returns
    -------
    Path
        A file of `profile_folder`.
    """
    words = f"{model}-{runtime}-{precision}"
    safe = "".join(char if char.isalnum() or char in "-._" else "-" for char in words)
    return profile_folder(cache_dir) / f"{safe}.json"
