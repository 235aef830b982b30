"""Counted rounds: what a survival curve is estimated from.

Counters are kept, rates are derived. A drafter that proposed nothing adds nothing to
any denominator.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from draftproof.errors import ConfigError

__all__ = ["AcceptanceCounts", "AcceptanceData", "PooledRates"]


@dataclass(frozen=True, slots=True)
class AcceptanceCounts:
    """Rounds by position.

    Parameters
    ----------
    drafted : tuple of int
        Rounds whose draft was long enough to hold position i.
    reached : tuple of int
        Of those, rounds whose earlier drafts all survived.
    accepted : tuple of int
        Of those, rounds whose draft at position i survived too.
    """

    drafted: tuple[int, ...] = ()
    reached: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse counters that contradict each other."""
        if not len(self.drafted) == len(self.reached) == len(self.accepted):
            raise ConfigError("acceptance counters of different lengths; expected one per position")
        trio = zip(self.drafted, self.reached, self.accepted, strict=True)
        for place, (drafted, reached, accepted) in enumerate(trio, start=1):
            if not 0 <= accepted <= reached <= drafted:
                raise ConfigError(
                    f"position {place}: {accepted} accepted of {reached} reached of {drafted} "
                    "drafted; expected them in falling order"
                )

    @classmethod
    def from_rounds(cls, rounds: Iterable[tuple[int, int]]) -> AcceptanceCounts:
        """Count rounds.

        Parameters
        ----------
        rounds : iterable of (int, int)
            Drafted and accepted tokens of each round.

        Returns
        -------
        AcceptanceCounts
            The counters.

        Raises
        ------
        ConfigError
            If a round accepted more than it drafted.
        """
        drafted: list[int] = []
        reached: list[int] = []
        accepted: list[int] = []
        for length, kept in rounds:
            if not 0 <= kept <= length:
                raise ConfigError(f"a round accepted {kept} of {length} drafts")
            for counter in (drafted, reached, accepted):
                counter.extend([0] * (length - len(counter)))
            for place in range(length):
                drafted[place] += 1
                reached[place] += place <= kept
                accepted[place] += place < kept
        return cls(tuple(drafted), tuple(reached), tuple(accepted))

    @classmethod
    def from_fixed_kappa(cls, num_drafts: int, accepted: Sequence[int]) -> AcceptanceCounts:
        """Return the counters of drafts that all had the same length.

        Parameters
        ----------
        num_drafts : int
            Drafts.
        accepted : sequence of int
            Drafts that survived at each position.

        Returns
        -------
        AcceptanceCounts
            The counters.
        """
        reached = (num_drafts, *accepted[:-1]) if accepted else ()
        return cls((num_drafts,) * len(accepted), tuple(reached), tuple(accepted))

    def __len__(self) -> int:
        """Return the longest logged draft."""
        return len(self.drafted)

    def merge(self, other: AcceptanceCounts) -> AcceptanceCounts:
        """Return the pooled counters of both."""
        longest = max(len(self), len(other))

        def added(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
            pad = [tuple(side) + (0,) * (longest - len(side)) for side in (left, right)]
            return tuple(a + b for a, b in zip(*pad, strict=True))

        return AcceptanceCounts(
            added(self.drafted, other.drafted),
            added(self.reached, other.reached),
            added(self.accepted, other.accepted),
        )


@dataclass(frozen=True, slots=True)
class PooledRates:
    """Totals without positions, as some engines report them.

    Parameters
    ----------
    accepted_per_draft : float
        Mean accepted drafts per round, the added token left out.
    kappa : int
        Drafts per round.
    num_drafts : int
        Rounds behind the mean; 0 when the source does not say.
    """

    accepted_per_draft: float
    kappa: int
    num_drafts: int = 0


@dataclass(frozen=True, slots=True)
class AcceptanceData:
    """What a source says about acceptance.

    Parameters
    ----------
    source : str
        File or address, and its format.
    counts : AcceptanceCounts, optional
        Counters by position.
    pooled : PooledRates, optional
        Totals, where there are no positions.
    per_request : mapping of str to AcceptanceCounts
        Counters of single requests, where the source tells them apart.
    notes : tuple of str
        What a reader should know about these figures.
    """

    source: str
    counts: AcceptanceCounts | None = None
    pooled: PooledRates | None = None
    per_request: Mapping[str, AcceptanceCounts] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
