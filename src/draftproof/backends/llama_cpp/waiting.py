"""Load llama.cpp's library so that its threads give the cores back between passes.

GNU OpenMP, which parallel builds of llama.cpp on Linux use, lets threads that wait turn in
a loop, 300,000 times where nobody says: 9 ms after each pass in which a core is taken from
the engine, the server and the client, and, worse, the same at every barrier inside a pass
where another program has the core that the last thread needs. The barriers of a pass that
runs undisturbed are much shorter than that.

The count can only be given in the environment, which OpenMP reads once, as it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["brief_waits"]

_COUNT: Final = "GOMP_SPINCOUNT"
#: Turns before a waiting thread sleeps: at most 0.3 ms.
_TURNS: Final = 10_000


@contextmanager
def brief_waits() -> Iterator[None]:
    """Let an OpenMP that is loaded meanwhile wait briefly; who has set it already decides."""
    if _COUNT in os.environ or "OMP_WAIT_POLICY" in os.environ:
        yield
        return
    os.environ[_COUNT] = str(_TURNS)
    try:
        yield
    finally:
        del os.environ[_COUNT]
