"""How weights move: matrices by orthogonalised momentum, the rest by Adam.

On a few hundred updates, which is all that minutes on a CPU allow, steps of equal size
in all directions of a matrix go farther than steps scaled entry by entry.

References
----------
Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/ (the five steps of
the iteration and its constants); size of a step as in Liu et al., 2502.16982, section 2.2.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn

__all__ = ["Optimiser"]

Tensor = Any

#: Of the iteration that moves all singular values near 1.
_A, _B, _C, _STEPS = 3.4445, -4.7750, 2.0315, 5
_MOMENTUM: Final = 0.95
#: Learning rates at scale 1: of a matrix step whose entries have size 0.2, and of Adam. Five
#: times as much undid the linear start, and had not made up for it after 30 updates.
_MATRIX_RATE, _VECTOR_RATE = 8e-4, 4e-4
_DECAY: Final = 0.01


class Optimiser:
    """Moves the parameters of one module.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    rate : float
        Scale of both learning rates.
    """

    def __init__(self, module: nn.Module, rate: float) -> None:
        parameters = list(module.parameters())
        self._matrices = [each for each in parameters if each.ndim == 2]
        self._momenta = [torch.zeros_like(each) for each in self._matrices]
        vectors = [each for each in parameters if each.ndim < 2]
        self._adam = torch.optim.Adam(vectors, lr=_VECTOR_RATE * rate, betas=(0.9, 0.95))
        self._rate = rate

    def step(self, scale: float) -> None:
        """Move once.

        Parameters
        ----------
        scale : float
            Factor of the learning rates now.
        """
        rate = _MATRIX_RATE * self._rate * scale
        with torch.no_grad():
            for matrix, momentum in zip(self._matrices, self._momenta, strict=True):
                gradient: Tensor = matrix.grad
                momentum.lerp_(gradient, 1 - _MOMENTUM)
                direction = _orthogonal(gradient.lerp(momentum, _MOMENTUM))
                size = 0.2 * max(matrix.shape) ** 0.5
                matrix.mul_(1 - rate * _DECAY).add_(direction, alpha=-rate * size)
        for group in self._adam.param_groups:
            group["lr"] = _VECTOR_RATE * self._rate * scale
        self._adam.step()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs."""
        return {"momenta": self._momenta, "adam": self._adam.state_dict()}

    def load_state_dict(self, held: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._momenta = list(held["momenta"])
        self._adam.load_state_dict(held["adam"])


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return about the nearest matrix whose singular values are 1."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(_STEPS):
        square = wide @ wide.T
        wide = _A * wide + (_B * square + _C * square @ square) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T
