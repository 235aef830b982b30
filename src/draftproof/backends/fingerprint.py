"""A short name of a matrix that survives rounding: equal weights in other precisions are near.

Names of models tell little: one model has many, and a folder may hold another one tomorrow.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["TARGET_FINGERPRINT", "fingerprint", "is_like"]

#: Where the notes of a head keep the fingerprint of its target's embedding.
TARGET_FINGERPRINT: Final = "target_embedding"

#: Rows and columns that are looked at, evenly spread.
_ROWS, _COLUMNS = 16, 8
#: Largest distance, as a share of the length, of two roundings of the same weights. In
#: 8 bits it is about 0.01 and in 4 bits about 0.1; weights of another model are beyond 1.
_TOLERANCE: Final = 0.2


def fingerprint(matrix: NDArray[np.float32]) -> str:
    """Return some entries of a matrix as text.

    Parameters
    ----------
    matrix : ndarray of float32, shape (n, m)
        For example an embedding.

    Returns
    -------
    str
        At most 128 numbers in float16, in base 64.
    """
    rows, columns = (
        np.unique(np.linspace(0, extent - 1, count + 2).round().astype(np.int64)[1:-1])
        for extent, count in zip(matrix.shape, (_ROWS, _COLUMNS), strict=True)
    )
    entries = np.clip(matrix[np.ix_(rows, columns)], -60_000, 60_000)
    return b64encode(entries.astype("<f2").tobytes()).decode("ascii")


def is_like(one: str, other: str) -> bool:
    """Say whether two fingerprints may be of the same weights, rounded differently.

    Parameters
    ----------
    one, other : str
        What `fingerprint` returned.

    Returns
    -------
    bool
        False also where one of them is damaged.
    """
    try:
        first, second = (
            np.frombuffer(b64decode(each, validate=True), "<f2").astype(np.float64)
            for each in (one, other)
        )
    except (binascii.Error, ValueError):
        return False
    if first.shape != second.shape:
        return False
    length = max(np.linalg.norm(first), np.linalg.norm(second))
    return bool(np.linalg.norm(first - second) <= _TOLERANCE * length)
