"""Laws under a temperature alone, computed by kernels from logits that are only read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from draftproof.device import kernels
from draftproof.device.laws import to_device
from draftproof.device.place_laws import Cut, Edges
from draftproof.device.places import Places
from draftproof.device.precision import BLOCK
from draftproof.errors import InvariantError

__all__ = ["TritonLaws", "triton_greedy"]


#: The exponent is rounded to float32 before it is used, as in the definition; a fused
#: multiply-add would skip that, and be off by 80 * 2**-24 where the weight is e**-80.
_ROUNDED: Mapping[str, bool] = MappingProxyType({"enable_fp_fusion": False})


class TritonLaws:
    """Laws of N places whose weights are never written to memory.

    Parameters
    ----------
    logits : Tensor, shape (M, V)
        Raw logits of any float type; rows must be contiguous.
    places : Places
        N policies with a temperature and nothing else.

    Raises
    ------
    InvariantError
        If a policy has more than a temperature.

    Notes
    -----
    Two reads of the logits, 8 N V / 256 bytes of sums.
    """

    def __init__(self, logits: Tensor, places: Places) -> None:
        if not places.is_plain:
            raise InvariantError("a policy with filters or edits: expected a temperature alone")
        device = logits.device
        self._logits = logits if logits.stride(1) == 1 else logits.contiguous()
        self._rows = to_device(places.rows, device)
        self._inverse = to_device(places.inverse_temperature, device)
        self._peak = _peaks(self._logits, self._rows)[0]
        self._width = self._tiles * (kernels.TILE // BLOCK)
        count = len(self._rows)
        self.sums = torch.empty((count, self._width), dtype=torch.float64, device=device)
        kernels.sums[(count, self._tiles)](
            *self._read(), self.sums, tile_size=kernels.TILE, **_ROUNDED
        )
        self.totals = self.sums.sum(1)
        self.slack = torch.zeros_like(self.totals)
        self.is_bad = ~self._peak.isfinite()

    @property
    def _tiles(self) -> int:
        return int(-(-self._logits.shape[1] // kernels.TILE))

    def _read(self) -> tuple[Tensor | int, ...]:
        """Return the arguments with which every kernel reads the logits."""
        stride, size = self._logits.stride(0), self._logits.shape[1]
        return self._logits, stride, size, self._rows, self._peak, self._inverse

    def weights_at(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return single weights; see `PlaceLaws`."""
        out = torch.empty(places.shape, dtype=torch.float64, device=places.device)
        count = places.numel()
        args = *self._read(), places.contiguous(), tokens.contiguous(), out, count
        kernels.points[(-(-count // kernels.ITEMS),)](*args, items=kernels.ITEMS, **_ROUNDED)
        return out

    def block(self, places: Tensor, blocks: Tensor) -> Tensor:
        """Return one block of weights per place; see `PlaceLaws`."""
        out = torch.empty((len(places), BLOCK), dtype=torch.float64, device=places.device)
        kernels.blocks[(len(places),)](*self._read(), places.contiguous(), blocks, out, **_ROUNDED)
        return out

    def excess_sums(
        self, places: Tensor, units: Tensor, draft_weights: Tensor, draft_rows: Tensor
    ) -> Tensor:
        """Return the block sums of a positive part; see `PlaceLaws`."""
        out = torch.empty((len(places), self._width), dtype=torch.float64, device=places.device)
        kernels.excess_sums[(len(places), self._tiles)](
            *self._read(),
            places.contiguous(),
            units.contiguous(),
            draft_weights,
            draft_weights.stride(0),
            draft_rows.contiguous(),
            out,
            tile_size=kernels.TILE,
            **_ROUNDED,
        )
        return out

    def search(self, places: Tensor, sums: Tensor, coins: Tensor, cut: Cut | None) -> Edges:
        """Find coins in cumulative laws; see `PlaceLaws`."""
        count = len(places)
        device = places.device
        if cut is None:
            nothing = torch.zeros(count, dtype=torch.float64, device=device)
            none = torch.full((count,), -1, dtype=torch.int64, device=device)
            cut = Cut(none, nothing, sums[:0], none)
        tokens = torch.empty(count, dtype=torch.int64, device=device)
        edges = torch.empty((count, 4), dtype=torch.float64, device=device)
        has_drafts = len(cut.draft_weights) > 0
        kernels.draws[(count,)](
            *self._read(),
            places.contiguous(),
            sums.contiguous(),
            sums.shape[1],
            coins.contiguous(),
            cut.units.contiguous(),
            cut.dropped.contiguous(),
            cut.draft_weights if has_drafts else sums,
            cut.draft_weights.stride(0),
            cut.draft_rows.contiguous(),
            tokens,
            edges,
            padded_width=1 << (sums.shape[1] - 1).bit_length(),
            has_drafts=has_drafts,
            **_ROUNDED,
        )
        return Edges(tokens, *edges.unbind(1))


def triton_greedy(logits: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """Return the largest logit's token at each place; see `greedy_tokens`.

    Parameters
    ----------
    logits : Tensor, shape (M, V)
        Raw logits.
    places : Places
        Greedy places without edits.

    Returns
    -------
    tokens : Tensor of int64, shape (N,)
        The lowest id on ties.
    is_bad : Tensor of bool, shape (N,)
        Places that have no law.
    """
    held = logits if logits.stride(1) == 1 else logits.contiguous()
    peak, tokens = _peaks(held, to_device(places.rows, logits.device))
    return tokens, ~peak.isfinite()


def _peaks(logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit of each row, NaN if it holds one, and its first token."""
    size = logits.shape[1]
    shape = (len(rows), -(-size // kernels.TILE))
    peaks = torch.empty(shape, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(shape, dtype=torch.int64, device=logits.device)
    kernels.peaks[shape](
        logits, logits.stride(0), size, rows, peaks, tokens, tile_size=kernels.TILE
    )
    tile = peaks.argmax(1, keepdim=True)
    return peaks.gather(1, tile)[:, 0], tokens.gather(1, tile)[:, 0]
