"""The explicit opt-in that rules which are not exact need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from draftproof.errors import ConfigError
from draftproof.verify.lossy import AcceptThreshold, Lenience, TypicalAcceptance
from draftproof.verify.synthetic import SyntheticAcceptance

__all__ = ["LOSSY_RULES", "AllowLossy", "refuse_lossy"]

#: Names of the rules that are not exact, as configurations write them.
LOSSY_RULES = ("lenience", "threshold", "typical", "synthetic")
_NAMES: Mapping[type[object], str] = MappingProxyType(
    dict(
        zip(
            (Lenience, AcceptThreshold, TypicalAcceptance, SyntheticAcceptance),
            LOSSY_RULES,
            strict=True,
        )
    )
)


@dataclass(frozen=True, slots=True)
class AllowLossy:
    """A rule that changes the law, and the caller's word that this is wanted.

    Parameters
    ----------
    rule : Lenience, AcceptThreshold, TypicalAcceptance or SyntheticAcceptance
        The rule.
    """

    rule: Lenience | AcceptThreshold | TypicalAcceptance | SyntheticAcceptance

    @property
    def name(self) -> str:
        """Short name of the rule, as configurations write it."""
        return _NAMES[type(self.rule)]

    def label(self, vocab_size: int) -> str:
        """Return how every output of the run must be labelled.

        Parameters
        ----------
        vocab_size : int
            Number of token ids of the target.

        Returns
        -------
        str
            ``lossy(knob=value, per-token TV <= bound)`` or ``synthetic(...)``.
        """
        return self.rule.label(vocab_size)


def refuse_lossy(rule: str | AllowLossy, vocab_size: int) -> str:
    """Return the name of an exact rule; strict modes call this on what they are given.

    Parameters
    ----------
    rule : str or AllowLossy
        The rule that was asked for.
    vocab_size : int
        Number of token ids of the target.

    Returns
    -------
    str
        The same rule.

    Raises
    ------
    ConfigError
        If the rule is not exact.
    """
    if isinstance(rule, AllowLossy):
        msg = f"rule {rule.label(vocab_size)}: expected an exact rule, strict mode allows no other"
        raise ConfigError(msg)
    return rule
