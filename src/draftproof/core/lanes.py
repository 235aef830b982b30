"""Short lanes that cut a row into blocks whose maxima cost no more than reading it.

A span of ``DEPTH * WIDTH`` entries is seen as a table of ``DEPTH`` rows and ``WIDTH``
columns; a block is a column. The maxima of all columns are one running maximum of
long vectors, which numpy does at the speed of memory, while maxima of short runs of
neighbours cost three times that. Which block an entry belongs to depends on its
index alone, never on the length of the row, so that noise may be keyed by blocks.

What this buys: whoever looks for large entries reads the row once, and afterwards
opens only the blocks whose maximum can matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DEPTH",
    "WIDTH",
    "block_count",
    "block_of",
    "depth_of",
    "lane_peaks",
    "members",
    "place_of",
]

_DEPTH_BITS, _WIDTH_BITS = 6, 10
#: Entries of a block.
DEPTH = 1 << _DEPTH_BITS
#: Distance of neighbours in a block, and blocks per span.
WIDTH = 1 << _WIDTH_BITS
_SPAN_BITS = _DEPTH_BITS + _WIDTH_BITS
_SPAN = 1 << _SPAN_BITS
_STEPS = np.arange(0, _SPAN, WIDTH)
_STEPS.flags.writeable = False


def block_count(size: int) -> int:
    """Return the number of blocks that a row of ``size`` entries touches."""
    spans, rest = divmod(size, _SPAN)
    return spans * WIDTH + min(rest, WIDTH)


def block_of(ids: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the blocks of some entries, same shape."""
    blocks: NDArray[np.intp] = (ids >> _SPAN_BITS) << _WIDTH_BITS
    blocks |= ids & (WIDTH - 1)
    return blocks


def depth_of(ids: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return where in their blocks some entries stand, in ``[0, DEPTH)``."""
    depths: NDArray[np.intp] = (ids >> _WIDTH_BITS) & (DEPTH - 1)
    return depths


def place_of(entry: int) -> tuple[int, int]:
    """Return the block of one entry and where in it the entry stands."""
    block = (entry >> _SPAN_BITS << _WIDTH_BITS) | (entry & (WIDTH - 1))
    return block, (entry >> _WIDTH_BITS) & (DEPTH - 1)


def members(blocks: NDArray[np.intp], size: int) -> NDArray[np.intp]:
    """Return the entries of some blocks that exist in a row.

    Parameters
    ----------
    blocks : ndarray of int, shape (B,)
        Blocks of the row.
    size : int
        Number of entries of the row.

    Returns
    -------
    ndarray of int
        At most ``B * DEPTH`` indices below ``size``, in no order.
    """
    first = (blocks >> _WIDTH_BITS) << _SPAN_BITS
    first |= blocks & (WIDTH - 1)
    ids = (first[:, None] + _STEPS).ravel()
    return ids if not len(ids) or ids.max() < size else ids[ids < size]


def lane_peaks(row: NDArray[Any]) -> NDArray[Any]:
    """Return the largest entry of every block.

    Parameters
    ----------
    row : ndarray of float, shape (N,)
        A NaN makes its block NaN.

    Returns
    -------
    ndarray, shape (block_count(N),)
        Same dtype.
    """
    peaks = np.empty(block_count(len(row)), dtype=row.dtype)
    for start in range(0, len(row), _SPAN):
        _span_peaks(row[start : start + _SPAN], peaks[start // DEPTH :][:WIDTH])
    return peaks


def _span_peaks(span: NDArray[Any], out: NDArray[Any]) -> None:
    depth, rest = divmod(len(span), WIDTH)
    if not depth:
        out[...] = span
        return
    span[: depth * WIDTH].reshape(depth, WIDTH).max(axis=0, out=out)
    if rest:
        np.maximum(out[:rest], span[depth * WIDTH :], out=out[:rest])
