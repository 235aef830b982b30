"""A measured table of step costs: the honest form where costs have steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError
from draftproof.planner.cost import AffineCost, Floats

__all__ = ["TableCost"]


@dataclass(frozen=True, slots=True, eq=False)
class TableCost:
    """Seconds over (batch, tokens per row, context), interpolated linearly.

    Outside the table the nearest edge is scaled by the affine law, so that the table's
    own level is kept.

    Parameters
    ----------
    batches, widths, contexts : tuple of int
        Rising grid points: rows, tokens per row, cached tokens per row.
    seconds : ndarray of float64, shape (batches, widths, contexts)
        Measured seconds, all positive.
    beyond : AffineCost
        The law outside the table.

    Raises
    ------
    ConfigError
        If the grid does not rise, or a time is missing or not positive.
    """

    batches: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: NDArray[np.float64]
    beyond: AffineCost
    _axes: tuple[Floats, Floats, Floats] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Check the grid."""
        grid = (self.batches, self.widths, self.contexts)
        for name, axis in zip(("batches", "widths", "contexts"), grid, strict=True):
            if not axis or list(axis) != sorted(set(axis)):
                raise ConfigError(f"cost table: {name} {axis}: expected rising numbers")
        shape = tuple(len(axis) for axis in grid)
        if self.seconds.shape != shape:
            raise ConfigError(f"cost table of shape {self.seconds.shape}; expected {shape}")
        if not (np.isfinite(self.seconds).all() and (self.seconds > 0).all()):
            raise ConfigError("cost table holds a time that is missing or not positive")
        axes = tuple(np.asarray(axis, dtype=np.float64) for axis in grid)
        object.__setattr__(self, "_axes", axes)

    def many(self, batch: float, tokens: Floats, kv_tokens: float) -> Floats:
        """Return the seconds of passes; see `StepCost.many`."""
        rows, widths, contexts = self._axes
        inside_b = min(max(batch, rows[0]), rows[-1])
        context = kv_tokens / batch
        inside_c = min(max(context, contexts[0]), contexts[-1])
        asked = tokens / batch
        inside_w = np.clip(asked, widths[0], widths[-1])
        plane = _along(self.seconds, rows, inside_b)
        line = _along(np.moveaxis(plane, -1, 0), contexts, inside_c)
        found = np.interp(inside_w, widths, line)
        if inside_b == batch and inside_c == context and (inside_w == asked).all():
            return np.asarray(found, dtype=np.float64)
        law = self.beyond.many(batch, tokens, kv_tokens)
        edge = self.beyond.many(inside_b, inside_b * inside_w, inside_b * inside_c)
        scaled: Floats = found * law / edge
        return scaled


def _along(values: NDArray[np.float64], axis: Floats, at: float) -> NDArray[np.float64]:
    """Interpolate the first dimension of an array at one point inside its axis."""
    high = int(np.searchsorted(axis, at))
    if axis[min(high, len(axis) - 1)] == at:
        found: NDArray[np.float64] = values[high]
        return found
    share = (at - axis[high - 1]) / (axis[high] - axis[high - 1])
    mixed: NDArray[np.float64] = (1.0 - share) * values[high - 1] + share * values[high]
    return mixed
