"""The text format of Prometheus, as far as counters and gauges need it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

__all__ = ["Samples", "is_metrics", "parse_metrics"]

_LINE: Final = re.compile(
    r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+.\deEInfNa]+)(?:\s+\d+)?$"
)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

#: Labels and value of each sample, by metric name.
Samples = Mapping[str, list[tuple[dict[str, str], float]]]


def is_metrics(text: str) -> bool:
    """Say whether a text looks like a metrics page.

    Parameters
    ----------
    text : str
        The text.

    Returns
    -------
    bool
        Whether it does.
    """
    lines = [line for line in text.splitlines() if line.strip()][:50]
    return any(line.startswith("# TYPE") for line in lines) or bool(
        lines and all(line.startswith("#") or _LINE.match(line.strip()) for line in lines)
    )


def parse_metrics(text: str) -> Samples:
    """Parse a metrics page.

    Parameters
    ----------
    text : str
        The page.

    Returns
    -------
    mapping of str to list
        Labels and value of each sample, by metric name. Lines that are none are left out.
    """
    samples: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for line in text.splitlines():
        found = _LINE.match(line.strip())
        if line.startswith("#") or found is None:
            continue
        try:
            value = float(found["value"])
        except ValueError:
            continue
        samples[found["name"]].append((dict(_LABEL.findall(found["labels"] or "")), value))
    return dict(samples)
