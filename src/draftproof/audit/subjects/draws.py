"""What a subject gives back: continuations, rounds, and how two workers' are joined."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.acceptance import RoundLog
from draftproof.audit.draft_totals import DraftTotals
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError
from draftproof.evidence.localise import RoundSample

__all__ = [
    "Draws",
    "Policy",
    "RoundKind",
    "Subject",
    "overlong",
    "own_seed",
    "padded",
    "placed_rounds",
    "round_kind",
    "round_samples",
    "totals_of",
]


class RoundKind(NamedTuple):
    """A round as an acceptance audit sees it.

    Parameters
    ----------
    drafted : int
        Drafts, 0 for a plain round.
    accepted : int
        Drafts kept.
    emitted : int
        Tokens committed.
    cut : bool
        Whether a stop cut the round.
    """

    drafted: int
    accepted: int
    emitted: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """What every subject is asked for.

    Parameters
    ----------
    params : SamplingParams
        The sampling policy.
    horizon : int
        Tokens of a continuation.
    eos_token_ids : frozenset of int
        Tokens that end one early.
    """

    params: SamplingParams
    horizon: int
    eos_token_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Refuse what has no law to audit."""
        if self.horizon < 1:
            raise ConfigError(f"horizon {self.horizon}: expected 1 or more")
        if self.params.is_greedy:
            raise ConfigError(
                f"temperature {self.params.temperature}: expected above 0; a greedy text is "
                "compared, not tested"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Continuations of one prompt.

    Parameters
    ----------
    tokens : ndarray of int64, shape (N, T)
        In order of request; -1 fills the places after an end token.
    rounds : mapping of RoundKind to int
        How often each kind of round was played. Empty where the subject does not say.
    reports_rounds : bool
        Whether it says.
    totals : DraftTotals, optional
        Sums of the drafts, where it says no more than that, or in how many draws it drafted.
    samples : mapping of RoundSample to int
        The drafting rounds with their tokens and how often each was played, where the subject
        says of which draw its rounds were.
    num_overlong : int, default 0
        Draws that went on behind an end token or past the horizon, before they were cut.
    """

    tokens: NDArray[np.int64]
    rounds: Mapping[RoundKind, int] = field(default_factory=dict)
    reports_rounds: bool = False
    totals: DraftTotals | None = None
    samples: Mapping[RoundSample, int] = field(default_factory=dict)
    num_overlong: int = 0

    def __len__(self) -> int:
        """Return the number of continuations."""
        return len(self.tokens)

    def merge(self, other: Draws) -> Draws:
        """Return both, this one's first; neither is changed.

        Parameters
        ----------
        other : Draws
            Of another worker.

        Returns
        -------
        Draws
            No draw lost, none counted twice.
        """
        rounds = Counter(self.rounds)
        rounds.update(other.rounds)
        samples = Counter(self.samples)
        samples.update(other.samples)
        return replace(
            self,
            tokens=np.concatenate([self.tokens, other.tokens]),
            rounds=dict(rounds),
            reports_rounds=self.reports_rounds and other.reports_rounds,
            totals=_both(self.totals, other.totals),
            samples=dict(samples),
            num_overlong=self.num_overlong + other.num_overlong,
        )

    def log(self) -> RoundLog | None:
        """Return the rounds one by one, None where they were not reported."""
        if not self.reports_rounds:
            return None
        kinds = sorted(self.rounds)
        columns = tuple(
            tuple(kind[column] for kind in kinds for _ in range(self.rounds[kind]))
            for column in range(4)
        )
        drafted, accepted, emitted, cut = columns
        return RoundLog(drafted, accepted, emitted, tuple(map(bool, cut)))


def round_samples(
    tokens: Sequence[int],
    kinds: Iterable[RoundKind],
    drafts: Iterable[tuple[int, ...] | None] = repeat(None),
) -> Iterator[RoundSample]:
    """Return the drafting rounds of one draw with their tokens.

    Parameters
    ----------
    tokens : sequence of int
        The draw.
    kinds : iterable of RoundKind
        All of its rounds in order, the plain ones too.
    drafts : iterable of tuple of int
        What each round drafted, where that is known and certain.

    Yields
    ------
    RoundSample
        One for each round that drafted and emitted something.
    """
    at = 0
    for kind, drafted in zip(kinds, drafts):  # noqa: B905  nothing known goes on for ever
        emitted = tuple(tokens[at : at + kind.emitted])
        if kind.drafted and emitted:
            yield RoundSample(tuple(tokens[:at]), emitted, kind.accepted, drafted)
        at += kind.emitted


def round_kind(told: Sequence[Any]) -> RoundKind:
    """Return a round of the numbers that a worker tells: drafted, accepted, emitted, cut."""
    drafted, accepted, emitted, cut = told
    return RoundKind(int(drafted), int(accepted), int(emitted), bool(cut))


def placed_rounds(
    samples: Sequence[Sequence[int]], by_draw: Sequence[Sequence[Sequence[Any]]], horizon: int
) -> tuple[Counter[RoundSample], int]:
    """Return the drafting rounds of some draws, and in how many of these something was drafted.

    Parameters
    ----------
    samples : sequence of sequence of int
        The draws.
    by_draw : sequence of sequence
        The rounds of each in order, as `round_kind` takes them.
    horizon : int
        Tokens of a draw that count.

    Returns
    -------
    rounds : Counter of RoundSample
        How often each was played.
    drafting : int
        Draws with drafts.

    Raises
    ------
    BackendError
        If the rounds are those of another number of draws.
    """
    if len(by_draw) != len(samples):
        raise BackendError(f"rounds of {len(by_draw)} draws, expected those of {len(samples)}")
    found: Counter[RoundSample] = Counter()
    drafting = 0
    for sample, told in zip(samples, by_draw, strict=True):
        kinds = list(map(round_kind, told))
        found.update(round_samples(sample[:horizon], kinds))
        drafting += any(kind.drafted for kind in kinds)
    return found, drafting


def overlong(samples: Any, policy: Policy) -> int:
    """Return how many samples hold more than a text of the policy does.

    Parameters
    ----------
    samples : sequence of sequence of int
        As the subject gave them; -1 fills rows of an array.
    policy : Policy
        Length and end tokens.

    Returns
    -------
    int
        Those that go on behind an end token, other than with itself as filling, or past the
        horizon.
    """
    found = 0
    for sample in samples:
        text = [token for token in np.atleast_1d(sample).tolist() if token >= 0]
        places = (place for place, token in enumerate(text) if token in policy.eos_token_ids)
        end = next(places, policy.horizon)
        if end < policy.horizon:
            found += any(token != text[end] for token in text[end + 1 :])
        else:
            found += len(text) > policy.horizon
    return found


def totals_of(rounds: Mapping[RoundKind, int], draws: int | None) -> DraftTotals:
    """Add up the drafts of rounds.

    Parameters
    ----------
    rounds : mapping of RoundKind to int
        How often each kind was played.
    draws : int, optional
        Draws in which something was drafted; None where that is not known.

    Returns
    -------
    DraftTotals
        Their sums.
    """
    return DraftTotals(
        sum(kind.accepted * times for kind, times in rounds.items()),
        sum(kind.drafted * times for kind, times in rounds.items()),
        sum(times for kind, times in rounds.items() if kind.drafted),
        draws,
    )


def _both(left: DraftTotals | None, right: DraftTotals | None) -> DraftTotals | None:
    return None if left is None or right is None else left + right


class Subject(Protocol):
    """A decoder under test."""

    def draw(self, prompt_ids: Sequence[int], policy: Policy, num: int, first_seed: int) -> Draws:
        """Return independent continuations of one prompt.

        Parameters
        ----------
        prompt_ids : sequence of int
            The prompt.
        policy : Policy
            Policy and length.
        num : int
            How many.
        first_seed : int
            Continuation ``i`` uses the seed ``first_seed + i`` where the decoder takes
            a seed for each, so that workers with disjoint ranges share none.

        Returns
        -------
        Draws
            ``num`` continuations, and the rounds where the decoder reports them.
        """
        ...


def own_seed(number: int) -> int:
    """Return a seed of 63 bits that looks like no other.

    Parameters
    ----------
    number : int
        Number of the draw.

    Returns
    -------
    int
        A hash: engines seed generators whose first numbers are alike for neighbouring
        seeds.
    """
    digest = hashlib.blake2b(str(number).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def padded(samples: Any, horizon: int) -> NDArray[np.int64]:
    """Return samples as rows of one length, filled with -1.

    Parameters
    ----------
    samples : sequence of sequence of int, or ndarray of int
        Token ids of each continuation; what is past the horizon is cut.
    horizon : int
        Length of the rows.

    Returns
    -------
    ndarray of int64, shape (N, horizon)
        The rows.

    Raises
    ------
    ConfigError
        If they are no sequences of integers.
    """
    try:
        rows = np.full((len(samples), horizon), -1, dtype=np.int64)
        for row, sample in zip(rows, samples, strict=True):
            kept = np.atleast_1d(sample)[:horizon]
            if kept.ndim != 1 or (kept.size and not np.issubdtype(kept.dtype, np.integer)):
                raise ConfigError(f"a sample {sample!r}: expected a sequence of token ids")
            row[: len(kept)] = kept
    except ConfigError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"samples of {type(samples).__name__}: {error}") from error
    return rows
