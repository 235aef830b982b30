"""The shipped figures: well-known models, accelerators and CPUs, published step costs.

Each entry names the source of its figures. They are data sheets and configuration
files, not measurements.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from draftproof.errors import ConfigError

__all__ = ["hardware_entry", "hardware_names", "model_config", "model_names", "published_costs"]


@cache
def _read(name: str) -> Mapping[str, Any]:
    text = (files("draftproof.planner") / "data" / name).read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


def model_names() -> tuple[str, ...]:
    """Return the names of the models, sorted."""
    return tuple(sorted(_read("models.json")))


def hardware_names() -> tuple[str, ...]:
    """Return the names of the accelerators and CPUs, sorted."""
    return tuple(sorted(_read("hardware.json")))


def model_config(name: str) -> Mapping[str, Any]:
    """Return the configuration of a well-known model.

    Parameters
    ----------
    name : str
        One of `model_names`.

    Returns
    -------
    mapping
        Keys as in its ``config.json``, and ``source``.

    Raises
    ------
    ConfigError
        If the name is unknown; the nearest one is named.
    """
    return _entry("models.json", "model", name)


def hardware_entry(name: str) -> Mapping[str, Any]:
    """Return the figures of an accelerator or a CPU.

    Parameters
    ----------
    name : str
        One of `hardware_names`.

    Returns
    -------
    mapping
        Bandwidth, rates, memory and ``source``.

    Raises
    ------
    ConfigError
        If the name is unknown; the nearest one is named.
    """
    return _entry("hardware.json", "hardware", name)


def published_costs(name: str) -> Mapping[str, Any]:
    """Return published step costs by name.

    Parameters
    ----------
    name : str
        A key of the shipped list.

    Returns
    -------
    mapping
        Constants in seconds, and ``source``.

    Raises
    ------
    ConfigError
        If the name is unknown.
    """
    return _entry("step_costs.json", "published step costs", name)


def _entry(file: str, what: str, name: str) -> Mapping[str, Any]:
    known = _read(file)
    found = known.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}"
        raise ConfigError(f"no {what} named {name!r}: {hint}")
    return MappingProxyType(found)
