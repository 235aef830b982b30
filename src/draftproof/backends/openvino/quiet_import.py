"""Import the OpenVINO package without its usage statistics.

On import the package reports its use to a public analytics service and writes a client
id to the user's home folder, if the companion package ``openvino_telemetry`` is there.
It falls back to a stub where that package cannot be imported, so it is hidden while the
import runs. A program that imported OpenVINO before us has made its own choice.
"""

from __future__ import annotations

import sys
from types import ModuleType

__all__ = ["import_openvino"]

_STATISTICS = "openvino_telemetry"


def import_openvino() -> None:
    """Import OpenVINO once, without letting it report."""
    if "openvino" in sys.modules:
        return
    hidden: dict[str, ModuleType | None] = {}
    for name in (_STATISTICS, f"{_STATISTICS}.backend"):
        if name in sys.modules:
            hidden[name] = sys.modules[name]
        sys.modules[name] = None  # type: ignore[assignment]  # the documented way to block an import
    try:
        import openvino  # noqa: F401
    finally:
        for name in (_STATISTICS, f"{_STATISTICS}.backend"):
            del sys.modules[name]
        sys.modules.update({name: module for name, module in hidden.items() if module is not None})
