"""The law of a whole continuation, and the counts of what was seen of it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.errors import ConfigError, InvariantError

__all__ = ["Counts", "JointLaw", "Outcome", "count_draws", "draw_slots"]

#: Token ids of one continuation, first to last.
Outcome = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class JointLaw:
    """The law of the next tokens, outcome by outcome.

    Parameters
    ----------
    outcomes : tuple of tuple of int, length K
        Distinct continuations in rising order. Each has ``horizon`` tokens, or fewer
        and ends with an end token.
    probs : ndarray of float64, shape (K,)
        Their probabilities, all positive, with sum 1 up to 1e-9; what is left of that is
        normalised away.
    horizon : int
        Tokens of an outcome that no end token cuts.
    eos_token_ids : frozenset of int
        Tokens that end a continuation.

    Raises
    ------
    InvariantError
        If lengths differ, an outcome is repeated or too long, or the probabilities are
        no law.
    """

    outcomes: tuple[Outcome, ...]
    probs: NDArray[np.float64]
    horizon: int
    eos_token_ids: frozenset[int] = frozenset()
    _slots: dict[Outcome, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Sort the outcomes, and refuse what is no law."""
        probs = np.array(self.probs, dtype=np.float64)
        if probs.shape != (len(self.outcomes),) or not len(probs):
            msg = f"{len(self.outcomes)} outcomes with probabilities of shape {probs.shape}"
            raise InvariantError(msg)
        total = math.fsum(probs)
        if not probs.min() > 0 or not abs(total - 1) < 1e-9:
            msg = f"probabilities with minimum {probs.min()} and sum {total!r}: expected a law"
            raise InvariantError(msg)
        order = sorted(range(len(probs)), key=self.outcomes.__getitem__)
        outcomes = tuple(tuple(map(int, self.outcomes[i])) for i in order)
        for outcome in outcomes:
            if self.cut(outcome) != outcome or not self.is_whole(outcome):
                msg = f"outcome {outcome}: expected {self.horizon} tokens, or an end token last"
                raise InvariantError(msg)
        slots = {outcome: slot for slot, outcome in enumerate(outcomes)}
        if len(slots) != len(outcomes):
            raise InvariantError("an outcome is listed twice")
        probs = probs[order]
        # Not where only rounding is left: a law that was stored must come back to the bit.
        if abs(total - 1) > len(probs) * np.finfo(np.float64).eps:
            probs /= total
        probs.flags.writeable = False
        object.__setattr__(self, "outcomes", outcomes)
        object.__setattr__(self, "probs", probs)
        object.__setattr__(self, "_slots", slots)

    @classmethod
    def from_mapping(
        cls, law: Mapping[Outcome, float], horizon: int, eos_token_ids: Iterable[int] = ()
    ) -> JointLaw:
        """Return the law of a mapping; outcomes of probability 0 are left out.

        Parameters
        ----------
        law : mapping of tuple of int to float
            Probability of each continuation.
        horizon : int
            See `JointLaw`.
        eos_token_ids : iterable of int
            See `JointLaw`.

        Returns
        -------
        JointLaw
            The same law.
        """
        kept = {outcome: float(prob) for outcome, prob in law.items() if prob > 0}
        probs = np.fromiter(kept.values(), np.float64, len(kept))
        return cls(tuple(kept), probs, horizon, frozenset(eos_token_ids))

    def __len__(self) -> int:
        """Return the number of possible outcomes K."""
        return len(self.outcomes)

    def cut(self, tokens: Sequence[int]) -> Outcome:
        """Return the continuation up to its first end token, and no longer than the horizon."""
        kept = tuple(tokens[: self.horizon])
        for place, token in enumerate(kept):
            if token in self.eos_token_ids:
                return kept[: place + 1]
        return kept

    def is_whole(self, outcome: Outcome) -> bool:
        """Return whether a cut continuation is a complete outcome."""
        return len(outcome) == self.horizon or (
            len(outcome) > 0 and outcome[-1] in self.eos_token_ids
        )

    def prob(self, outcome: Outcome) -> float:
        """Return the probability of an outcome; 0 for an impossible one."""
        slot = self._slots.get(outcome)
        return 0.0 if slot is None else float(self.probs[slot])

    def slot(self, outcome: Outcome) -> int | None:
        """Return the index of an outcome, None for an impossible one."""
        return self._slots.get(outcome)

    def digest(self) -> str:
        """Return a short name of the content: 16 hexadecimal digits."""
        text = repr((self.outcomes, self.horizon, sorted(self.eos_token_ids))).encode()
        return hashlib.blake2b(text + self.probs.tobytes(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """How often each outcome of a law was drawn.

    Parameters
    ----------
    cells : ndarray of int64, shape (K,)
        Draws of each possible outcome.
    impossible : mapping of tuple of int to int
        Draws of outcomes whose probability is 0.
    """

    cells: NDArray[np.int64]
    impossible: Mapping[Outcome, int] = field(default_factory=dict)

    @property
    def num_possible(self) -> int:
        """Draws of possible outcomes."""
        return int(self.cells.sum())

    @property
    def num_impossible(self) -> int:
        """Draws of impossible outcomes."""
        return sum(self.impossible.values())

    @property
    def num_draws(self) -> int:
        """All draws."""
        return self.num_possible + self.num_impossible

    def merge(self, other: Counts) -> Counts:
        """Return the sum of the counts of two workers; neither is changed."""
        if self.cells.shape != other.cells.shape:
            msg = f"counts of {len(self.cells)} and {len(other.cells)} outcomes: expected one law"
            raise InvariantError(msg)
        impossible = Counter(self.impossible)
        impossible.update(other.impossible)
        return Counts(self.cells + other.cells, dict(impossible))


def count_draws(law: JointLaw, draws: ArrayLike | Iterable[Sequence[int]]) -> Counts:
    """Count draws by outcome.

    Parameters
    ----------
    law : JointLaw
        The law that they should have.
    draws : array_like of int, shape (N, T), or iterable of sequence of int
        Continuations. Tokens after an end token or past the horizon are not looked
        at. -1 fills the places after the last token, and may stand nowhere else.

    Returns
    -------
    Counts
        Draws by outcome, the impossible ones apart.

    Raises
    ------
    ConfigError
        If a continuation ends before the horizon without an end token: it is no
        outcome, and calling it impossible would accuse the decoder of a cut limit. If a
        negative number stands before a token. The message names the draw and the place.

    Notes
    -----
    Rows of an array are coded as one integer each; a million rows of four tokens take
    about a second.
    """
    if isinstance(draws, np.ndarray):
        rows, multiplicity = _distinct_rows(law, draws)
        seen = zip(map(tuple, rows.tolist()), multiplicity.tolist(), strict=True)
        counted: dict[Outcome, int] = {}
        for row, times in seen:
            counted[row] = counted.get(row, 0) + times
        kept: Sequence[Sequence[int]] = draws[:, : law.horizon]  # type: ignore[assignment]
    else:
        listed = [tuple(map(int, draw)) for draw in cast("Iterable[Sequence[int]]", draws)]
        kept, counted = listed, dict(Counter(listed))
    cells = np.zeros(len(law), dtype=np.int64)
    impossible: dict[Outcome, int] = {}
    for raw, times in counted.items():
        outcome = _outcome_of(law, raw, kept)
        slot = law.slot(outcome)
        if slot is None:
            impossible[outcome] = impossible.get(outcome, 0) + times
        else:
            cells[slot] += times
    return Counts(cells, impossible)


def draw_slots(law: JointLaw, draws: ArrayLike | Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Return the index of the outcome of each draw, in the order of the draws.

    Parameters
    ----------
    law : JointLaw
        The law that they should have.
    draws : array_like of int, shape (N, T), or iterable of sequence of int
        See `count_draws`.

    Returns
    -------
    tuple of int, length N
        -1 for an outcome whose probability is 0.

    Raises
    ------
    ConfigError
        As `count_draws`.
    """
    rows: list[Sequence[int]] = (
        draws[:, : law.horizon].tolist()
        if isinstance(draws, np.ndarray)
        else list(cast("Iterable[Sequence[int]]", draws))
    )
    known: dict[Outcome, int] = {}
    slots = []
    for row in rows:
        raw = tuple(map(int, row))
        if raw not in known:
            slot = law.slot(_outcome_of(law, raw, rows))
            known[raw] = -1 if slot is None else slot
        slots.append(known[raw])
    return tuple(slots)


def _outcome_of(law: JointLaw, raw: Outcome, draws: Sequence[Sequence[int]]) -> Outcome:
    """Return the outcome of a draw, without what fills its end; refuse what is none.

    Parameters
    ----------
    law : JointLaw
        Its law.
    raw : tuple of int
        The draw.
    draws : sequence of sequence of int
        All draws, to say which one is refused.

    Returns
    -------
    tuple of int
        Cut at the first end token or at the horizon.
    """
    length = len(raw)
    while length and raw[length - 1] == -1:
        length -= 1
    if min(raw[:length], default=0) < 0:
        place = next(i for i, token in enumerate(raw) if token < 0)
        if not any(token in law.eos_token_ids for token in raw[:place]):
            msg = f"draw {_number(raw, draws)} {raw}: {raw[place]} at place {place}"
            raise ConfigError(f"{msg}, expected token ids, and -1 after the last one only")
    outcome = law.cut(raw[:length])
    if not law.is_whole(outcome):
        msg = (
            f"draw {_number(raw, draws)}: a draw of {len(outcome)} tokens {outcome}: expected "
            f"{law.horizon}, or one of the end tokens {sorted(law.eos_token_ids)} last"
        )
        raise ConfigError(msg)
    return outcome


def _number(raw: Outcome, draws: Sequence[Sequence[int]]) -> int:
    return next(i for i, draw in enumerate(draws) if tuple(map(int, draw)) == raw)


def _distinct_rows(
    law: JointLaw, draws: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct rows and how often each occurs."""
    rows = np.asarray(draws)
    if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer):
        raise ConfigError(f"draws of shape {rows.shape}, {rows.dtype}: expected integers (N, T)")
    rows = rows[:, : law.horizon].astype(np.int64)
    if not rows.size:
        return rows, np.zeros(len(rows), dtype=np.int64)
    low = int(rows.min())
    base = int(rows.max()) - low + 1
    if base ** rows.shape[1] >= 2**62:
        distinct, counts = np.unique(rows, axis=0, return_counts=True)
        return distinct, counts.astype(np.int64)
    codes = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        codes *= base
        codes += column - low
    if base ** rows.shape[1] <= max(4096, 4 * len(rows)):
        times = np.bincount(codes)
        present = np.flatnonzero(times)
        times = times[present]
    else:
        present, times = np.unique(codes, return_counts=True)
    distinct = np.empty((len(present), rows.shape[1]), dtype=np.int64)
    rest = present
    for place in range(rows.shape[1] - 1, -1, -1):
        rest, distinct[:, place] = np.divmod(rest, base)
    return distinct + low, times.astype(np.int64)
