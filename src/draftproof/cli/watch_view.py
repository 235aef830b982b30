"""What ``draftproof watch`` shows of a reading: a panel, and a document."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftproof.core.stats import format_rate

if TYPE_CHECKING:
    from rich.console import Group

    from draftproof.metrics import Sight, Window

__all__ = ["panel", "sight_document", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 32


def sparkline(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """Return values as a line of blocks; a gap where nothing is known.

    Parameters
    ----------
    values : sequence of float
        Oldest first; the last of them are shown.
    low, high : float, optional
        What the lowest and the highest block stand for; the extremes of the values if
        not given.

    Returns
    -------
    str
        One character per value.
    """
    shown = values[-_WIDTH:]
    known = [value for value in shown if not math.isnan(value)]
    if not known:
        return " " * len(shown)
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    span = top - bottom

    def block(value: float) -> str:
        if math.isnan(value):
            return " "
        share = (value - bottom) / span if span > 0 else 0.5
        return _BLOCKS[min(len(_BLOCKS) - 1, max(0, int(share * len(_BLOCKS))))]

    return "".join(map(block, shown))


def panel(sight: Sight, since_start: Window, url: str) -> Group:
    """Return what to draw.

    Parameters
    ----------
    sight : Sight
        The last reading.
    since_start : Window
        Everything since the engine started.
    url : str
        Its address.

    Returns
    -------
    Group
        For rich.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    window, gauges = sight.window, sight.window.gauges
    table = Table("", "now", "since its start", "history", box=None, pad_edge=False)
    table.add_row(
        "acceptance rate",
        format_rate(window.acceptance_rate),
        format_rate(since_start.acceptance_rate),
        sparkline(sight.acceptance_rates, 0.0, 1.0),
    )
    table.add_row(
        "acceptance length",
        format_rate(window.acceptance_length, 2),
        format_rate(since_start.acceptance_length, 2),
        sparkline(sight.acceptance_lengths),
    )
    pace = format_rate(window.tokens_per_s, 1)
    table.add_row("tokens/s", pace, "", sparkline(sight.paces, 0.0))
    table.add_row("running", _shown(gauges.num_running), "", sparkline(sight.batches, 0.0))
    table.add_row("waiting", _shown(gauges.num_waiting), "", "")
    usage = "n/a" if gauges.kv_usage is None else f"{gauges.kv_usage:.0%}"
    table.add_row("KV cache", usage, "", "")
    parts: list[Any] = [Text(f"{window.engine} at {url}", style="bold"), table]
    rates = window.rate_per_pos or since_start.rate_per_pos
    if rates:
        when = "now" if window.rate_per_pos else "since its start"
        line = "  ".join(f"{place}: {format_rate(rate, 2)}" for place, rate in enumerate(rates, 1))
        crude = "; short drafts count as rejected" if window.counts_short_as_rejected else ""
        parts.append(Text(f"accepted by position ({when}{crude}): {line}"))
    if window.stats is not None and not window.stats.num_drafts:
        parts.append(Text("nothing was drafted since the reading before", style="dim"))
    if not gauges.speculates:
        parts.append(Text("this engine tells nothing about speculation", style="dim"))
    elif window.stats is None:
        parts.append(Text("gauges of the engine's own last interval", style="dim"))
    parts += [Text(f"warning: {warning}", style="bold red") for warning in sight.warnings]
    return Group(*parts)


def sight_document(sight: Sight, since_start: Window, url: str) -> dict[str, Any]:
    """Return a reading as JSON's own types; what is not known is None.

    Parameters
    ----------
    sight : Sight
        The reading.
    since_start : Window
        Everything since the engine started.
    url : str
        The engine's address.

    Returns
    -------
    dict
        The document.
    """
    gauges = sight.window.gauges
    return {
        "url": url,
        "engine": sight.window.engine,
        "seconds": _or_none(sight.window.seconds),
        "has_restarted": sight.window.has_restarted,
        "num_restarts": sight.num_restarts,
        "num_running": gauges.num_running,
        "num_waiting": gauges.num_waiting,
        "kv_usage": gauges.kv_usage,
        "tokens_per_s": _or_none(sight.window.tokens_per_s),
        "speculation": _speculation(sight.window),
        "since_start": _speculation(since_start),
        "warnings": list(sight.warnings),
    }


def _speculation(window: Window) -> dict[str, Any]:
    stats = window.stats
    return {
        "acceptance_rate": _or_none(window.acceptance_rate),
        "mean_acceptance_length": _or_none(window.acceptance_length),
        "acceptance_rate_per_pos": [_or_none(rate) for rate in window.rate_per_pos],
        "counts_short_drafts_as_rejected": window.counts_short_as_rejected,
        "num_drafts": None if stats is None else stats.num_drafts,
        "num_draft_tokens": None if stats is None else stats.num_draft_tokens,
        "num_accepted_tokens": None if stats is None else stats.num_accepted_tokens,
        "num_generated_tokens": window.num_generated,
    }


def _shown(value: int | None) -> str:
    return "n/a" if value is None else str(value)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
