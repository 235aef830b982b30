"""Draw from many laws at once by the inverse of their cumulative sums, block by block."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from draftproof.device.precision import BLOCK, ROUNDING, TINY, WEIGHT_ERROR

__all__ = ["Drawn", "draw"]


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


def draw(sums: Tensor, block_of: Callable[[Tensor], Tensor], coins: Tensor, error: Tensor) -> Drawn:
    """Return the token at the point ``u`` of each cumulative law.

    Parameters
    ----------
    sums : Tensor of float64, shape (R, nb)
        Sums of the weights of each block, not negative.
    block_of : callable of Tensor
        Given one block number per row, shape (R,), returns its weights, float64,
        shape (R, BLOCK).
    coins : Tensor of float64, shape (R,)
        Uniforms in [0, 1).
    error : Tensor of float64, shape (R,)
        How far a step of the cumulative weights may be from the definition's, beyond
        the error of float32 exponentials; in units of the weights.

    Returns
    -------
    Drawn
        The first token whose cumulative weight exceeds ``u`` times the total, the last
        token of positive weight where rounding leaves none.

    Notes
    -----
    Sums are float64 on every device: a float32 sum over 128k tokens would be wrong by
    more than the mass of most of them. The order of additions is fixed by the row
    alone: inside blocks of 256, then over blocks. A step at F, as a share of the total,
    moves by at most ``2 d F (1 - F)`` when every weight moves by a factor in
    ``[1 - d, 1 + d]``; the ends of the law do not move.
    """
    steps = sums.cumsum(1)
    total = steps[:, -1]
    point = coins * total
    block = _first_above(steps, sums, point)
    before = torch.where(block > 0, steps.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0)
    weights = block_of(block)
    inside = weights.cumsum(1)
    slot = _first_above(inside, weights, point - before)
    upper = before + inside.gather(1, slot[:, None])[:, 0]
    lower = before + torch.where(
        slot > 0, inside.gather(1, (slot - 1).clamp(min=0)[:, None])[:, 0], 0
    )

    rounding = sums.shape[1] * BLOCK * ROUNDING * total

    def reach(step: Tensor) -> Tensor:
        share = step / total
        return 2 * WEIGHT_ERROR * share * (total - step) + error + rounding

    is_near = (lower > 0) & (point - lower <= reach(lower))
    is_near |= (upper < total) & (upper - point <= reach(upper))
    # At the very ends a weight that one side flushes to 0 decides.
    is_near |= (point <= sums.shape[1] * BLOCK * TINY) | (total - point <= rounding)
    return Drawn(block * BLOCK + slot, is_near)


def _first_above(steps: Tensor, weights: Tensor, point: Tensor) -> Tensor:
    """Return the first index whose step exceeds the point, or the last positive weight."""
    index = (steps <= point[:, None]).sum(1)
    numbers = torch.arange(steps.shape[1], device=steps.device)
    last = torch.where(weights > 0, numbers, 0).amax(1)
    return torch.where(index < steps.shape[1], index, last)
