"""Many target laws at once, from logits that stay where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.device.draws import as_blocks, search, without
from draftproof.device.filters import keep_at_least, keep_largest, keep_nucleus
from draftproof.device.place_laws import Cut, Edges
from draftproof.device.places import Edits, Places
from draftproof.device.precision import BLOCK

__all__ = [
    "TorchLaws",
    "apply_edits",
    "block_sums",
    "to_device",
    "working_logits",
]


#: Blocks that are summed at a time on the host.
_TILE = 256


class TorchLaws:
    """Laws whose weights are held as one array: any policy, any device.

    Parameters
    ----------
    logits : Tensor, shape (M, V)
        Raw logits; not written to.
    places : Places
        The N policies.

    Notes
    -----
    Memory is 4 N V bytes, and time about six reads and writes of it without filters.
    """

    def __init__(self, logits: Tensor, places: Places) -> None:
        device = logits.device
        held = working_logits(logits, places.rows)
        peak = held.amax(1)
        self.is_bad = ~peak.isfinite()
        if places.edits is not None:
            apply_edits(held[:, : logits.shape[1]], places.edits)
            peak = held.amax(1)
            self.is_bad |= ~peak.isfinite()
        top_k = np.flatnonzero(places.top_k)
        if len(top_k):
            counts = to_device(places.top_k[top_k], device)
            with _Part(held, top_k) as part:
                keep_largest(part, counts, int(places.top_k.max()))
        top_p, min_p = np.flatnonzero(places.top_p < 1), np.flatnonzero(places.min_p > 0)
        scores = held[to_device(top_p, device)] if len(top_p) else held
        held -= peak[:, None]
        if (places.inverse_temperature != 1).any():
            held *= to_device(places.inverse_temperature, device)[:, None]
        torch.exp(held, out=held)
        slack = torch.zeros(len(held), dtype=torch.float64, device=device)
        if len(top_p):
            mass = to_device(places.top_p[top_p], device)
            with _Part(held, top_p) as part:
                slack[to_device(top_p, device)] += keep_nucleus(part, scores, mass)
        if len(min_p):
            fraction = to_device(places.min_p[min_p], device)
            with _Part(held, min_p) as part:
                slack[to_device(min_p, device)] += keep_at_least(part, fraction)
        self.weights = held
        self.sums = block_sums(held)
        self.totals = self.sums.sum(1)
        self.slack = 2 * slack / self.totals

    def weights_at(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return single weights; see `PlaceLaws`."""
        return self.weights[places, tokens].double()

    def block(self, places: Tensor, blocks: Tensor) -> Tensor:
        """Return one block of weights per place; see `PlaceLaws`."""
        return as_blocks(self.weights)[places, blocks].double()

    def excess_sums(
        self, places: Tensor, units: Tensor, draft_weights: Tensor, draft_rows: Tensor
    ) -> Tensor:
        """Return the block sums of a positive part; see `PlaceLaws`."""
        excess = draft_weights[draft_rows].double()
        excess *= -units[:, None]
        excess += self.weights[places]
        return block_sums(excess.clamp_(min=0))

    def search(self, places: Tensor, sums: Tensor, coins: Tensor, cut: Cut | None) -> Edges:
        """Find coins in cumulative laws; see `PlaceLaws`."""

        def block_of(blocks: Tensor) -> Tensor:
            held = self.block(places, blocks)
            return held if cut is None else without(held, blocks, cut)

        return search(sums, block_of, coins)


def working_logits(logits: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """Return a float32 copy of some rows, padded with -inf to whole blocks.

    Parameters
    ----------
    logits : Tensor, shape (M, V)
        Raw logits of any float type.
    rows : ndarray of int64, shape (N,)
        Which rows.

    Returns
    -------
    Tensor of float32, shape (N, padded V)
        Own memory.
    """
    vocab_size = logits.shape[1]
    padded = -(-vocab_size // BLOCK) * BLOCK
    held = torch.empty((len(rows), padded), dtype=torch.float32, device=logits.device)
    held[:, vocab_size:] = -torch.inf
    first = int(rows[0])
    if (rows == np.arange(first, first + len(rows))).all():
        held[:, :vocab_size] = logits[first : first + len(rows)]
    else:
        held[:, :vocab_size] = logits.index_select(0, to_device(rows, logits.device))
    return held


def apply_edits(held: Tensor, edits: Edits) -> None:
    """Apply biases, penalties, masks and bans in place, in the definition's arithmetic.

    Parameters
    ----------
    held : Tensor of float32, shape (N, V)
        Raw logits.
    edits : Edits
        What to change.
    """
    device = held.device
    if edits.bias.size:
        place, token = to_device(edits.bias_at, device)
        held[place, token] = held[place, token] + to_device(edits.bias, device)
    if edits.seen.size:
        place, token = to_device(edits.seen_at, device)
        repetition, presence, frequency, count = to_device(edits.seen, device)
        value = held[place, token]
        value = torch.where(value > 0, value / repetition, value * repetition)
        value = value - presence * (count > 0)
        held[place, token] = value - frequency * count
    if edits.masked.size:
        masked = to_device(edits.masked, device)
        masks = to_device(edits.masks, device)
        held[masked] = held[masked].masked_fill(~masks, -torch.inf)
    if edits.banned_at.size:
        place, token = to_device(edits.banned_at, device)
        held[place, token] = -torch.inf


class _Part:
    """Some rows of an array, to be changed in place; all rows need no copy."""

    def __init__(self, held: Tensor, rows: NDArray[np.int64]) -> None:
        self._held = held
        self._rows = None if len(rows) == len(held) else to_device(rows, held.device)

    def __enter__(self) -> Tensor:
        self._part = self._held if self._rows is None else self._held[self._rows]
        return self._part

    def __exit__(self, *_: object) -> None:
        if self._rows is not None:
            self._held[self._rows] = self._part


def block_sums(values: Tensor) -> Tensor:
    """Return float64 sums of whole blocks, shape (R, V / BLOCK).

    A block is summed by itself, so the sum of a row does not depend on the batch.
    """
    held = as_blocks(values)
    if values.device.type != "cpu" or values.dtype == torch.float64:
        return held.sum(-1, dtype=torch.float64)
    # torch makes a float64 copy first; in tiles it stays in the cache.
    flat = held.view(-1, BLOCK)
    sums = torch.empty(len(flat), dtype=torch.float64)
    for begin in range(0, len(flat), _TILE):
        part = flat[begin : begin + _TILE]
        torch.sum(part, -1, dtype=torch.float64, out=sums[begin : begin + _TILE])
    return sums.view(held.shape[:-1])


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy a small host array to a device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return tensor.to(device, non_blocking=True)
