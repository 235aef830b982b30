"""The tensors that hold keys and values, one slot for each token of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from draftproof.cache import PageCopy, SlotMove
from draftproof.errors import ConfigError

__all__ = ["KvPages", "KvShape"]


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token of one layer leaves behind.

    Parameters
    ----------
    num_heads : int
        Key and value heads.
    key_dim, value_dim : int
        Width of a key and of a value.
    """

    num_heads: int
    key_dim: int
    value_dim: int

    @property
    def num_elements(self) -> int:
        """Return the number of elements of one token."""
        return self.num_heads * (self.key_dim + self.value_dim)


class KvPages:
    """Pages of keys and values of all layers.

    Layers of one shape share a tensor, so that a copy of pages or slots is one call for
    all of them.

    Parameters
    ----------
    shapes : sequence of KvShape
        One per layer.
    num_bytes : int
        Room for all layers.
    page_size : int
        Token slots of a page.
    dtype : torch.dtype
        Type of the elements.
    device : torch.device
        Where they are kept.
    with_scratch : bool, default False
        Keep one page out of the books, for tokens that only fill a pass.

    Raises
    ------
    ConfigError
        If the room is smaller than one page, and one for scratch.
    """

    def __init__(
        self,
        shapes: Sequence[KvShape],
        num_bytes: int,
        page_size: int,
        dtype: Any,
        device: Any,
        *,
        with_scratch: bool = False,
    ) -> None:
        self.page_size = page_size
        elements = sum(shape.num_elements for shape in shapes)
        self.bytes_per_page = page_size * elements * dtype.itemsize
        self.num_pages = num_bytes // self.bytes_per_page - int(with_scratch)
        if self.num_pages < 1:
            least = "two pages" if with_scratch else "one page"
            raise ConfigError(
                f"kv_cache_bytes is {num_bytes}, expected at least {least} of "
                f"{self.bytes_per_page} bytes"
            )
        #: A slot that is written and never read; behind all pages of the books.
        self.scratch = self.num_pages * page_size if with_scratch else -1
        slots = (self.num_pages + int(with_scratch)) * page_size
        self._tensors: list[Any] = []
        self._keys: dict[int, Any] = {}
        self._values: dict[int, Any] = {}
        for shape in dict.fromkeys(shapes):
            layers = [layer for layer, other in enumerate(shapes) if other == shape]
            for held, width in ((self._keys, shape.key_dim), (self._values, shape.value_dim)):
                extent = (len(layers), slots, shape.num_heads, width)
                tensor = _lazy_zeros(extent, dtype, device)
                self._tensors.append(tensor)
                held.update(zip(layers, tensor, strict=True))

    def layer(self, layer: int) -> tuple[Any, Any]:
        """Return keys and values of a layer, each of shape (slots, heads, width)."""
        return self._keys[layer], self._values[layer]

    def copy_page(self, copy: PageCopy) -> None:
        """Copy the first slots of a page to another page, in every layer."""
        source, target = copy.src_page * self.page_size, copy.dst_page * self.page_size
        for tensor in self._tensors:
            tensor[:, target : target + copy.num_slots] = tensor[
                :, source : source + copy.num_slots
            ]

    def move_slots(self, moves: Sequence[SlotMove]) -> None:
        """Copy slots to other slots in every layer, as if all were read before any is written.

        Parameters
        ----------
        moves : sequence of SlotMove
            What the books ask for.
        """
        if not moves:
            return
        size = self.page_size
        places = [
            [move.src_page * size + move.src_slot for move in moves],
            [move.dst_page * size + move.dst_slot for move in moves],
        ]
        moved, device = torch.tensor(places), self._tensors[0].device
        if device.type == "cuda":
            moved = moved.pin_memory()  # else the host would wait for the device
        source, target = moved.to(device, non_blocking=True)
        for tensor in self._tensors:
            tensor.index_copy_(1, target, tensor.index_select(1, source))


def _lazy_zeros(extent: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """Return zeros whose memory is touched only as it is used, where that is possible.

    Zeros matter: a masked slot has weight 0, which NaN would survive.
    """
    if device.type != "cpu":
        return torch.zeros(extent, dtype=dtype, device=device)
    raw = np.zeros(int(np.prod(extent)) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(extent)
