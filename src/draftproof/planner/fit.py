"""From measured passes to a cost model that says where it is bad."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import isotonic_regression, nnls

from draftproof.errors import ConfigError
from draftproof.planner.cost import AffineCost
from draftproof.planner.cost_table import TableCost

__all__ = ["Cell", "FitReport", "curve_of", "fit_affine", "fit_report", "table_of"]

#: Relative error from which a cell of the affine fit is called bad.
BAD_ERROR = 0.10


@dataclass(frozen=True, slots=True)
class Cell:
    """One measured shape of a pass.

    Parameters
    ----------
    batch, width, context : int
        Rows, tokens per row, cached tokens per row.
    seconds : tuple of float
        Measured times.
    """

    batch: int
    width: int
    context: int
    seconds: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The median time."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, relative to the median."""
        if len(self.seconds) < 2:
            return 0.0
        low, _middle, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return (high - low) / 2 / self.median_s


@dataclass(frozen=True, slots=True)
class FitReport:
    """How well the affine law describes the cells.

    Parameters
    ----------
    median_error, p90_error : float
        Of the absolute relative errors.
    bad : tuple of (Cell, float)
        Cells that are off by more than a tenth, and their signed relative error
        (positive: the law is too dear), worst first.
    dips : tuple of (Cell, Cell)
        Neighbours where more tokens per row took less time, beyond their spread.
    """

    median_error: float
    p90_error: float
    bad: tuple[tuple[Cell, float], ...]
    dips: tuple[tuple[Cell, Cell], ...]


def fit_affine(cells: Sequence[Cell]) -> AffineCost:
    """Fit ``c0 + c1 n + c2 kv + c3 B`` with no negative constant.

    Parameters
    ----------
    cells : sequence of Cell
        At least two.

    Returns
    -------
    AffineCost
        Least squares of the relative errors of the medians.

    Raises
    ------
    ConfigError
        If there are too few cells.
    """
    if len(cells) < 2:
        raise ConfigError(f"{len(cells)} measured shapes; expected at least 2 for a fit")
    rows = np.asarray(
        [[1.0, c.batch * c.width, c.batch * c.context, c.batch] for c in cells], dtype=np.float64
    )
    seconds = np.asarray([cell.median_s for cell in cells])
    scale = rows.max(axis=0)
    found, _residual = nnls(rows / scale / seconds[:, None], np.ones(len(cells)))
    base, per_token, per_kv, per_row = (float(value) for value in found / scale)
    return AffineCost(base, per_token, per_kv, per_row)


def fit_report(cells: Sequence[Cell], law: AffineCost) -> FitReport:
    """Compare a law with the cells.

    Parameters
    ----------
    cells : sequence of Cell
        Measured shapes.
    law : AffineCost
        The law.

    Returns
    -------
    FitReport
        Errors, bad cells and dips.
    """
    errors = []
    for cell in cells:
        tokens = np.asarray([float(cell.batch * cell.width)])
        predicted = float(law.many(cell.batch, tokens, cell.batch * cell.context)[0])
        errors.append(predicted / cell.median_s - 1.0)
    bad = [(c, error) for c, error in zip(cells, errors, strict=True) if abs(error) > BAD_ERROR]
    bad.sort(key=lambda pair: -abs(pair[1]))
    magnitude = np.abs(errors)
    return FitReport(
        float(np.median(magnitude)),
        float(np.quantile(magnitude, 0.9)),
        tuple(bad),
        _dips(cells),
    )


def _dips(cells: Sequence[Cell]) -> tuple[tuple[Cell, Cell], ...]:
    ordered = sorted(cells, key=lambda cell: (cell.batch, cell.context, cell.width))
    pairs = []
    for left, right in pairwise(ordered):
        same = (left.batch, left.context) == (right.batch, right.context)
        fall = 1.0 - right.median_s / left.median_s
        if same and fall > max(left.spread, right.spread, 0.02):
            pairs.append((left, right))
    return tuple(pairs)


def table_of(cells: Sequence[Cell], law: AffineCost) -> TableCost:
    """Arrange the cells in a table; a shape that was not measured gets the law's time.

    Parameters
    ----------
    cells : sequence of Cell
        Measured shapes.
    law : AffineCost
        The law for gaps and for shapes outside the grid.

    Returns
    -------
    TableCost
        The table. It rises with rows and with tokens: `fit_report` tells where the measured
        times did not.
    """
    batches = tuple(sorted({cell.batch for cell in cells}))
    widths = tuple(sorted({cell.width for cell in cells}))
    contexts = tuple(sorted({cell.context for cell in cells}))
    held = {(cell.batch, cell.width, cell.context): cell.median_s for cell in cells}
    seconds = np.empty((len(batches), len(widths), len(contexts)))
    for i, batch in enumerate(batches):
        for j, width in enumerate(widths):
            for k, context in enumerate(contexts):
                found = held.get((batch, width, context))
                if found is None:
                    tokens = np.asarray([float(batch * width)])
                    found = float(law.many(batch, tokens, batch * context)[0])
                seconds[i, j, k] = found
    # Noise made some larger passes faster: neighbours that do not rise get their mean.
    for axis in (1, 0):
        seconds = np.apply_along_axis(lambda line: isotonic_regression(line).x, axis, seconds)
    return TableCost(batches, widths, contexts, seconds, law, curve_of(cells))


def curve_of(cells: Sequence[Cell]) -> tuple[tuple[int, float], ...]:
    """Return how the time of a pass rises with its tokens alone.

    Parameters
    ----------
    cells : sequence of Cell
        Measured shapes; one row, and one token per row, at the shortest context count.

    Returns
    -------
    tuple of (int, float)
        Tokens and seconds, both strictly rising. Where a larger pass was faster, which is
        noise, the time before it is kept with a thousandth more.
    """
    shortest = min(cell.context for cell in cells)
    times: dict[int, list[float]] = {}
    for cell in cells:
        if cell.context == shortest and 1 in (cell.batch, cell.width):
            times.setdefault(cell.batch * cell.width, []).append(cell.median_s)
    found: list[tuple[int, float]] = []
    for tokens, seconds in sorted(times.items()):
        least = found[-1][1] * 1.001 if found else 0.0
        found.append((tokens, max(sum(seconds) / len(seconds), least)))
    return tuple(found)
