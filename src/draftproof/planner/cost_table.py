"""A measured table of step costs: the honest form where costs have steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from draftproof.errors import ConfigError
from draftproof.planner.cost import AffineCost, Floats

__all__ = ["TableCost"]


@dataclass(frozen=True, slots=True, eq=False)
class TableCost:
    """Seconds over (batch, tokens per row, context), interpolated.

    Between two widths, and between two batches of one width, time rises as it does along
    ``curve`` between their tokens: a runtime that uses another kernel from five tokens on
    makes the fifth token cost more than the three after it, which a straight line from four
    to eight would not show.
    Without a curve, and over contexts, the line is straight. Outside the table the nearest
    edge is scaled by the affine law, so that the table's own level is kept.

    Parameters
    ----------
    batches, widths, contexts : tuple of int
        Rising grid points: rows, tokens per row, cached tokens per row.
    seconds : ndarray of float64, shape (batches, widths, contexts)
        Measured seconds, all positive.
    beyond : AffineCost
        The law outside the table.
    curve : tuple of (int, float), optional
        Tokens of a pass and its seconds, both strictly rising, however they are spread over
        rows.

    Raises
    ------
    ConfigError
        If the grid or the curve does not rise, or a time is missing or not positive.
    """

    batches: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    seconds: NDArray[np.float64]
    beyond: AffineCost
    curve: tuple[tuple[int, float], ...] = ()
    _axes: tuple[Floats, Floats, Floats] = field(init=False, repr=False)
    _knots: Floats = field(init=False, repr=False)

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
        knots = np.asarray(self.curve, dtype=np.float64).reshape(-1, 2).T
        if not (np.diff(knots) > 0).all():
            raise ConfigError(f"cost table: curve {self.curve}: expected rising numbers")
        object.__setattr__(self, "_knots", knots)

    def many(self, batch: float, tokens: Floats, kv_tokens: float) -> Floats:
        """Return the seconds of passes; see `StepCost.many`."""
        rows, widths, contexts = self._axes
        inside_b = min(max(batch, rows[0]), rows[-1])
        context = kv_tokens / batch
        inside_c = min(max(context, contexts[0]), contexts[-1])
        asked = tokens / batch
        inside_w = np.clip(asked, widths[0], widths[-1])
        plane = np.moveaxis(_along(np.moveaxis(self.seconds, -1, 0), contexts, inside_c), -1, 0)
        # From batch to batch a pass gains as many tokens as its rows have: each width has steps
        # of its own.
        line = [
            float(_along(column, self._bent(rows * width), self._bent(inside_b * width)))
            for column, width in zip(plane, widths.tolist(), strict=True)
        ]
        line = isotonic_regression(line).x  # columns in between may cross, times do not
        found = np.interp(self._bent(inside_b * inside_w), self._bent(inside_b * widths), line)
        if inside_b == batch and inside_c == context and (inside_w == asked).all():
            return np.asarray(found, dtype=np.float64)
        law = self.beyond.many(batch, tokens, kv_tokens)
        edge = self.beyond.many(inside_b, inside_b * inside_w, inside_b * inside_c)
        scaled: Floats = found * law / edge
        return scaled

    def _bent(self, tokens: Any) -> Any:
        """Return where numbers of tokens lie along the curve; themselves without one."""
        knots, seconds = self._knots
        if len(knots) < 2:
            return tokens
        slope = (seconds[-1] - seconds[0]) / (knots[-1] - knots[0])
        outside = np.minimum(tokens - knots[0], 0.0) + np.maximum(tokens - knots[-1], 0.0)
        return np.interp(tokens, knots, seconds) + slope * outside


def _along(values: NDArray[np.float64], axis: Floats, at: float) -> NDArray[np.float64]:
    """Interpolate the first dimension of an array at one point inside its axis."""
    high = int(np.searchsorted(axis, at))
    if axis[min(high, len(axis) - 1)] == at:
        found: NDArray[np.float64] = values[high]
        return found
    share = (at - axis[high - 1]) / (axis[high] - axis[high - 1])
    mixed: NDArray[np.float64] = (1.0 - share) * values[high - 1] + share * values[high]
    return mixed
