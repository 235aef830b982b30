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
        _filter_logits(held, places)
        nucleus_rows = np.flatnonzero(places.top_p < 1)
        chosen = to_device(nucleus_rows, device)
        scores = held[chosen] if len(nucleus_rows) else held[:0]
        held -= peak[:, None]
        if (places.inverse_temperature != 1).any():
            held *= to_device(places.inverse_temperature, device)[:, None]
        torch.exp(held, out=held)
        slack = torch.zeros(len(held), dtype=torch.float64, device=device)
        if len(nucleus_rows):
            picked = held[chosen]
            mass = to_device(places.top_p[nucleus_rows], device)
            slack[chosen] += keep_nucleus(picked, scores, mass)
            held[chosen] = picked
        floored_rows = np.flatnonzero(places.min_p > 0)
        if len(floored_rows):
            chosen = to_device(floored_rows, device)
            picked = held[chosen]
            slack[chosen] += keep_at_least(picked, to_device(places.min_p[floored_rows], device))
            held[chosen] = picked
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


def _filter_logits(held: Tensor, places: Places) -> None:
    rows = np.flatnonzero(places.top_k)
    if len(rows):
        chosen = to_device(rows, held.device)
        picked = held[chosen]
        counts = places.top_k[rows]
        keep_largest(picked, to_device(counts, held.device), int(counts.max()))
        held[chosen] = picked


def block_sums(values: Tensor) -> Tensor:
    """Return float64 sums of whole blocks, shape (..., V / BLOCK).

    A block is summed by itself, so the sum of a row does not depend on the batch.
    """
    return as_blocks(values).sum(-1, dtype=torch.float64)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy a small host array to a device without waiting for it."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return tensor
    return tensor.to(device, non_blocking=True)
