"""The greedy token of many places: one read of the logits, no law."""

from __future__ import annotations

import torch
from torch import Tensor

from draftproof.device.draws import as_blocks
from draftproof.device.laws import apply_edits, working_logits
from draftproof.device.places import Places
from draftproof.device.precision import BLOCK

__all__ = ["first_largest", "greedy_tokens"]


def greedy_tokens(logits: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """Return the largest logit's token at each place, the lowest id on ties.

    Parameters
    ----------
    logits : Tensor, shape (M, V)
        Raw logits; not written to.
    places : Places
        Greedy places. Of their policies only the edits matter: no filter drops the
        largest logit, and no temperature moves it.

    Returns
    -------
    tokens : Tensor of int64, shape (N,)
        Exactly the definition's: logits are compared, not weights.
    is_bad : Tensor of bool, shape (N,)
        Places that have no law.
    """
    held = working_logits(logits, places.rows)
    tokens, peak = first_largest(held)
    is_bad = ~peak.isfinite()
    if places.edits is not None:
        apply_edits(held[:, : logits.shape[1]], places.edits)
        tokens, peak = first_largest(held)
        is_bad |= ~peak.isfinite()
    return tokens, is_bad


def first_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first index of the largest entry of each row, and that entry.

    Parameters
    ----------
    values : Tensor, shape (N, V) with V a multiple of BLOCK
        NaN counts as largest.

    Returns
    -------
    index : Tensor of int64, shape (N,)
        The lowest on ties.
    largest : Tensor, shape (N,)
        ``values`` there.

    Notes
    -----
    One read of the row, then two short searches: among the blocks and inside one.
    """
    peaks = as_blocks(values).amax(-1)
    block = peaks.argmax(1)
    every = torch.arange(len(values), device=values.device)
    inside = as_blocks(values)[every, block]
    return block * BLOCK + inside.argmax(1), peaks[every, block]
