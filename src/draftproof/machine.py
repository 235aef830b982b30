"""What figures depend on besides the code: the processor and the installed packages."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

__all__ = ["installed_version", "processor_name"]

_CPUINFO: Final = Path("/proc/cpuinfo")


def processor_name() -> str:
    """Return what the system calls this processor.

    Returns
    -------
    str
        The model's name where Linux tells one, else what Python knows of it; ARM
        machines give their architecture.
    """
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def installed_version(package: str) -> str | None:
    """Return the version of an installed package.

    Parameters
    ----------
    package : str
        Name of the distribution.

    Returns
    -------
    str or None
        None where it is not installed.
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return None
