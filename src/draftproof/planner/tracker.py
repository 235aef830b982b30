"""What is believed about the acceptance of each request, round by round.

Per request and drafter, conditional rates are counted with forgetting and shrunk to
those of the pool of all requests, which are counted with slower forgetting and shrunk
to a prior. A drafter that proposes nothing when asked counts at its own rate: a slot
that stays empty costs nothing in the pass and yields nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError

__all__ = ["AcceptanceTracker", "TrackerConfig"]

Floats = NDArray[np.float64]
#: Highest rate that is believed without being seen.
_HIGHEST = 0.995


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """How fast beliefs move.

    Parameters
    ----------
    prior_rate : float, default 0.6
        Conditional acceptance before anything was seen.
    prior_rounds : float, default 4
        Rounds that this prior is worth in the pool.
    shrinkage_rounds : float, default 6
        Rounds that the pool is worth to a request.
    request_memory, pool_memory : float
        What a round is still worth when the next one is counted, in (0, 1].
    """

    prior_rate: float = 0.6
    prior_rounds: float = 4.0
    shrinkage_rounds: float = 6.0
    request_memory: float = 0.97
    pool_memory: float = 0.999

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 0.0 <= self.prior_rate <= 1.0:
            raise ConfigError(f"prior_rate {self.prior_rate}: expected a number in [0, 1]")
        for name in ("request_memory", "pool_memory"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} {getattr(self, name)}: expected a number in (0, 1]")
        for name in ("prior_rounds", "shrinkage_rounds"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(f"{name} {getattr(self, name)}: expected a number above 0")


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
        self.pool: tuple[Floats, float] | None = None

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
        self.counts[:, place] = 0.0
        self.answers[:, place] = 0.0
        return place

    def drop(self, request_id: str) -> None:
        """Free the line of a request."""
        place = self.lines.pop(request_id, None)
        if place is not None:
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
        table.pool = None

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
        pool_rates, pool_given = self._pool_belief(table)
        lines = np.asarray([table.lines.get(request_id, 0) for request_id in request_ids])
        weight = self.config.shrinkage_rounds
        reached, accepted = table.counts[:, lines]
        # Deep positions of the pool are those of its easy requests. A request that does
        # worse than the pool where it was seen is not believed to do as well there.
        skill = (accepted.sum(axis=1) + weight) / (reached @ pool_rates + weight)
        prior = np.minimum(skill[:, None] * pool_rates, _HIGHEST)
        survival = np.cumprod((accepted + weight * prior) / (reached + weight), axis=1)
        asked, came = table.answers[:, lines]
        return survival, (came + weight * pool_given) / (asked + weight)

    def release(self, request_id: str) -> None:
        """Forget a request; what it taught the pool stays.

        Parameters
        ----------
        request_id : str
            Unknown names are ignored.
        """
        for table in self._tables.values():
            table.drop(request_id)

    def reset(self) -> None:
        """Forget everything."""
        self._tables.clear()

    def _pool_belief(self, table: _Table) -> tuple[Floats, float]:
        if table.pool is not None:
            return table.pool
        weight = self.config.prior_rounds
        rates = np.empty(self.max_kappa)
        before = self.config.prior_rate
        for place in range(self.max_kappa):
            # A position that was never reached is believed to be like the one before it.
            reached, accepted = table.pool_counts[:, place]
            before = (accepted + weight * before) / (reached + weight)
            rates[place] = before
        asked, came = table.pool_answers
        table.pool = (rates, float((came + weight) / (asked + weight)))
        return table.pool
