"""JSON that somebody wrote by hand: a key that stands twice is an error.

JSON leaves open what a repeated key means, and Python takes the last. Whoever wrote
``{"top_p": 0.9, "top_p": 1.0}`` meant one of the two, and nobody can tell which.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

__all__ = ["loads"]


def loads(text: str, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Read JSON as `json.loads` does, but refuse objects that repeat a key.

    Parameters
    ----------
    text : str
        The JSON.
    parse_constant : callable of str, optional
        Called for ``NaN`` and the infinities; None lets them pass.

    Returns
    -------
    object
        What it stands for.

    Raises
    ------
    ValueError
        If it is no JSON, or an object in it holds a key more than once.
    """
    return json.loads(text, parse_constant=parse_constant, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    held = dict(pairs)
    if len(held) < len(pairs):
        keys = [key for key, _ in pairs]
        doubled = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {doubled!r} stands {keys.count(doubled)} times; expected once")
    return held
