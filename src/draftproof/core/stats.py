"""Counters of speculative decoding, and the rates that follow from them.

Counters are stored, rates are derived, and a rate without a denominator is NaN,
shown as "n/a", never 0 or 1. Rates are pooled: numerators and denominators are
added up first, so a long request weighs more than a short one.

Two lengths are easily confused and kept apart. The *mean acceptance length* is
``1 + accepted / drafts``: what the verifier kept plus the token it adds, whether or
not a stop cut the round. *Committed tokens per round* counts what reached the text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from draftproof.core.types import StepRecord, TokenSource

__all__ = ["SpecDecodeStats", "format_rate", "leading_accepts"]

_SOURCES: tuple[TokenSource, ...] = ("accepted", "recovered", "bonus", "sampled")


def _no_sources() -> dict[TokenSource, int]:
    return dict.fromkeys(_SOURCES, 0)


@dataclass(slots=True)
class SpecDecodeStats:
    """Counters over any number of rounds; one owner folds records into them.

    Parameters
    ----------
    num_rounds : int
        Rounds of any kind, plain ones included.
    num_drafts : int
        Rounds that verified at least one drafted token.
    num_draft_tokens : int
        Drafted tokens; all nodes where drafts branch.
    num_accepted_tokens : int
        Drafted tokens that the verifier kept: leading runs, not matches.
    num_emitted_tokens : int
        Tokens committed to the text, after stops cut them.
    num_accepted_tokens_per_pos : list of int
        Kept tokens by offset in the draft.
    num_drafted_per_pos : list of int
        Drafts that were long enough, or deep enough, to hold a token at each offset.
    num_reached_per_pos : list of int
        Of those, the ones whose earlier tokens were all kept.
    num_emitted_per_source : dict of str to int
        Committed tokens by their source.
    num_draft_tokens_per_drafter : dict of str to int
        Drafted tokens by who made them: the part of a mixed drafter, ``"grammar"`` for
        text that a grammar makes certain.
    num_accepted_tokens_per_drafter : dict of str to int
        Of those, the ones that the verifier kept. A token that stands behind one that
        was turned down counts against its own drafter.
    """

    num_rounds: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    num_drafted_per_pos: list[int] = field(default_factory=list)
    num_reached_per_pos: list[int] = field(default_factory=list)
    num_emitted_per_source: dict[TokenSource, int] = field(default_factory=_no_sources)
    num_draft_tokens_per_drafter: dict[str, int] = field(default_factory=dict)
    num_accepted_tokens_per_drafter: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_records(cls, records: Iterable[StepRecord]) -> SpecDecodeStats:
        """Return the counters of some records."""
        stats = cls()
        for record in records:
            stats.add(record)
        return stats

    def add(self, record: StepRecord) -> None:
        """Fold one record of one row of one step into the counters."""
        self.num_rounds += 1
        self.num_emitted_tokens += len(record.emitted)
        for source in record.sources:
            self.num_emitted_per_source[source] += 1
        if not record.drafted:
            return
        self.num_drafts += 1
        self.num_draft_tokens += len(record.drafted)
        self.num_accepted_tokens += record.num_accepted
        self._count_drafters(record)
        depth = record.depth
        missing = depth - len(self.num_drafted_per_pos)
        if missing > 0:
            self.num_drafted_per_pos += [0] * missing
            self.num_accepted_tokens_per_pos += [0] * missing
            self.num_reached_per_pos += [0] * missing
        drafted, reached = self.num_drafted_per_pos, self.num_reached_per_pos
        for i in range(depth):
            drafted[i] += 1
            reached[i] += i <= record.num_accepted
        for i in range(record.num_accepted):
            self.num_accepted_tokens_per_pos[i] += 1

    def _count_drafters(self, record: StepRecord) -> None:
        """Count drafted and kept tokens by who made them."""
        drafted, accepted = self.num_draft_tokens_per_drafter, self.num_accepted_tokens_per_drafter
        sources, name = record.draft_sources, record.proposer
        if not sources:
            count = len(record.drafted)
            drafted[name] = drafted.get(name, 0) + count
            accepted[name] = accepted.get(name, 0) + min(record.num_accepted, count)
            return
        for name in sources:
            drafted[name] = drafted.get(name, 0) + 1
            accepted.setdefault(name, 0)
        for number in record.kept:
            accepted[sources[number]] += 1

    def merge(self, other: SpecDecodeStats) -> SpecDecodeStats:
        """Return the pooled counters of both; neither is changed."""
        return SpecDecodeStats(
            self.num_rounds + other.num_rounds,
            self.num_drafts + other.num_drafts,
            self.num_draft_tokens + other.num_draft_tokens,
            self.num_accepted_tokens + other.num_accepted_tokens,
            self.num_emitted_tokens + other.num_emitted_tokens,
            _added(self.num_accepted_tokens_per_pos, other.num_accepted_tokens_per_pos),
            _added(self.num_drafted_per_pos, other.num_drafted_per_pos),
            _added(self.num_reached_per_pos, other.num_reached_per_pos),
            {
                source: count + other.num_emitted_per_source[source]
                for source, count in self.num_emitted_per_source.items()
            },
            _joined(self.num_draft_tokens_per_drafter, other.num_draft_tokens_per_drafter),
            _joined(self.num_accepted_tokens_per_drafter, other.num_accepted_tokens_per_drafter),
        )

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens, pooled; NaN if nothing was drafted."""
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def acceptance_rate_per_drafter(self) -> dict[str, float]:
        """Accepted over drafted tokens of each drafter."""
        accepted = self.num_accepted_tokens_per_drafter
        return {
            name: _ratio(accepted[name], drafted)
            for name, drafted in self.num_draft_tokens_per_drafter.items()
        }

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted tokens per draft, the added token included; NaN without drafts."""
        return 1.0 + _ratio(self.num_accepted_tokens, self.num_drafts)

    @property
    def accepted_per_draft(self) -> float:
        """Accepted drafted tokens per round that drafted; NaN without drafts."""
        return _ratio(self.num_accepted_tokens, self.num_drafts)

    @property
    def committed_per_round(self) -> float:
        """Committed tokens per round of any kind, after stops; NaN without rounds."""
        return _ratio(self.num_emitted_tokens, self.num_rounds)

    @property
    def drafted_per_emitted(self) -> float:
        """Drafted tokens per committed token: the volume behind an acceptance rate."""
        return _ratio(self.num_draft_tokens, self.num_emitted_tokens)

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Kept over drafted at each offset; earlier rejections count against it."""
        pairs = zip(self.num_accepted_tokens_per_pos, self.num_drafted_per_pos, strict=True)
        return [_ratio(accepted, drafted) for accepted, drafted in pairs]

    @property
    def conditional_rate_per_pos(self) -> list[float]:
        """Kept over reached at each offset: the rate given that all before were kept."""
        pairs = zip(self.num_accepted_tokens_per_pos, self.num_reached_per_pos, strict=True)
        return [_ratio(accepted, reached) for accepted, reached in pairs]


def leading_accepts(mask: Sequence[bool | int]) -> int:
    """Return the length of the leading run of a mask of matches.

    Parameters
    ----------
    mask : sequence of bool
        Whether each drafted token matched. A match after the first mismatch was
        drafted on a wrong prefix and does not count.

    Returns
    -------
    int
        The number of accepted tokens.
    """
    for i, matched in enumerate(mask):
        if not matched:
            return i
    return len(mask)


def format_rate(rate: float, digits: int = 3) -> str:
    """Return a rate as text, "n/a" if it is undefined.

    Parameters
    ----------
    rate : float
        A rate, or NaN.
    digits : int
        Digits after the point.

    Returns
    -------
    str
        For example ``"0.788"``.
    """
    return "n/a" if math.isnan(rate) else f"{rate:.{digits}f}"


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def _joined(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in (left | right)}


def _added(left: list[int], right: list[int]) -> list[int]:
    length = max(len(left), len(right))
    padded = (side + [0] * (length - len(side)) for side in (left, right))
    return [a + b for a, b in zip(*padded, strict=True)]
