"""How weights move: matrices by orthogonalised momentum, the rest by Adam.

On a few hundred updates, which is all that minutes on a CPU allow, steps of equal size
in all directions of a matrix go farther than steps scaled entry by entry.

References
----------
Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon/ (the five steps of
the iteration and its constants); size of a step as in Liu et al., 2502.16982, section 2.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

__all__ = ["Optimiser"]

Tensor = Any

#: Of the iteration that moves all singular values near 1.
_A, _B, _C, _STEPS = 3.4445, -4.7750, 2.0315, 5
_MOMENTUM: Final = 0.95
#: Learning rates at scale 1: of a matrix step whose entries have size 0.2, and of Adam.
_MATRIX_RATE, _VECTOR_RATE = 1.6e-3, 4e-4
_DECAY: Final = 0.01


class Optimiser:
    """Moves the parameters of one module.

    Parameters
    ----------
    module : torch.nn.Module
        The module.
    rate : float
        Scale of both learning rates.
    slow : mapping of str to float, optional
        Factors of the rate of matrices, by name of the parameter.
    """

    def __init__(
        self, module: nn.Module, rate: float, slow: Mapping[str, float] | None = None
    ) -> None:
        named = dict(module.named_parameters())
        matrices = {name: each for name, each in named.items() if each.ndim == 2}
        self._matrices = list(matrices.values())
        self._factors = [(slow or {}).get(name, 1.0) for name in matrices]
        self._momenta = [torch.zeros_like(each) for each in self._matrices]
        vectors = [each for each in named.values() if each.ndim < 2]
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
            held = zip(self._matrices, self._momenta, self._factors, strict=True)
            for matrix, momentum, factor in held:
                gradient: Tensor = matrix.grad
                momentum.lerp_(gradient, 1 - _MOMENTUM)
                direction = _orthogonal(gradient.lerp(momentum, _MOMENTUM))
                size = 0.2 * max(matrix.shape) ** 0.5
                matrix.mul_(1 - rate * factor * _DECAY)
                matrix.add_(direction, alpha=-rate * factor * size)
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
