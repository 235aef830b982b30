"""What a head borrows from its target: the embedding and the output layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["TargetHead"]

Tensor = Any


@dataclass(frozen=True, slots=True, eq=False)
class TargetHead:
    """Matrices of the target, in float32; nothing here is trained.

    Parameters
    ----------
    embedding : torch.Tensor, shape (V, E)
        One row per token.
    output : torch.Tensor, shape (V, E)
        One row per logit.
    draft_ids : torch.Tensor of int64, shape (D,)
        Tokens that can be drafted.
    drafted : torch.Tensor, shape (D, E)
        Their rows of ``output``.
    """

    embedding: Tensor
    output: Tensor
    draft_ids: Tensor
    drafted: Tensor

    @classmethod
    def of(
        cls,
        embedding: NDArray[np.float32],
        output: NDArray[np.float32],
        draft_ids: NDArray[np.int64],
    ) -> TargetHead:
        """Take the matrices over from numpy."""
        table = torch.from_numpy(embedding)
        rows = table if output is embedding else torch.from_numpy(output)
        ids = torch.from_numpy(draft_ids)
        return cls(table, rows, ids, rows[ids].contiguous())

    def draft_log_law(self, features: Tensor) -> Tensor:
        """Return log probabilities over the draft vocabulary alone, (..., D)."""
        return (features @ self.drafted.T).log_softmax(-1)
