"""One line of JSON per request. No text of prompts or outputs unless it was asked for."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

__all__ = ["RequestLog", "where_raised"]


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  stderr is where the log goes


class RequestLog:
    """Writes events.

    Parameters
    ----------
    write : callable
        Takes one line without its end.
    """

    def __init__(self, write: Callable[[str], None] = _to_stderr) -> None:
        self._write = write
        self._lock = threading.Lock()

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Write one event.

        Parameters
        ----------
        name : str
            What happened.
        fields : mapping
            More about it.
        """
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": stamp, "event": name, **fields}, default=str)
        with self._lock:
            self._write(line)


def where_raised(error: BaseException) -> str:
    """Return the kind of an exception and the line that raised it, never its message.

    Parameters
    ----------
    error : BaseException
        An exception; its message may quote a prompt.

    Returns
    -------
    str
        For example ``"KeyError at shapes.py:41"``.
    """
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    cause = "" if error.__cause__ is None else f", caused by {where_raised(error.__cause__)}"
    return f"{type(error).__name__}{place}{cause}"
