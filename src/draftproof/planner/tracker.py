"""What is believed about the acceptance of each request, round by round.

Requests are of kinds, each with a conditional acceptance of its own; how common a kind
is was learnt from the other requests. What a request was seen to accept says of which
kind it is: a few long drafts that survive make long drafts likely, where a single rate
would still believe the prior. The rates that kinds predict are corrected by depth with
what the pool of all requests showed there, and then by the counts of the request, which
are kept with forgetting.

A drafter that proposes nothing when asked counts at its own rate: a slot that stays
empty costs nothing in the pass and yields nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_sh_jacobi

from draftproof.errors import ConfigError

__all__ = ["AcceptanceTracker", "TrackerConfig"]

Floats = NDArray[np.float64]
#: Highest rate that is believed without being seen.
_HIGHEST = 0.995
#: Kinds of requests that are told apart.
_KINDS = 9
#: Steps towards how common kinds are.
_STEPS = 4


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """How fast beliefs move.

    Parameters
    ----------
    prior_rate : float, default 0.6
        Conditional acceptance before anything was seen.
    prior_strength : float, default 1.5
        Drafts that this prior is worth. Kinds follow the Beta law of this mean and
        strength: below 2 most requests are believed to be easy or hard, few in between.
    shrinkage_rounds : float, default 16
        Rounds that kinds are worth beside the counts at a depth.
    request_memory, pool_memory : float
        What a round is still worth when the next one is counted, in (0, 1].
    """

    prior_rate: float = 0.6
    prior_strength: float = 1.5
    shrinkage_rounds: float = 16.0
    request_memory: float = 0.97
    pool_memory: float = 0.999

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 0.0 < self.prior_rate < 1.0:
            raise ConfigError(f"prior_rate {self.prior_rate}: expected a number in (0, 1)")
        for name in ("request_memory", "pool_memory"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} {getattr(self, name)}: expected a number in (0, 1]")
        for name in ("prior_strength", "shrinkage_rounds"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} {getattr(self, name)}: expected a number above 0")


class _Kinds:
    """Conditional rates that requests may have, and how common each is beforehand."""

    def __init__(self, config: TrackerConfig, max_kappa: int) -> None:
        strength, mean = config.prior_strength, config.prior_rate
        # Nodes of the quadrature for a Beta law: its mean and 16 more moments are exact.
        rates, weights = roots_sh_jacobi(_KINDS, strength - 1.0, strength * mean)
        self.prior: Floats = weights / weights.sum()
        self.log_rates: Floats = np.log(rates)
        self.log_misses: Floats = np.log1p(-rates)
        self.powers: Floats = rates[:, None] ** np.arange(max_kappa + 1)

    def likelihoods(self, accepted: Floats, missed: Floats) -> Floats:
        """Return how well each kind explains counts, shape (B, kinds), the best at 1."""
        logs = accepted[:, None] * self.log_rates + missed[:, None] * self.log_misses
        found: Floats = np.exp(logs - logs.max(axis=1, keepdims=True))
        return found

    def rates(self, weights: Floats) -> Floats:
        """Return the conditional rate at each depth of mixed kinds, shape (B, max_kappa)."""
        survival = weights @ self.powers
        found: Floats = survival[:, 1:] / survival[:, :-1]
        return found


class _Table:
    """Discounted counts of one drafter: one line per request, and the pool.

    ``asked`` and ``given`` say how often a draft was asked for and came; ``reached``
    and ``accepted`` count per position.
    """

    def __init__(self, max_kappa: int) -> None:
        self.lines: dict[str, int] = {}
        self.free: list[int] = []
        # Line 0 stays empty: a request that is not known believes what the pool does.
        self.counts: Floats = np.zeros((2, 1, max_kappa))  # reached, accepted
        self.answers: Floats = np.zeros((2, 1))  # asked, given
        self.pool_counts: Floats = np.zeros((2, max_kappa))
        self.pool_answers: Floats = np.zeros(2)
        self.past: Floats = np.zeros(_KINDS)  # the kinds of requests that have gone

    def line(self, request_id: str) -> int:
        """Return the line of a request, a fresh one if it has none."""
        found = self.lines.get(request_id)
        if found is not None:
            return found
        if not self.free:
            held = self.counts.shape[1]
            more = max(16, held)
            self.counts = np.pad(self.counts, ((0, 0), (0, more), (0, 0)))
            self.answers = np.pad(self.answers, ((0, 0), (0, more)))
            self.free = list(range(held + more - 1, held - 1, -1))
        place = self.lines[request_id] = self.free.pop()
        return place

    def drop(self, request_id: str) -> None:
        """Free the line of a request that has one."""
        place = self.lines.pop(request_id)
        self.counts[:, place] = 0.0
        self.answers[:, place] = 0.0
        self.free.append(place)


class AcceptanceTracker:
    """Beliefs of one run; one owner folds rounds into it.

    Parameters
    ----------
    max_kappa : int
        Longest draft that is ever considered.
    config : TrackerConfig, optional
        How fast beliefs move.
    """

    def __init__(self, max_kappa: int, config: TrackerConfig | None = None) -> None:
        self.max_kappa = max_kappa
        self.config = config or TrackerConfig()
        self._kinds = _Kinds(self.config, max_kappa)
        self._places = np.arange(max_kappa)
        self._tables: dict[str, _Table] = {}

    def fold(self, proposer: str, rounds: Mapping[str, tuple[int, int]]) -> None:
        """Count rounds in which a drafter was asked, one per request.

        Parameters
        ----------
        proposer : str
            Who was asked.
        rounds : mapping of str to (int, int)
            By request: drafts that came, and those that survived.
        """
        if not rounds:
            return
        table = self._tables.get(proposer)
        if table is None:
            table = self._tables[proposer] = _Table(self.max_kappa)
        lines = np.asarray([table.line(request_id) for request_id in rounds])
        pairs = np.asarray(list(rounds.values()))
        drafted, accepted = pairs[:, 0], pairs[:, 1]
        came = drafted > 0
        seen = np.stack(
            (
                self._places[None, :] < np.minimum(drafted, accepted + 1)[:, None],
                self._places[None, :] < accepted[:, None],
            )
        ).astype(np.float64)
        answered = np.stack((np.ones(len(lines)), came.astype(np.float64)))
        memory = self.config.request_memory
        kept = np.where(came, memory, 1.0)[None, :, None]
        table.counts[:, lines] = table.counts[:, lines] * kept + seen
        table.answers[:, lines] = table.answers[:, lines] * memory + answered
        memory = self.config.pool_memory
        table.pool_counts = table.pool_counts * memory ** int(came.sum()) + seen.sum(axis=1)
        table.pool_answers = table.pool_answers * memory ** len(lines) + answered.sum(axis=1)

    def beliefs(self, request_ids: Sequence[str], proposer: str) -> tuple[Floats, Floats]:
        """Return what requests may expect of a drafter.

        Parameters
        ----------
        request_ids : sequence of str, length B
            Requests; they need not be known.
        proposer : str
            The drafter; it need not be known either.

        Returns
        -------
        survival : ndarray of float64, shape (B, max_kappa)
            ``Pr(at least i drafts survive)`` when a draft comes.
        given : ndarray of float64, shape (B,)
            Probability that one comes when asked for.
        """
        table = self._tables.get(proposer)
        if table is None:
            table = _Table(self.max_kappa)
        lines = np.asarray([table.lines.get(request_id, 0) for request_id in request_ids])
        fits, is_seen = self._fits(table)
        common, kinds = self._common(fits[is_seen], table.past)
        # The others say how common a kind is; a request says of which kind it is itself.
        own = np.zeros_like(fits)
        own[is_seen] = kinds
        rates = self._kinds.rates(_shares((common - own[lines]) * fits[lines]))
        rates *= self._by_depth(table, _shares(common[None, :]))
        weight = self.config.shrinkage_rounds
        reached, accepted = table.counts[:, lines]
        prior = np.minimum(rates, _HIGHEST)
        survival = np.cumprod((accepted + weight * prior) / (reached + weight), axis=1)
        asked, came = table.answers[:, lines]
        pool_asked, pool_came = table.pool_answers
        given = (pool_came + weight) / (pool_asked + weight)
        return survival, (came + weight * given) / (asked + weight)

    def release(self, request_id: str) -> None:
        """Forget a request; what it taught the pool stays.

        Parameters
        ----------
        request_id : str
            Unknown names are ignored.
        """
        for table in self._tables.values():
            line = table.lines.get(request_id)
            if line is not None:
                fits, is_seen = self._fits(table)
                _, kinds = self._common(fits[is_seen], table.past)
                if is_seen[line]:
                    gone = kinds[int(is_seen[:line].sum())]
                    table.past = table.past * self.config.pool_memory + gone
                table.drop(request_id)

    def reset(self) -> None:
        """Forget everything."""
        self._tables.clear()

    def _fits(self, table: _Table) -> tuple[Floats, NDArray[np.bool_]]:
        """Return how well kinds explain each line, and which lines have shown something."""
        reached, accepted = table.counts.sum(axis=2)
        return self._kinds.likelihoods(accepted, reached - accepted), reached > 0.0

    def _common(self, fits: Floats, past: Floats) -> tuple[Floats, Floats]:
        """Return how common kinds are, in requests, and what share of each kind a line is.

        A few steps of expectation and maximisation, from the prior, which counts as one
        request.
        """
        common = start = self._kinds.prior + past
        kinds = np.zeros_like(fits)
        for _ in range(_STEPS):
            kinds = _shares(common * fits) if len(fits) else fits
            common = start + kinds.sum(axis=0)
        return common, kinds

    def _by_depth(self, table: _Table, shares: Floats) -> Floats:
        """Return what the pool showed at each depth, relative to what its kinds predict.

        A depth that was never reached is believed to be like the one before it.
        """
        weight = self.config.shrinkage_rounds
        expected = self._kinds.rates(shares)[0] * table.pool_counts[0]
        found = np.empty(self.max_kappa)
        before = 1.0
        for place, (hoped, accepted) in enumerate(
            zip(expected.tolist(), table.pool_counts[1].tolist(), strict=True)
        ):
            before = (accepted + weight * before) / (hoped + weight)
            found[place] = before
        return found


def _shares(weights: Floats) -> Floats:
    """Return weights as shares of 1, row by row."""
    found: Floats = weights / weights.sum(axis=1, keepdims=True)
    return found
