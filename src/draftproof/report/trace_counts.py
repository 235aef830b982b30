"""Counts over the rounds of a trace."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.stats import binomtest

from draftproof.bench.trace_record import Trace
from draftproof.core.trace import RoundTrace
from draftproof.planner.counts import AcceptanceCounts

__all__ = [
    "SourceCounts",
    "accepted_lengths",
    "count_sources",
    "counts_of",
    "expected_lengths",
    "fitted_alpha",
    "longest_path",
    "mean",
    "rates_by_request",
    "wilson",
]


def longest_path(trace: RoundTrace) -> int:
    """Return the most drafts that a round could have kept."""
    if trace.parents is None:
        return len(trace.draft_ids)
    return max((trace.depth_of(node) + 1 for node in range(len(trace.draft_ids))), default=0)


def counts_of(rounds: Iterable[RoundTrace]) -> AcceptanceCounts:
    """Count rounds by position; in a tree the position is the depth.

    Parameters
    ----------
    rounds : iterable of RoundTrace
        Rounds; those without drafts count nowhere.

    Returns
    -------
    AcceptanceCounts
        Drafted, reached and accepted at each position.
    """
    return AcceptanceCounts.from_rounds(
        (longest_path(trace), trace.num_accepted) for trace in rounds if trace.draft_ids
    )


def fitted_alpha(counts: AcceptanceCounts) -> float | None:
    """Return the constant rate that makes the counts most likely.

    Parameters
    ----------
    counts : AcceptanceCounts
        Pooled counters.

    Returns
    -------
    float or None
        Accepted over reached, summed over positions: each position that was reached is
        one trial. None where nothing was drafted.
    """
    reached = sum(counts.reached)
    return sum(counts.accepted) / reached if reached else None


def wilson(
    accepted: int, reached: int, confidence: float = 0.95
) -> tuple[float | None, float | None]:
    """Return Wilson's interval of a rate; nothing where nothing was reached.

    Parameters
    ----------
    accepted, reached : int
        Successes and trials.
    confidence : float, default 0.95
        Of the interval.

    Returns
    -------
    low, high : float or None
        Its ends.
    """
    if not reached:
        return None, None
    found = binomtest(accepted, reached).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)


def accepted_lengths(rounds: Iterable[RoundTrace]) -> Counter[int]:
    """Return how many rounds with drafts kept how many of them."""
    return Counter(trace.num_accepted for trace in rounds if trace.draft_ids)


def expected_lengths(rounds: Iterable[RoundTrace], alpha: float) -> dict[int, float]:
    """Return how many rounds would keep how many drafts at a constant rate.

    Parameters
    ----------
    rounds : iterable of RoundTrace
        Rounds: what counts is how long their drafts were.
    alpha : float
        Rate in [0, 1].

    Returns
    -------
    dict of int to float
        Rounds by kept drafts.
    """
    held: dict[int, float] = defaultdict(float)
    for length, times in Counter(longest_path(t) for t in rounds if t.draft_ids).items():
        for kept in range(length):
            held[kept] += times * alpha**kept * (1 - alpha)
        held[length] += times * alpha**length
    return dict(held)


@dataclass(slots=True)
class SourceCounts:
    """What one source drafted.

    Parameters
    ----------
    rounds : int
        Rounds with a draft of it.
    drafted, reached, accepted : int
        Its drafts, those whose place the rule got to, and those that were kept.
    known : int
        Reached drafts whose probability under the target is known.
    target_mass, overlap : float
        Sums over those: of p, and of min(1, p / q).
    """

    rounds: int = 0
    drafted: int = 0
    reached: int = 0
    accepted: int = 0
    known: int = 0
    target_mass: float = 0.0
    overlap: float = 0.0


def count_sources(rounds: Iterable[RoundTrace]) -> dict[tuple[str, str], SourceCounts]:
    """Count drafts by drafter and source.

    A draft counts as reached where all drafts above it were kept, whatever the rule looked
    at: so block verification, which looks ahead, has the denominators of the others.

    Parameters
    ----------
    rounds : iterable of RoundTrace
        Rounds.

    Returns
    -------
    dict of (str, str) to SourceCounts
        By drafter and source, in order of first appearance.
    """
    found: dict[tuple[str, str], SourceCounts] = {}
    for trace in rounds:
        kept = set(trace.path)
        if trace.token_source == "accepted":
            kept.add(_child(trace, trace.path, trace.token_id))
        for source in dict.fromkeys(trace.sources):
            found.setdefault((trace.drafter, source), SourceCounts()).rounds += 1
        for node, source in enumerate(trace.sources):
            counts = found[trace.drafter, source]
            counts.drafted += 1
            parent = node - 1 if trace.parents is None else trace.parents[node]
            if parent >= 0 and parent not in kept:
                continue
            counts.reached += 1
            counts.accepted += node in kept
            p, q = trace.p[node], trace.q[node]
            if p is not None:
                counts.known += 1
                counts.target_mass += p
                counts.overlap += min(1.0, p / (1.0 if q is None else q))
    return found


def _child(trace: RoundTrace, path: Sequence[int], token: int) -> int:
    """Return the draft behind a path that holds a token."""
    above = path[-1] if path else -1
    for node, held in enumerate(trace.draft_ids):
        parent = node - 1 if trace.parents is None else trace.parents[node]
        if parent == above and held == token:
            return node
    return -1


def rates_by_request(trace: Trace) -> list[float]:
    """Return the acceptance rate of each request that drafted."""
    rates = []
    for _, rounds in trace.by_request():
        drafted = sum(len(each.draft_ids) for each in rounds)
        if drafted:
            rates.append(sum(each.num_accepted for each in rounds) / drafted)
    return rates


def mean(values: Sequence[float]) -> float:
    """Return a mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan
