"""One pass as tensors: which slot each token writes, and what each token sees.

Rows of a few tokens are padded to one width and length and attended in one call. Longer
rows, and rows that are alone, are attended one by one. On the host everything is built
with numpy and sent to the device in one piece.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.backends.torch_hf.buckets import Bucket
from draftproof.core.types import FlatBatch
from draftproof.errors import InvariantError

__all__ = ["NARROW", "PassPlan", "RowGroup", "Upload", "written_slots"]

Ints = NDArray[np.int64]

#: Rows of at most this many tokens are padded and attended together.
NARROW: Final = 32


class Upload:
    """Integer arrays that travel to the device in one copy.

    Parameters
    ----------
    device : torch.device
        Where they go.
    buffer : torch.Tensor of int64, optional
        On the device: what an earlier upload of the same shapes filled, to be filled
        again. New memory when None.
    """

    def __init__(self, device: Any, buffer: Any = None) -> None:
        self._device = device
        self._buffer = buffer
        self._parts: list[Ints] = []
        self._begins = [0]

    def add(self, array: NDArray[Any]) -> int:
        """Put an array on the list and return its number."""
        self._parts.append(np.asarray(array, dtype=np.int64))
        self._begins.append(self._begins[-1] + array.size)
        return len(self._parts) - 1

    def send(self) -> None:
        """Copy everything; to be called once, after the last ``add``.

        Raises
        ------
        InvariantError
            If the buffer is of another size.
        """
        flat = torch.from_numpy(np.concatenate([part.reshape(-1) for part in self._parts]))
        if self._device.type == "cuda":
            # torch gives pinned memory to nobody else before the copy is done.
            flat = flat.pin_memory()
        if self._buffer is None:
            self._buffer = flat.to(self._device, non_blocking=True)
        elif self._buffer.shape == flat.shape:
            self._buffer.copy_(flat, non_blocking=True)
        else:
            raise InvariantError(
                f"a pass of {len(flat)} integers for the memory of {len(self._buffer)}"
            )

    @property
    def buffer(self) -> Any:
        """Return everything that was sent, one after the other, on the device."""
        return self._buffer

    def tensor(self, number: int) -> Any:
        """Return an array on the device, as int64 in its own shape."""
        part = self._buffer[self._begins[number] : self._begins[number + 1]]
        return part.view(self._parts[number].shape)


class RowGroup:
    """Rows that are attended in one call, B of them, padded to n tokens and T slots.

    Parameters
    ----------
    batch : FlatBatch
        The whole pass.
    rows : sequence of int
        Numbers of the rows.
    past_lens : ndarray of int64
        Slots of every row of the pass that were written before it.
    tables : sequence of ndarray
        Pages of every row of the pass, after it.
    page_size : int
        Token slots of a page.
    upload : Upload
        Takes the arrays.
    bucket : Bucket, optional
        The shape, where it is fixed: the group is then the whole pass, and only entries
        of tensors tell two passes apart. Rows that fill it repeat a row.
    """

    def __init__(
        self,
        batch: FlatBatch,
        rows: Sequence[int],
        past_lens: Ints,
        tables: Sequence[NDArray[np.int32]],
        page_size: int,
        upload: Upload,
        bucket: Bucket | None = None,
    ) -> None:
        chosen = np.asarray(rows)
        begins = batch.row_begins.astype(np.int64)
        counts = np.diff(begins)[chosen]
        past = past_lens[chosen]
        lengths = past + counts
        self.num_rows, self.width = len(rows), int(counts.max())
        self.length = int(lengths.max())
        self.is_fixed = bucket is not None
        if bucket is None:
            #: Numbers of the rows in the pass, and the tokens and slots of each.
            self.rows, self.counts, self.lengths = tuple(rows), counts.tolist(), lengths.tolist()
        else:
            self.width, self.length = bucket.width, bucket.length
        self._upload = upload
        self._masks: dict[tuple[int | None, int, Any], Any] = {}
        # Padding repeats the last token of a row, so that no row of the mask is empty.
        inner = np.minimum(np.arange(self.width)[None, :], counts[:, None] - 1)
        flat = begins[chosen][:, None] + inner
        self._slot = upload.add(past[:, None] + inner)
        self._position = upload.add(batch.positions[flat])
        self._past = upload.add(past)
        self.run: int | None = None
        #: First token and end, when the tokens are neighbours in the pass.
        self.span = (0, self.num_rows * self.width)
        self.even = self.contiguous = True
        if bucket is None:
            self.span = (int(begins[rows[0]]), int(begins[rows[-1] + 1]))
            self.even = bool((counts == self.width).all())
            self.contiguous = list(rows) == list(range(rows[0], rows[-1] + 1))
            real = inner == np.arange(self.width)[None, :]
            self._flat = upload.add(flat)
            self._tokens = upload.add(flat[real])
            self._places = upload.add(np.flatnonzero(real))
            self.run = _run(tables[rows[0]], page_size) if len(rows) == 1 else None
        self._kv = (
            -1
            if self.run is not None
            else upload.add(self._slots(rows, lengths, tables, page_size))
        )
        ancestors = _ancestors(batch, chosen, counts, self.width)
        self._ancestors = -1 if ancestors is None else upload.add(ancestors)

    def _slots(
        self,
        rows: Sequence[int],
        lengths: Ints,
        tables: Sequence[NDArray[np.int32]],
        page_size: int,
    ) -> Ints:
        """Return the slots of every row, shape (B, T).

        A row that is shorter repeats its own first slot: what a neighbour or an earlier
        owner of the page left behind is never read, not even with weight 0.
        """
        slots = np.empty((len(rows), self.length), dtype=np.int64)
        inside = np.arange(page_size)
        for place, row in enumerate(rows):
            own = (tables[row].astype(np.int64)[:, None] * page_size + inside).reshape(-1)
            length = lengths[place]
            slots[place, :length] = own[:length]
            slots[place, length:] = own[0]
        return slots

    def fresh(self) -> RowGroup:
        """Return the group without the masks that were made of what its tensors held."""
        twin = copy.copy(self)
        twin._masks = {}
        return twin

    def get(self, name: str) -> Any:
        """Return one of the uploaded tensors: flat, tokens, places or kv."""
        return self._upload.tensor(getattr(self, f"_{name}"))

    def mask(self, window: int | None, repeat: int, dtype: Any) -> Any:
        """Return what is added to the scores, or None when everything is seen.

        Parameters
        ----------
        window : int or None
            Width of the sliding window.
        repeat : int
            How many query heads stand one after another in the rows of the scores.
        dtype : torch.dtype
            Type of the scores.

        Returns
        -------
        torch.Tensor, shape (B, 1, repeat * n, T), or None
            0 where a token sees a slot, minus infinity elsewhere.
        """
        if window is not None and window >= self.length:
            window = None
        if self.num_rows == 1 and self.width == 1 and window is None and not self.is_fixed:
            return None
        key = (window, repeat, dtype)
        if key not in self._masks:
            seen = self.seen(window)
            added = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            added = added.masked_fill_(~seen, float("-inf"))
            rows, width, length = added.shape
            added = added[:, None, None].expand(rows, 1, repeat, width, length)
            self._masks[key] = added.reshape(rows, 1, repeat * width, length)
        return self._masks[key]

    def seen(self, window: int | None) -> Any:
        """Return which slots each token sees.

        Parameters
        ----------
        window : int or None
            Width of the sliding window.

        Returns
        -------
        torch.Tensor of bool, shape (B, n, T)
            Padding of a row sees what its last token sees.
        """
        slot, past = self.get("slot"), self.get("past")[:, None, None]
        index = torch.arange(self.length, device=slot.device)[None, None, :]
        seen = index <= slot[:, :, None]
        if self._ancestors < 0:
            if window is not None:
                seen &= index > slot[:, :, None] - window
            return seen
        inner = (index - past).clamp(0, self.width - 1).expand(-1, self.width, -1)
        ancestor = self.get("ancestors").gather(2, inner) != 0
        seen &= (index < past) | ancestor
        if window is not None:
            position = self.get("position")
            depth = position[:, None, :].expand(-1, self.width, -1).gather(2, inner)
            at = torch.where(index < past, index, depth)
            seen &= at > position[:, :, None] - window
        return seen


class PassPlan:
    """A batch as the model and the attention read it.

    Parameters
    ----------
    batch : FlatBatch
        The rows.
    past_lens : ndarray of int32, shape (B,)
        Cached tokens of each row before the pass.
    table : tuple of ndarray of int32
        Pages of all rows after the pass, flat, and where each row's begin.
    page_size : int
        Token slots of a page.
    device : torch.device
        Where the model is.
    """

    def __init__(
        self,
        batch: FlatBatch,
        past_lens: NDArray[np.int32],
        table: tuple[NDArray[np.int32], NDArray[np.int32]],
        page_size: int,
        device: Any,
    ) -> None:
        pages, begins = table
        tables = [pages[begins[row] : begins[row + 1]] for row in range(len(past_lens))]
        past = past_lens.astype(np.int64)
        upload = Upload(device)
        self.num_tokens = len(batch)
        #: The same on the host, for kernels that read rows of any length as they are.
        self.row_begins = batch.row_begins.astype(np.int64)
        self.past_lens, self.tables, self.page_size = past, tables, page_size
        self.branches = batch.parents is not None
        self.device = device
        numbers = [
            upload.add(array)
            for array in (
                batch.token_ids[None, :],
                batch.positions[None, :],
                written_slots(batch, past, tables, page_size),
                batch.logits_rows,
            )
        ]
        self.groups = tuple(
            RowGroup(batch, rows, past, tables, page_size, upload) for rows in _split(batch)
        )
        upload.send()
        self.token_ids, self.positions, self.slots, self.logits_rows = map(upload.tensor, numbers)


def _split(batch: FlatBatch) -> Iterator[list[int]]:
    """Yield the rows that are attended together."""
    counts = np.diff(batch.row_begins)
    narrow = np.flatnonzero(counts <= NARROW).tolist()
    if narrow:
        yield narrow
    for row in np.flatnonzero(counts > NARROW).tolist():
        yield [row]


def written_slots(
    batch: FlatBatch, past: Ints, tables: Sequence[NDArray[np.int32]], page_size: int
) -> Ints:
    """Return the slot that each token writes.

    Parameters
    ----------
    batch : FlatBatch
        The pass.
    past : ndarray of int64, shape (B,)
        Slots of every row that were written before it.
    tables : sequence of ndarray of int32
        Pages of every row after it.
    page_size : int
        Token slots of a page.

    Returns
    -------
    ndarray of int64, shape (N,)
        Counted over all pages.
    """
    slots = np.empty(len(batch), dtype=np.int64)
    begins = batch.row_begins.tolist()
    for row, table in enumerate(tables):
        begin, end = begins[row], begins[row + 1]
        index = past[row] + np.arange(end - begin)
        slots[begin:end] = table[index // page_size].astype(np.int64) * page_size
        slots[begin:end] += index % page_size
    return slots


def _run(table: NDArray[np.int32], page_size: int) -> int | None:
    """Return the first slot of pages that follow each other in memory, else None."""
    first = int(table[0])
    if np.array_equal(table, np.arange(first, first + len(table))):
        return first * page_size
    return None


def _ancestors(batch: FlatBatch, rows: NDArray[Any], counts: Ints, width: int) -> Ints | None:
    """Return which tokens of its row each token descends from, shape (B, n, n).

    A token is its own ancestor. None when all rows are chains.
    """
    if batch.parents is None:
        return None
    seen = np.zeros((len(rows), width, width), dtype=np.int64)
    for place, row in enumerate(rows.tolist()):
        begin = int(batch.row_begins[row])
        count = int(counts[place])
        for index in range(count):
            parent = int(batch.parents[begin + index]) - begin
            if index:
                seen[place, index] = seen[place, parent]
            seen[place, index, index] = 1
        seen[place, count:] = seen[place, count - 1]
    return seen
