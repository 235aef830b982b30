"""Sizes that passes are padded to, so that a captured graph can run many of them.

A bucket fixes every shape of a pass. Tokens that only fill it repeat the last token of
their row, and rows that only fill it repeat the last row: every one of them is a legal
token with a mask of its own. What they write goes to a slot that nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.core.types import FlatBatch

__all__ = ["ROWS", "WIDTHS", "Bucket", "bucket_of"]

#: Numbers of rows.
ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
#: Tokens per row. A wider row is a prompt or a large tree, and runs as it is.
WIDTHS: Final = (1, 2, 4, 6, 8, 12, 16)
#: Smallest length; the others are 1.5 times and twice the one before, in turns.
_SHORTEST: Final = 64
#: Padding to this many tokens is nearly free: the weights are read once anyway.
_NEARLY_FREE: Final = 64
#: Above that a pass may become this much larger.
_LARGEST_GROWTH: Final = 2


@dataclass(frozen=True, slots=True)
class Bucket:
    """The shape of a padded pass.

    Parameters
    ----------
    num_rows : int
        Rows B.
    width : int
        Tokens n of every row.
    length : int
        Slots T that every row attends over.
    branches : bool
        Whether the pass says which tokens each token descends from.
    """

    num_rows: int
    width: int
    length: int
    branches: bool

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of the pass, padding included."""
        return self.num_rows * self.width


def bucket_of(batch: FlatBatch, past_lens: NDArray[np.int32]) -> Bucket | None:
    """Return the smallest bucket that holds a pass.

    Parameters
    ----------
    batch : FlatBatch
        At least one token.
    past_lens : ndarray of int32, shape (B,)
        Cached tokens of each row before the pass.

    Returns
    -------
    Bucket or None
        None where a row is wider, or there are more rows, than any bucket has; and where
        padding would cost more than a graph can save: more than 64 tokens, and more than
        twice those of the pass.
    """
    counts = np.diff(batch.row_begins)
    num_rows = _at_least(ROWS, len(counts))
    width = _at_least(WIDTHS, int(counts.max()))
    if num_rows is None or width is None:
        return None
    if num_rows * width > max(_NEARLY_FREE, _LARGEST_GROWTH * len(batch)):
        return None
    length = _length(int((past_lens + counts).max()))
    return Bucket(num_rows, width, length, batch.parents is not None)


def _at_least(sizes: tuple[int, ...], wanted: int) -> int | None:
    """Return the first size that is large enough."""
    return next((size for size in sizes if size >= wanted), None)


def _length(wanted: int) -> int:
    """Return the first length that is large enough: 64, 96, 128, 192, 256, ..."""
    size = _SHORTEST
    while size < wanted:
        size += size // 2 if size & (size - 1) == 0 else size // 3
    return size
