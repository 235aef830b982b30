"""Documents as lines of JSON; imports nothing heavy, since every verb may need it."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["json_line"]


def json_line(document: Any) -> str:
    """Return a document as one line of JSON.

    Parameters
    ----------
    document : object
        Made of JSON's own types; finite numbers only.

    Returns
    -------
    str
        The line, with its line break.
    """
    line = json.dumps(document, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        line.encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, as JSON input may hold: only an escape can carry it.
        return json.dumps(document, allow_nan=False) + "\n"
    return line
