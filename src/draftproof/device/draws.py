"""Draw from many laws at once by the inverse of their cumulative sums, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.device.place_laws import Cut, Edges, PlaceLaws
from draftproof.device.precision import BLOCK, ROUNDING, TINY, WEIGHT_ERROR

__all__ = ["Drawn", "as_blocks", "draw", "search", "without"]


class Drawn(NamedTuple):
    """What was drawn.

    Parameters
    ----------
    tokens : Tensor of int64, shape (R,)
        One token per row.
    is_near : Tensor of bool, shape (R,)
        Rows whose coin lies so near to an edge that the definition may draw another.
    """

    tokens: Tensor
    is_near: Tensor


def draw(
    laws: PlaceLaws,
    places: Tensor,
    sums: Tensor,
    coins: Tensor,
    error: Tensor,
    cut: Cut | None = None,
) -> Drawn:
    """Return the token at the point ``u`` of each cumulative law.

    Parameters
    ----------
    laws : PlaceLaws
        The laws.
    places : Tensor of int64, shape (R,)
        Places to draw at.
    sums : Tensor of float64, shape (R, nb)
        Block sums of the weights after the cut.
    coins : Tensor of float64, shape (R,)
        Uniforms in [0, 1).
    error : Tensor of float64, shape (R,)
        How far a step of the cumulative weights may be from the definition's, beyond
        the error of float32 exponentials; in units of the weights.
    cut : Cut, optional
        What is taken from the laws; None for nothing.

    Returns
    -------
    Drawn
        The first token whose cumulative weight exceeds ``u`` times the total.

    Notes
    -----
    Sums are float64 on every device: a float32 sum over 128k tokens would be wrong by
    more than the mass of most of them. The order of additions is fixed by the row
    alone: inside blocks of 256, then over blocks. A step at F, as a share of the total,
    moves by at most ``2 d F (1 - F)`` when every weight moves by a factor in
    ``[1 - d, 1 + d]``; the ends of the law do not move.
    """
    edges = laws.search(places, sums, coins, cut)
    spare = sums.shape[1] * BLOCK
    rounding = spare * ROUNDING * edges.total

    def reach(step: Tensor) -> Tensor:
        return 2 * WEIGHT_ERROR * (step / edges.total) * (edges.total - step) + error + rounding

    is_near = (edges.lower > 0) & (edges.point - edges.lower <= reach(edges.lower))
    is_near |= (edges.upper < edges.total) & (edges.upper - edges.point <= reach(edges.upper))
    # At the very ends a weight that one side flushes to 0 decides.
    is_near |= (edges.point <= spare * TINY) | (edges.total - edges.point <= rounding)
    return Drawn(edges.tokens, is_near)


def search(sums: Tensor, block_of: Callable[[Tensor], Tensor], coins: Tensor) -> Edges:
    """Find each coin among the block sums, then inside one block.

    Parameters
    ----------
    sums : Tensor of float64, shape (R, nb)
        Block sums, not negative.
    block_of : callable of Tensor
        Given one block number per row, shape (R,), returns its weights, float64,
        shape (R, 256).
    coins : Tensor of float64, shape (R,)
        Uniforms in [0, 1).

    Returns
    -------
    Edges
        Where they fell.
    """
    steps = sums.cumsum(1)
    total = steps[:, -1]
    point = coins * total
    block = _first_above(steps, sums, point)
    before = _step_before(steps, block)
    weights = block_of(block)
    inside = weights.cumsum(1)
    slot = _first_above(inside, weights, point - before)
    lower = before + _step_before(inside, slot)
    upper = before + inside.gather(1, slot[:, None])[:, 0]
    return Edges(block * BLOCK + slot, lower, upper, point, total)


def _first_above(steps: Tensor, weights: Tensor, point: Tensor) -> Tensor:
    """Return the first index whose step exceeds the point, or the last positive weight."""
    index = (steps <= point[:, None]).sum(1)
    numbers = torch.arange(steps.shape[1], device=steps.device)
    last = torch.where(weights > 0, numbers, 0).amax(1)
    return torch.where(index < steps.shape[1], index, last)


def _step_before(steps: Tensor, index: Tensor) -> Tensor:
    before = steps.gather(1, (index - 1).clamp(min=0)[:, None])[:, 0]
    return torch.where(index > 0, before, 0)


def as_blocks(values: Tensor) -> Tensor:
    """View the last axis as whole blocks."""
    return values.view(*values.shape[:-1], -1, BLOCK)


def without(weights: Tensor, blocks: Tensor, cut: Cut) -> Tensor:
    """Return blocks of weights after a cut.

    Parameters
    ----------
    weights : Tensor of float64, shape (R, 256)
        One block of each row.
    blocks : Tensor of int64, shape (R,)
        Which block.
    cut : Cut
        What is taken.

    Returns
    -------
    Tensor of float64, shape (R, 256)
        Not negative.
    """
    numbers = torch.arange(BLOCK, device=weights.device) + (blocks * BLOCK)[:, None]
    held = torch.where(numbers == cut.dropped[:, None], 0, weights)
    if len(cut.draft_weights):
        drafts = as_blocks(cut.draft_weights)[cut.draft_rows, blocks].double()
        held = torch.where(cut.units[:, None] > 0, held - cut.units[:, None] * drafts, held)
    return held.clamp(min=0)
