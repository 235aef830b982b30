"""A pass that is padded to a bucket: one group of rows, and no shape of its own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.torch_hf.buckets import Bucket
from draftproof.backends.torch_hf.plan import PassPlan, RowGroup, Upload, written_slots
from draftproof.core.types import FlatBatch

__all__ = ["PaddedPlan"]


class PaddedPlan(PassPlan):
    """A batch as a model reads it that always runs the same shapes.

    A token that fills a row repeats the row's last one, a row that fills the pass repeats
    the last row, and both write to a scratch slot. So every token is legal, sees what a
    real one sees, and leaves nothing behind that is ever read.

    Parameters
    ----------
    batch : FlatBatch
        The rows; at most those of the bucket.
    past_lens : ndarray of int32, shape (B,)
        Cached tokens of each row before the pass.
    table : tuple of ndarray of int32
        Pages of all rows after the pass, flat, and where each row's begin.
    page_size : int
        Token slots of a page.
    device : torch.device
        Where the model is.
    bucket : Bucket
        The shape.
    scratch : int
        The slot that padding writes to.
    buffer : torch.Tensor of int64, optional
        ``buffer`` of an earlier plan of the bucket, to be filled again: whatever holds
        tensors of that plan then reads this pass.

    Raises
    ------
    InvariantError
        If the buffer is of another bucket.
    """

    def __init__(
        self,
        batch: FlatBatch,
        past_lens: NDArray[np.int32],
        table: tuple[NDArray[np.int32], NDArray[np.int32]],
        page_size: int,
        device: Any,
        bucket: Bucket,
        scratch: int,
        buffer: Any = None,
    ) -> None:
        # Nothing of the host's is kept that another pass of the bucket would have
        # otherwise: so not what `PassPlan` tells kernels for ragged rows.
        pages, begins = table
        tables = [pages[begins[row] : begins[row + 1]] for row in range(len(past_lens))]
        past = past_lens.astype(np.int64)
        rows = np.minimum(np.arange(bucket.num_rows), len(past) - 1).tolist()
        flat, places = _padding(batch, bucket, rows)
        slots = np.full(bucket.num_tokens, scratch, dtype=np.int64)
        slots[places] = written_slots(batch, past, tables, page_size)
        wanted = places[batch.logits_rows]
        upload = Upload(device, buffer)
        numbers = [
            upload.add(array)
            for array in (
                batch.token_ids[None, flat],
                batch.positions[None, flat],
                slots,
                _filled(wanted, bucket.num_tokens),
                _filled(places, bucket.num_tokens),
            )
        ]
        self.num_tokens = bucket.num_tokens
        self.groups = (RowGroup(batch, rows, past, tables, page_size, upload, bucket),)
        upload.send()
        self.buffer = upload.buffer
        self.token_ids, self.positions, self.slots, logits, tokens = map(upload.tensor, numbers)
        #: What transformers takes for every token.
        self.logits_rows = 0
        self._wanted, self._real = logits[: len(wanted)], tokens[: len(places)]

    def fresh(self) -> PaddedPlan:
        """Return the plan as it was before a run, to be run again on the same tensors."""
        twin = copy.copy(self)
        twin.groups = tuple(group.fresh() for group in self.groups)
        return twin

    def wanted(self, logits: Any) -> Any:
        """Return a copy of the logits that the batch wants, shape (M, V)."""
        return logits.index_select(0, self._wanted)

    def real(self, states: Any) -> Any:
        """Return a copy of the states of the tokens of the batch, shape (..., N, E)."""
        return states.index_select(-2, self._real)


def _padding(
    batch: FlatBatch, bucket: Bucket, rows: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which token stands at each place, and the place of each token."""
    begins = batch.row_begins.astype(np.int64)
    counts = np.diff(begins)
    inner = np.minimum(np.arange(bucket.width)[None, :], counts[rows][:, None] - 1)
    flat = (begins[rows][:, None] + inner).reshape(-1)
    row = np.repeat(np.arange(len(counts)), counts)
    return flat, row * bucket.width + np.arange(len(batch)) - begins[row]


def _filled(places: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return an array with zeros behind it, so that every pass sends as many."""
    return np.concatenate([places, np.zeros(size - len(places), dtype=np.int64)])
