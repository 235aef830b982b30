"""Read trace files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from draftproof.bench.trace_record import (
    TRACE_FORMAT,
    Trace,
    TracedRequest,
    TracedRound,
    TraceHeader,
    TraceRun,
)
from draftproof.core.trace import RoundTrace
from draftproof.errors import ConfigError, InvariantError

__all__ = ["is_trace_file", "read_trace"]

_Held = TypeVar("_Held")


def read_trace(path: str | Path) -> Trace:
    """Read a trace file.

    Parameters
    ----------
    path : str or Path
        A file of ``--trace``.

    Returns
    -------
    Trace
        What it holds. A last line that broke off is left out, and said so.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no trace, is of another version, or is damaged
        anywhere but at its end.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    lines = data.split(b"\n")
    # What follows the last line break is nothing, or a line that broke off.
    is_torn = bool(lines[-1].strip())
    runs = tuple(_runs(lines[:-1], str(path)))
    if not runs:
        raise ConfigError(f"{path}: no run in it; expected a file of --trace")
    return Trace(runs, is_torn)


def is_trace_file(path: str | Path) -> bool:
    """Return whether a file begins as a trace does."""
    try:
        with Path(path).open("rb") as file:
            held = json.loads(file.readline())
    except (OSError, ValueError):
        return False
    return isinstance(held, dict) and held.get("kind") == "run"


def _runs(lines: list[bytes], source: str) -> Iterator[TraceRun]:
    reader = _Reader()
    header: TraceHeader | None = None
    rounds: list[TracedRound] = []
    requests: list[TracedRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{source}, line {number}"
        held = _object(line, where)
        kind = held.get("kind")
        if kind == "run":
            if header is not None:
                yield TraceRun(header, tuple(rounds), tuple(requests))
                rounds, requests = [], []
            header = reader.header(held, where)
        elif header is None:
            raise ConfigError(f"{where}: a trace begins with a run; expected a file of --trace")
        elif kind == "round":
            rounds.append(reader.round(held, where))
        elif kind == "request":
            requests.append(reader.request(held, where))
    if header is not None:
        yield TraceRun(header, tuple(rounds), tuple(requests))


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        held = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(held, dict):
        raise ConfigError(f"{where}: expected an object, not {type(held).__name__}")
    return held


class _Reader:
    """Checks lines; its validators are built once per file."""

    def __init__(self) -> None:
        self._header = TypeAdapter(TraceHeader)
        self._request = TypeAdapter(TracedRequest)
        self._round = TypeAdapter(RoundTrace)

    def header(self, held: dict[str, Any], where: str) -> TraceHeader:
        if held.get("format") != TRACE_FORMAT:
            raise ConfigError(
                f"{where}: trace format {held.get('format')!r}; expected {TRACE_FORMAT}"
            )
        return _valid(self._header, held, where)

    def request(self, held: dict[str, Any], where: str) -> TracedRequest:
        return _valid(self._request, held, where)

    def round(self, held: dict[str, Any], where: str) -> TracedRound:
        request, at_s = held.get("request"), held.get("at_s")
        if not isinstance(request, str) or not isinstance(at_s, int | float):
            raise ConfigError(f"{where}: a round without 'request' and 'at_s'")
        if held.get("token_p", 0.0) is None:
            held["token_p"] = math.nan
        return TracedRound(request, float(at_s), _valid(self._round, held, where))


def _valid(adapter: TypeAdapter[_Held], held: dict[str, Any], where: str) -> _Held:
    try:
        return adapter.validate_python(held)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"])) or "the line"
        raise ConfigError(f"{where}: damaged at {at}: {first['msg']}") from error
    except InvariantError as error:
        raise ConfigError(f"{where}: damaged: {error}") from error
