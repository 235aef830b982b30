"""Arrays that are written over and over, so that a row costs no fresh memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Scratch"]


class Scratch:
    """Two arrays that whoever works on a row may overwrite.

    What is in them is good until the next caller: a law never leaves anything here.
    One thread at a time may use one, and every law that was made with it.
    """

    __slots__ = ("_floats", "_ints")

    def __init__(self) -> None:
        self._floats = np.empty(0, dtype=np.float32)
        self._ints = np.empty(0, dtype=np.int32)

    def floats(self, count: int) -> NDArray[np.float32]:
        """Return ``count`` entries of float32, with anything in them."""
        if len(self._floats) < count:
            self._floats = np.empty(count, dtype=np.float32)
        return self._floats[:count]

    def ints(self, count: int) -> NDArray[np.int32]:
        """Return ``count`` entries of int32, with anything in them."""
        if len(self._ints) < count:
            self._ints = np.empty(count, dtype=np.int32)
        return self._ints[:count]
