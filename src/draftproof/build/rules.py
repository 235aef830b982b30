"""From configuration keys to a verification rule, exact or by opt-in not."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from draftproof.errors import ConfigError
from draftproof.verify import (
    LOSSY_RULES,
    RULES,
    AcceptThreshold,
    AllowLossy,
    Lenience,
    SyntheticAcceptance,
    TypicalAcceptance,
)

__all__ = ["RULE_NAMES", "RULE_OWNERS", "rule_from"]

#: Every name that ``rejection_sample_method`` may have.
RULE_NAMES = (*RULES, *LOSSY_RULES)
#: Which rule a key acts on, for every key that does not act on all of them.
RULE_OWNERS: Mapping[str, str] = MappingProxyType(
    {
        "lenience": "lenience",
        "threshold_acc": "threshold",
        "threshold_single": "threshold",
        "typical_epsilon": "typical",
        "typical_alpha": "typical",
        "synthetic_acceptance_rates": "synthetic",
    }
)


def rule_from(
    name: str | None, knobs: Mapping[str, Any], *, allow_lossy: bool
) -> str | AllowLossy | None:
    """Return the rule of a configuration.

    Parameters
    ----------
    name : str, optional
        One of ``RULE_NAMES``; None leaves the choice to the engine.
    knobs : mapping of str to value
        Keys of ``RULE_OWNERS`` that were given.
    allow_lossy : bool
        The user's word that a rule may change the law.

    Returns
    -------
    str, AllowLossy or None
        As a request carries it.

    Raises
    ------
    ConfigError
        If the name is unknown, a knob belongs to another rule or is missing, a value is
        out of range, or a lossy rule was named without ``allow_lossy``.
    """
    if name is not None and name not in RULE_NAMES:
        raise ConfigError(f"rule {name!r} is unknown; expected one of {', '.join(RULE_NAMES)}")
    for key in knobs:
        if RULE_OWNERS[key] != name:
            raise ConfigError(
                f"{key} has no effect with rejection_sample_method {name!r}; "
                f"use {RULE_OWNERS[key]!r}"
            )
    if name not in LOSSY_RULES:
        if allow_lossy:
            raise ConfigError(
                f"allow_lossy has no effect with rejection_sample_method {name!r}, which is "
                f"exact; use {' or '.join(map(repr, LOSSY_RULES))}"
            )
        return name
    if not allow_lossy:
        raise ConfigError(
            f"rejection_sample_method {name!r} changes the law of the text; expected "
            "allow_lossy: true beside it"
        )
    return AllowLossy(_lossy(name, knobs))


def _lossy(
    name: str, knobs: Mapping[str, Any]
) -> Lenience | AcceptThreshold | TypicalAcceptance | SyntheticAcceptance:
    if name == "lenience":
        return Lenience(_needed(name, knobs, "lenience"))
    if name == "threshold":
        return AcceptThreshold(knobs.get("threshold_acc", 1.0), knobs.get("threshold_single", 1.0))
    if name == "typical":
        return TypicalAcceptance(
            knobs.get("typical_epsilon", TypicalAcceptance().epsilon),
            knobs.get("typical_alpha", TypicalAcceptance().alpha),
        )
    return SyntheticAcceptance(tuple(_needed(name, knobs, "synthetic_acceptance_rates")))


def _needed(name: str, knobs: Mapping[str, Any], key: str) -> Any:
    if key not in knobs:
        raise ConfigError(f"rejection_sample_method {name!r} needs {key}")
    return knobs[key]
