"""Which format a text has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from draftproof.errors import ConfigError
from draftproof.metrics.page import is_metrics
from draftproof.planner.counts import AcceptanceData
from draftproof.planner.readers.aiperf import from_aiperf, is_aiperf
from draftproof.planner.readers.logs import from_log
from draftproof.planner.readers.metrics import from_metrics
from draftproof.planner.readers.traces import from_traces, is_trace

__all__ = ["parse_acceptance", "read_acceptance"]

#: Seconds that a metrics page may take.
TIMEOUT_S = 10.0


def read_acceptance(where: str) -> AcceptanceData:
    """Read a file or a metrics page.

    Parameters
    ----------
    where : str
        A path, or an ``http(s)`` address; ``/metrics`` is added to one without a path.

    Returns
    -------
    AcceptanceData
        What it says.

    Raises
    ------
    ConfigError
        If it cannot be read or holds no acceptance in a known format.
    """
    if where.startswith(("http://", "https://")):
        return parse_acceptance(_fetch(where), where)
    path = Path(where).expanduser()
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from error
    return parse_acceptance(text, where)


def parse_acceptance(text: str, source: str) -> AcceptanceData:
    """Read a text in any of the known formats.

    Parameters
    ----------
    text : str
        Content of a file or page.
    source : str
        Its name, for people.

    Returns
    -------
    AcceptanceData
        What it says.

    Raises
    ------
    ConfigError
        If the format is unknown or no drafts are in it.
    """
    objects = _objects(text)
    if objects and is_aiperf(objects):
        return from_aiperf(objects, source)
    if objects and is_trace(objects):
        return from_traces(objects, source)
    if objects:
        raise ConfigError(
            f"{source}: JSON without rounds; expected our traces ('drafted', 'num_accepted') or "
            "records of aiperf"
        )
    if is_metrics(text):
        return from_metrics(text, source)
    return from_log(text, source)


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects of a text: one document, or one per line; none otherwise."""
    stripped = text.lstrip()
    if not stripped.startswith(("{", "[")):
        return []
    try:
        whole = json.loads(text)
        found = whole if isinstance(whole, list) else [whole]
        return [each for each in found if isinstance(each, dict)]
    except ValueError:
        pass
    objects = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            each = json.loads(line)
        except ValueError:
            if number == len(lines) > 1 and not text.endswith("\n"):
                break  # the writer was killed in the middle of it
            return []  # a log may hold a line that looks like JSON
        if isinstance(each, dict):
            objects.append(each)
    return objects


def _fetch(address: str) -> str:
    import httpx

    if urlsplit(address).path in ("", "/"):
        address = address.rstrip("/") + "/metrics"
    try:
        answer = httpx.get(address, timeout=TIMEOUT_S, follow_redirects=True)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise ConfigError(f"{address}: cannot be read: {error}") from error
    return answer.text
