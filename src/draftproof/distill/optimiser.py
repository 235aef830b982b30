"""How weights move: AdamW with small batches, the gradient cut to a norm.

Minutes on a CPU allow some thousand updates. Orthogonalised momentum (Muon) was tried
before: it goes farther per update, but its matrix products cost as much as a batch, so
that in the same time it got less far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

__all__ = ["Optimiser"]

#: Learning rate at scale 1.
_RATE: Final = 5e-4
_BETAS: Final = (0.9, 0.95)
_DECAY: Final = 0.01
_LARGEST_NORM: Final = 1.0


class Optimiser:
    """Moves the parameters of one module.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    rate : float
        Scale of the learning rate.
    slow : mapping of str to float, optional
        Factors of the rate, by name of the parameter.
    """

    def __init__(
        self, module: nn.Module, rate: float, slow: Mapping[str, float] | None = None
    ) -> None:
        factors = slow or {}
        self._module = module
        self._rate = rate
        self._factors = [factors.get(name, 1.0) for name, _each in module.named_parameters()]
        groups = [{"params": [each]} for each in module.parameters()]
        # One kernel per matrix: a pass over weights, gradient and moments, not a dozen.
        self._adam = torch.optim.AdamW(
            groups, lr=_RATE * rate, betas=_BETAS, weight_decay=_DECAY, fused=True
        )

    def step(self, scale: float) -> None:
        """Move once.

        Parameters
        ----------
        scale : float
            Factor of the learning rate now.
        """
        nn.utils.clip_grad_norm_(self._module.parameters(), _LARGEST_NORM)
        for group, factor in zip(self._adam.param_groups, self._factors, strict=True):
            group["lr"] = _RATE * self._rate * scale * factor
        self._adam.step()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"adam": self._adam.state_dict()}

    def load_state_dict(self, held: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._adam.load_state_dict(held["adam"])
        for group in self._adam.param_groups:  # a checkpoint of a version that had many kernels
            group.update(fused=True, foreach=False)
