"""Draw figures: as SVG that follows the page's colours, and as PNG."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from draftproof.errors import ConfigError
from draftproof.report.content import Figure, Series

__all__ = ["png", "svg"]

#: Colours of series, told apart by people with any colour vision (Okabe and Ito).
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
#: Drawn with these and replaced in the SVG, so that the page chooses them.
_INK, _LINE = "#010203", "#040506"
_SIZE = (7.2, 3.4)
_DPI = 160


def svg(figure: Figure) -> str:
    """Draw a figure for a page.

    Parameters
    ----------
    figure : Figure
        The figure.

    Returns
    -------
    str
        An ``svg`` element. Its colours are variables of the page, its texts are texts.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    text = _saved(figure, "svg", _INK, _LINE).decode()
    text = text[text.index("<svg") :]
    for place, colour in enumerate(_COLOURS):
        text = text.replace(colour, f"var(--c{place})")
    text = text.replace(_INK, "var(--ink)").replace(_LINE, "var(--line)")
    # Ids are unique within one figure; a page holds several.
    prefix = figure.name
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-").replace('href="#', f'href="#{prefix}-')
    label = figure.says.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def png(figure: Figure) -> bytes:
    """Draw a figure as a picture on white.

    Parameters
    ----------
    figure : Figure
        The figure.

    Returns
    -------
    bytes
        A PNG file.

    Raises
    ------
    ConfigError
        If matplotlib is not installed.
    """
    return _saved(figure, "png", "#1b1f24", "#d5d9de")


def _saved(figure: Figure, kind: str, ink: str, line: str) -> bytes:
    matplotlib = _library("matplotlib")
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": figure.name,
        "font.family": "sans-serif",
        "font.size": 10,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": line,
        "xtick.color": ink,
        "ytick.color": ink,
        "grid.color": line,
    }
    with matplotlib.rc_context(settings):
        canvas = _library("matplotlib.figure").Figure(figsize=_SIZE, layout="constrained")
        axes = canvas.add_subplot()
        _draw(axes, figure, ink, line)
        held = io.BytesIO()
        shown: Mapping[str, Any] = (
            {"transparent": True, "metadata": {"Date": None, "Creator": None}}
            if kind == "svg"
            else {"dpi": _DPI}
        )
        canvas.savefig(held, format=kind, **shown)
    return held.getvalue()


def _library(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            "figures need matplotlib; hint: pip install 'draftproof[report]'"
        ) from error


def _draw(axes: Any, figure: Figure, ink: str, line: str) -> None:
    areas = [series for series in figure.series if series.style == "area"]
    if areas:
        axes.stackplot(
            areas[0].x,
            *[series.y for series in areas],
            labels=[series.name for series in areas],
            colors=_COLOURS[: len(areas)],
            linewidth=0,
        )
    for place, series in enumerate(figure.series):
        if series.style != "area":
            _draw_series(axes, series, _COLOURS[place % len(_COLOURS)])
    if figure.level is not None:
        axes.axhline(figure.level, color=ink, linewidth=0.8, linestyle=":")
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    if figure.is_log_x:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(_library("matplotlib.ticker").FormatStrFormatter("%g"))
    elif _are_whole(figure.series):
        axes.xaxis.set_major_locator(_library("matplotlib.ticker").MaxNLocator(integer=True))
    if figure.y_limits is not None:
        axes.set_ylim(*figure.y_limits)
    axes.grid(visible=True, axis="y", color=line, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if any(series.name for series in figure.series):
        axes.figure.legend(loc="outside upper left", ncols=4, frameon=False)


def _draw_series(axes: Any, series: Series, colour: str) -> None:
    label = series.name or None
    if series.style == "mark":
        for place, at in enumerate(series.x):
            name = label if not place else None
            axes.axvline(at, color=colour, linewidth=1, linestyle="--", label=name)
        return
    if series.style == "bars":
        axes.bar(series.x, series.y, width=0.7, color=colour, label=label)
        return
    known = [place for place, y in enumerate(series.y) if y is not None]
    x = [series.x[place] for place in known]
    y = [series.y[place] for place in known]
    line = {"line": "-", "dashed": "--"}.get(series.style, "none")
    marker = "o" if series.style != "dashed" else None
    small = 4 if series.style == "line" else 6
    axes.plot(x, y, color=colour, linestyle=line, marker=marker, markersize=small, label=label)
    spans = _spans(series, known)
    if spans:
        at, lows, highs = zip(*spans, strict=True)
        axes.vlines(at, lows, highs, color=colour, linewidth=1.2)


def _spans(series: Series, known: Sequence[int]) -> list[tuple[Any, float, float]]:
    """Return where each interval stands, and its ends."""
    if series.low is None or series.high is None:
        return []
    found = []
    for place in known:
        low, high = series.low[place], series.high[place]
        if low is not None and high is not None:
            found.append((series.x[place], low, high))
    return found


def _are_whole(series: Sequence[Series]) -> bool:
    held = [x for each in series if each.style != "mark" for x in each.x]
    return all(isinstance(x, float) and x == int(x) for x in held)
