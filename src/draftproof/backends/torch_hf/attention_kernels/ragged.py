"""A pass as kernels for ragged batches read it: where rows begin, and their pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.backends.torch_hf.plan import PassPlan

__all__ = ["RaggedRows", "send_int32"]

Ints = NDArray[np.int32]


class RaggedRows:
    """The B rows of a pass on the host, as int32.

    Rows stand one after another as they do in the pass. A row attends over all slots it
    has after the pass, so that its last token sees the last slot: where a kernel masks
    causally it aligns the corner at the bottom right.

    Parameters
    ----------
    plan : PassPlan
        A pass whose rows are chains, or whose mask is given beside.

    Attributes
    ----------
    query_begins : ndarray of int32, shape (B + 1,)
        First token of each row in the pass, and the number of tokens.
    lengths : ndarray of int32, shape (B,)
        Slots of each row after the pass.
    key_begins : ndarray of int32, shape (B + 1,)
        Where the slots of each row begin, were they gathered one after another.
    pages : list of ndarray of int32
        The pages of each row that hold its slots, no reserved ones.
    max_query, max_key : int
        Most tokens of a row, and most slots.
    """

    def __init__(self, plan: PassPlan) -> None:
        counts = np.diff(plan.row_begins)
        lengths = plan.past_lens + counts
        self.query_begins: Ints = plan.row_begins.astype(np.int32)
        self.lengths: Ints = lengths.astype(np.int32)
        self.key_begins: Ints = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        self.max_query, self.max_key = int(counts.max()), int(lengths.max())
        self._page_size = plan.page_size
        held = -(-lengths // plan.page_size)
        self.pages: list[Ints] = [
            np.asarray(table[:count], dtype=np.int32)
            for table, count in zip(plan.tables, held.tolist(), strict=True)
        ]

    def table(self) -> Ints:
        """Return the pages of all rows, shape (B, most pages of a row).

        A shorter row repeats its last page, which is not read again.
        """
        width = max(len(pages) for pages in self.pages)
        return np.stack(
            [np.pad(pages, (0, width - len(pages)), mode="edge") for pages in self.pages]
        )

    def slots(self) -> Ints:
        """Return all slots of all rows, one row after another, shape (sum of lengths,)."""
        inside = np.arange(self._page_size, dtype=np.int32)
        rows = [
            (pages[:, None] * self._page_size + inside).reshape(-1)[:length]
            for pages, length in zip(self.pages, self.lengths.tolist(), strict=True)
        ]
        return np.concatenate(rows)


def send_int32(arrays: Sequence[Ints], device: Any) -> list[Any]:
    """Copy integer arrays to a device in one piece.

    Parameters
    ----------
    arrays : sequence of ndarray of int32
        At least one.
    device : torch.device
        Where they go.

    Returns
    -------
    list of torch.Tensor of int32
        One per array, in its shape.
    """
    flat = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))
    if device.type == "cuda":
        flat = flat.pin_memory()
    flat = flat.to(device, non_blocking=True)
    parts = torch.split(flat, [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
