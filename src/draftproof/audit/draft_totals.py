"""What a decoder tells of its drafts where it does not tell its rounds one by one."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.errors import ConfigError

__all__ = ["DraftTotals"]


@dataclass(frozen=True, slots=True)
class DraftTotals:
    """Sums over all draws of a prompt.

    Parameters
    ----------
    accepted : int
        Drafts that were kept.
    drafted : int, optional
        Drafts that were made; None where the decoder does not tell.
    rounds : int, optional
        Rounds in which something was drafted; None where the decoder does not tell.
    draws : int, optional
        Draws in which something is known to have been drafted; None where the other sums
        are all that is known.
    """

    accepted: int
    drafted: int | None = None
    rounds: int | None = None
    draws: int | None = None

    def __post_init__(self) -> None:
        """Refuse sums that cannot be."""
        for name in ("accepted", "drafted", "rounds", "draws"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 0):
                raise ConfigError(f"{name} {value!r}: expected a whole number of 0 or more")
        if self.drafted is not None and self.accepted > self.drafted:
            raise ConfigError(f"{self.accepted} drafts kept of {self.drafted}: expected no more")

    @property
    def shows_speculation(self) -> bool:
        """Whether drafts are known to have been made: counted, or seen to be kept."""
        return bool(self.accepted if self.drafted is None else self.drafted)

    def __add__(self, other: DraftTotals) -> DraftTotals:
        """Return both; a sum of which one part is unknown is unknown."""
        return DraftTotals(
            self.accepted + other.accepted,
            _sum(self.drafted, other.drafted),
            _sum(self.rounds, other.rounds),
            _sum(self.draws, other.draws),
        )


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
