"""A report as one page that needs no network, and as files beside it."""

from __future__ import annotations

import csv
import io
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from draftproof.errors import DraftproofError
from draftproof.report.content import Cell, Report, Table, shown
from draftproof.report.drawing import png, svg

__all__ = ["csv_text", "report_page", "write_csv", "write_png"]

#: Longest table on the page; its file holds all rows.
_MAX_ROWS = 60


def report_page(report: Report) -> str:
    """Write the page.

    Parameters
    ----------
    report : Report
        The report.

    Returns
    -------
    str
        HTML with everything inside: no script and no address. It follows the reader's
        light or dark setting.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    template = (files("draftproof.report") / "data" / "report.html.jinja").read_text("utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["drawn"] = lambda figure: Markup(svg(figure))
    environment.filters["shown"] = shown
    return environment.from_string(template).render(report=report, most=_MAX_ROWS)


def csv_text(table: Table) -> str:
    """Return a table as CSV.

    Parameters
    ----------
    table : Table
        The table.

    Returns
    -------
    str
        A heading and one line per row. Numbers are in full, in the unit of their heading;
        ``n/a`` stands for what is not defined.
    """
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow([column.name for column in table.columns])
    kinds = [column.kind for column in table.columns]
    for row in table.rows:
        writer.writerow([_exact(cell, kind) for cell, kind in zip(row, kinds, strict=True)])
    return held.getvalue()


def _exact(cell: Cell, kind: str) -> Cell:
    if shown(cell, "text") == "n/a":
        return "n/a"
    return cell * 1e3 if kind == "ms" and isinstance(cell, int | float) else cell


def write_csv(report: Report, folder: Path) -> list[Path]:
    """Write every table to a file of its own.

    Parameters
    ----------
    report : Report
        The report.
    folder : Path
        Where; made if needed.

    Returns
    -------
    list of Path
        The files.
    """
    texts = {f"{table.name}.csv": csv_text(table).encode() for table in report.tables}
    return _write(folder, texts)


def write_png(report: Report, folder: Path) -> list[Path]:
    """Write every figure to a file of its own.

    Parameters
    ----------
    report : Report
        The report.
    folder : Path
        Where; made if needed.

    Returns
    -------
    list of Path
        The files.
    """
    return _write(folder, {f"{figure.name}.png": png(figure) for figure in report.figures})


def _write(folder: Path, contents: dict[str, bytes]) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise DraftproofError(f"cannot write to {folder}: {error.strerror}") from error
    return [folder / name for name in contents]
