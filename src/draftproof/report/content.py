"""What a report holds, before it becomes a page: values only."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from draftproof.errors import InvariantError

__all__ = ["Cell", "Column", "Figure", "Report", "Section", "Series", "Table", "shown"]

#: What a cell of a table may hold; None where a number is not defined.
Cell = str | int | float | None

#: How a number is written: a whole number, a rate or ratio, any other number, seconds in
#: milliseconds, seconds, a text.
Kind = Literal["int", "rate", "number", "ms", "s", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Parameters
    ----------
    name : str
        Heading; also in CSV files.
    kind : {"int", "rate", "number", "ms", "s", "text"}
        How its cells are written. Cells of the kind ``"ms"`` hold seconds.
    """

    name: str
    kind: Kind = "rate"


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Parameters
    ----------
    name : str
        Name of its file, without an ending.
    title : str
        Heading.
    columns : tuple of Column
        The columns.
    rows : tuple of tuple
        The cells, row by row.
    note : str
        What a reader must know of it.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse rows of another length."""
        for row in self.rows:
            if len(row) != len(self.columns):
                raise InvariantError(f"{len(row)} cells under {len(self.columns)} columns: {row}")


@dataclass(frozen=True, slots=True)
class Series:
    """One set of points of a figure.

    Parameters
    ----------
    name : str
        Of the legend; empty for none.
    x : tuple of float or str
        Where.
    y : tuple of float or None
        How much; None leaves a gap.
    low, high : tuple of float or None, optional
        Ends of an interval around each point.
    style : {"line", "points", "dashed", "bars", "area", "mark"}
        How it is drawn. Areas of one figure are stacked. A mark is a vertical line.
    """

    name: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float | None, ...] = ()
    low: tuple[float | None, ...] | None = None
    high: tuple[float | None, ...] | None = None
    style: Literal["line", "points", "dashed", "bars", "area", "mark"] = "line"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure.

    Parameters
    ----------
    name : str
        Name of its file, without an ending; unique in a report.
    title, says : str
        Heading, and what it shows, for readers who do not see it too.
    x_label, y_label : str
        Axes, with units.
    series : tuple of Series
        What is drawn.
    is_log_x : bool
        Whether x is logarithmic, in powers of two.
    level : float, optional
        A horizontal line, such as no gain at 1.
    y_limits : tuple of float, optional
        Ends of the y axis.
    """

    name: str
    title: str
    says: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    is_log_x: bool = False
    level: float | None = None
    y_limits: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a report.

    Parameters
    ----------
    title : str
        Heading.
    notes : tuple of str
        Paragraphs.
    figures : tuple of Figure
        Drawn first.
    tables : tuple of Table
        Then these.
    """

    title: str
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Parameters
    ----------
    title : str
        Heading.
    answer : tuple of str
        What it comes to, in a few sentences.
    is_good : bool or None
        Whether speculation pays; None where the report does not say.
    warnings : tuple of str
        What the figures do not show by themselves.
    sections : tuple of Section
        The parts.
    """

    title: str
    answer: tuple[str, ...]
    is_good: bool | None = None
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = field(default=())

    @property
    def tables(self) -> tuple[Table, ...]:
        """All tables, in order."""
        return tuple(table for section in self.sections for table in section.tables)

    @property
    def figures(self) -> tuple[Figure, ...]:
        """All figures, in order."""
        return tuple(figure for section in self.sections for figure in section.figures)


def shown(value: Cell, kind: Kind) -> str:
    """Return a cell as people read it.

    Parameters
    ----------
    value : str, int, float or None
        The cell.
    kind : {"int", "rate", "number", "ms", "s", "text"}
        Of its column.

    Returns
    -------
    str
        ``"n/a"`` for what is not defined.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "n/a"
    if isinstance(value, str):
        return value
    if kind == "int":
        return f"{value:,.0f}".replace(",", " ")
    if kind == "ms":
        return f"{value * 1e3:.2f}"
    if kind == "s":
        return f"{value:.2f}"
    if kind == "number":
        return f"{value:.4g}"
    return f"{value:.3f}"
