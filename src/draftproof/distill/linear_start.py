"""Start the fusion layer from the best linear guess of the next feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof.distill.batches import Batch
from draftproof.distill.network import DraftHead
from draftproof.distill.target_head import TargetHead

__all__ = ["linear_start"]

#: Ridge, as a share of the mean square of the inputs.
_RIDGE = 1e-3


def linear_start(head: DraftHead, target: TargetHead, batches: Sequence[Batch]) -> None:
    """Solve for the fusion layer by least squares, in place.

    The target's features are a norm's output: a direction of mean square 1 times the
    norm's weight. That weight is estimated, the last norm of the head starts from it,
    and the direction is regressed on token and feature before.

    Parameters
    ----------
    head : DraftHead
        A fresh head.
    target : TargetHead
        What it borrows.
    batches : sequence of Batch
        Some thousand positions.
    """
    with torch.no_grad():
        inputs, wanted = _pairs(head, target, batches)
        scale = wanted.pow(2).mean(0).sqrt().clamp_min(1e-3)
        directions = wanted / scale
        directions = directions / directions.pow(2).mean(-1, keepdim=True).sqrt()
        square = inputs.T @ inputs
        ridge = _RIDGE * square.diagonal().mean()
        square.diagonal().add_(ridge)
        solution = torch.linalg.solve(square, inputs.T @ directions)
        head.fusion_fc.weight.copy_(solution.T)
        head.pre_lm_head_layernorm.weight.copy_(scale)


def _pairs(head: DraftHead, target: TargetHead, batches: Sequence[Batch]) -> tuple[Any, Any]:
    inputs, wanted = [], []
    for batch in batches:
        mask = batch.mask(0)
        embedded = head.embedding_layernorm(target.embedding[batch.token_ids[mask]])
        inputs.append(torch.cat([embedded, batch.features[mask]], -1))
        wanted.append(batch.wanted[mask])
    return torch.cat(inputs), torch.cat(wanted)
