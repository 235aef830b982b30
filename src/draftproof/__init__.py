"""Speculative decoding that is fast and provably exact.

>>> import draftproof
>>> engine = draftproof.load("smollm2")                              # doctest: +SKIP
>>> engine.generate("The capital of France is", max_tokens=8).text   # doctest: +SKIP
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.build import load

__all__ = ["__version__", "load"]

__version__ = version("draftproof")


def __getattr__(name: str) -> Any:
    """Import the loader when it is first used: it brings the model runtime with it."""
    if name == "load":
        from draftproof.build import load

        return load
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}")
