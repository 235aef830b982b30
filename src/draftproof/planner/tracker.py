"""What is believed about the acceptance of each request, round by round.

Requests are of kinds, each with a conditional acceptance of its own; how common a kind
is was learnt from the other requests. What a request was seen to accept says of which
kind it is: a few long drafts that survive make long drafts likely, where a single rate
would still believe the prior. The rates that kinds predict are corrected by depth with
what the pool of all requests showed there, and then by the counts of the request, which
are kept with forgetting.

A drafter that proposes nothing when asked counts at its own rate: a slot that stays
empty costs nothing in the pass and yields nothing. A drafter that tells beforehand how
well it could draft is counted apart for each sign it gives.

Rounds are only noted when they end. They are counted all at once when somebody asks what
is believed: a round in which nothing is decided costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_sh_jacobi

from draftproof.errors import ConfigError

__all__ = ["UNTOLD", "AcceptanceTracker", "TrackerConfig"]

Floats = NDArray[np.float64]
#: Highest rate that is believed without being seen.
_HIGHEST = 0.995
#: Kinds of requests that are told apart.
_KINDS = 9
#: Steps towards how common kinds are, where there are several requests.
_STEPS = 4
#: The sign of a drafter that does not tell how well it could draft.
UNTOLD = -1
#: Weights grow with each round in place of all counts shrinking; beyond this both are cut.
_LARGEST = 1e100


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
    sign_priors : tuple of (float, float)
        The same two numbers, rate and strength, of drafts that the drafter gave a sign from
        1 on. Those of n-grams in rewriting, code and free text of a small model
        (``benchmarks/results/controller_choices.json``).
    """

    prior_rate: float = 0.6
    prior_strength: float = 1.5
    shrinkage_rounds: float = 16.0
    request_memory: float = 0.97
    pool_memory: float = 0.999
    sign_priors: tuple[tuple[float, float], ...] = ((0.35, 4.0), (0.7, 5.0), (0.87, 3.0))

    def __post_init__(self) -> None:
        """Check ranges."""
        for rate, strength in (self.prior(UNTOLD), *self.sign_priors):
            if not 0.0 < rate < 1.0:
                raise ConfigError(f"prior_rate {rate}: expected a number in (0, 1)")
            if not strength > 0.0:
                raise ConfigError(f"prior_strength {strength}: expected a number above 0")
        for name in ("request_memory", "pool_memory"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} {getattr(self, name)}: expected a number in (0, 1]")
        if not self.shrinkage_rounds > 0.0:
            raise ConfigError(
                f"shrinkage_rounds {self.shrinkage_rounds}: expected a number above 0"
            )

    def prior(self, sign: int) -> tuple[float, float]:
        """Return rate and strength before anything was seen of drafts with a sign."""
        if sign <= 0:
            return self.prior_rate, self.prior_strength
        return self.sign_priors[min(sign, len(self.sign_priors)) - 1]


class _Kinds:
    """Conditional rates that requests may have, and how common each is beforehand."""

    def __init__(self, mean: float, strength: float, max_kappa: int) -> None:
        # Nodes of the quadrature for a Beta law: its mean and 16 more moments are exact.
        rates, weights = roots_sh_jacobi(_KINDS, strength - 1.0, strength * mean)
        self.prior: Floats = weights / weights.sum()
        # By kind: what an accepted and a missed draft say for it.
        self.logs: Floats = np.stack((np.log(rates) - np.log1p(-rates), np.log1p(-rates)))
        self.powers: Floats = rates[:, None] ** np.arange(max_kappa + 1)

    def likelihoods(self, totals: Floats) -> Floats:
        """Return how well each kind explains accepted and reached drafts, the best at 1.

        Parameters
        ----------
        totals : ndarray of float64, shape (B, 2)
            Accepted and reached drafts.

        Returns
        -------
        ndarray of float64, shape (B, kinds)
            Likelihoods.
        """
        logs = totals @ self.logs
        logs -= logs.max(axis=1, keepdims=True)
        found: Floats = np.exp(logs)
        return found

    def rates(self, weights: Floats) -> Floats:
        """Return the conditional rate at each depth of mixed kinds, shape (B, max_kappa)."""
        survival = weights @ self.powers
        found: Floats = survival[:, 1:] / survival[:, :-1]
        return found


class _Table:
    """Discounted counts of one drafter and sign: one line per request, and the pool.

    Counts are held times a weight that grows from round to round: they never shrink, and a
    round adds to them without a look at what was there.
    """

    def __init__(self, kinds: _Kinds, config: TrackerConfig, max_kappa: int) -> None:
        self.kinds = kinds
        self.lines: dict[str, int] = {}
        self.past: Floats = np.zeros(_KINDS)  # the kinds of requests that have gone
        self._config = config
        self._free: list[int] = []
        # Line 0 stays empty: a request that is not known believes what the pool does.
        self._counts: Floats = np.zeros((1, 2, max_kappa))  # accepted, reached
        self._weights: list[float] = [1.0]  # of the next round of each line
        self.answers: list[tuple[float, float]] = [(0.0, 0.0)]  # asked, given
        self._pool: Floats = np.zeros((2, max_kappa))
        self._pool_weight = 1.0
        self.pool_answers: tuple[float, float] = (0.0, 0.0)
        # The first k of a row of ones, for each k.
        self._first: Floats = np.tri(max_kappa + 1, max_kappa, -1)
        self._noted: list[tuple[int, int, int, float, float]] = []

    def note(self, request_id: str, drafted: int, accepted: int) -> None:
        """Keep a round until somebody asks."""
        line = self.lines.get(request_id)
        if line is None:
            line = self._fresh(request_id)
        memory, lasting = self._config.request_memory, self._config.pool_memory
        came = 1.0 if drafted else 0.0
        asked, given = self.answers[line]
        self.answers[line] = (asked * memory + 1.0, given * memory + came)
        asked, given = self.pool_answers
        self.pool_answers = (asked * lasting + 1.0, given * lasting + came)
        if not drafted:
            return
        weight = self._weights[line] = self._weights[line] / memory
        pooled = self._pool_weight = self._pool_weight / lasting
        reached = min(drafted, accepted + 1)
        self._noted.append((line, accepted, reached, weight, pooled))
        if weight > _LARGEST or pooled > _LARGEST:
            self._cut_weights()

    def count(self) -> None:
        """Count what was noted."""
        if not self._noted:
            return
        noted = np.asarray(self._noted)
        self._noted.clear()
        places = noted[:, 1:3].astype(np.intp)
        seen = self._first[places]  # (rounds, 2, max_kappa)
        np.add.at(self._counts, noted[:, 0].astype(np.intp), seen * noted[:, 3, None, None])
        self._pool += (noted[:, 4] @ seen.reshape(len(seen), -1)).reshape(self._pool.shape)

    def counts(self, lines: Sequence[int]) -> Floats:
        """Return accepted and reached drafts by depth, shape (B, 2, max_kappa)."""
        weights = np.asarray([self._weights[line] for line in lines])
        found: Floats = self._counts[lines] / weights[:, None, None]
        return found

    def pool(self) -> Floats:
        """Return accepted and reached drafts of all requests, shape (2, max_kappa)."""
        return self._pool / self._pool_weight

    def drop(self, request_id: str) -> None:
        """Free the line of a request that has one; what was noted must be counted."""
        line = self.lines.pop(request_id)
        self._counts[line] = 0.0
        self._weights[line], self.answers[line] = 1.0, (0.0, 0.0)
        self._free.append(line)

    def _fresh(self, request_id: str) -> int:
        if not self._free:
            held = len(self._weights)
            more = max(16, held)
            self._counts = np.pad(self._counts, ((0, more), (0, 0), (0, 0)))
            self._weights += [1.0] * more
            self.answers += [(0.0, 0.0)] * more
            self._free = list(range(held + more - 1, held - 1, -1))
        line = self.lines[request_id] = self._free.pop()
        return line

    def _cut_weights(self) -> None:
        self.count()
        self._pool /= self._pool_weight
        self._pool_weight = 1.0
        self._counts /= np.asarray(self._weights)[:, None, None]
        self._weights = [1.0] * len(self._weights)


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
        self._kinds: dict[int, _Kinds] = {}
        self._tables: dict[tuple[str, int], _Table] = {}

    def note(
        self, request_id: str, proposer: str, drafted: int, accepted: int, sign: int = UNTOLD
    ) -> None:
        """Note a round in which a drafter was asked.

        Parameters
        ----------
        request_id, proposer : str
            The request, and who was asked.
        drafted, accepted : int
            Drafts that came, at most ``max_kappa``, and those that survived.
        sign : int, default -1
            What the drafter told beforehand.
        """
        self._table(proposer, sign).note(request_id, drafted, accepted)

    def fold(
        self, proposer: str, rounds: Mapping[str, tuple[int, int]], sign: int = UNTOLD
    ) -> None:
        """Count rounds in which a drafter was asked, one per request.

        Parameters
        ----------
        proposer : str
            Who was asked.
        rounds : mapping of str to (int, int)
            By request: drafts that came, and those that survived.
        sign : int, default -1
            What the drafter told beforehand.
        """
        for request_id, (drafted, accepted) in rounds.items():
            self.note(request_id, proposer, drafted, accepted, sign)

    def beliefs(
        self, request_ids: Sequence[str], proposer: str, sign: int = UNTOLD
    ) -> tuple[Floats, Floats]:
        """Return what requests may expect of a drafter.

        Parameters
        ----------
        request_ids : sequence of str, length B
            Requests; they need not be known.
        proposer : str
            The drafter; it need not be known either.
        sign : int, default -1
            What it told beforehand.

        Returns
        -------
        survival : ndarray of float64, shape (B, max_kappa)
            ``Pr(at least i drafts survive)`` when a draft comes.
        given : ndarray of float64, shape (B,)
            Probability that one comes when asked for; 1 where a sign was told.
        """
        table = self._table(proposer, sign)
        table.count()
        kinds = table.kinds
        live = list(table.lines.values())
        place = {line: number for number, line in enumerate(live)}
        lines = [table.lines.get(request_id, 0) for request_id in request_ids]
        weight = self.config.shrinkage_rounds
        # The lines that live, and last the empty one.
        counts = table.counts([*live, 0])
        fits = kinds.likelihoods(counts.sum(axis=2))
        common, shares = _common(fits[:-1], kinds.prior + table.past)
        # The others say how common a kind is; a request says of which kind it is itself.
        asked = [place.get(line, -1) for line in lines]
        own = np.concatenate((shares, np.zeros((1, _KINDS))))
        rates = kinds.rates((common - own[asked]) * fits[asked])
        rates *= self._by_depth(table, common)
        accepted, reached = counts[asked].transpose(1, 0, 2)
        np.minimum(rates, _HIGHEST, out=rates)
        survival = np.cumprod((accepted + weight * rates) / (reached + weight), axis=1)
        if sign != UNTOLD:
            return survival, np.ones(len(lines))
        pool_asked, pool_came = table.pool_answers
        hoped = weight * (pool_came + weight) / (pool_asked + weight)
        answers = [table.answers[line] for line in lines]
        given = np.asarray([(came + hoped) / (asks + weight) for asks, came in answers])
        return survival, given

    def release(self, request_id: str) -> None:
        """Forget a request; what it taught the pool stays.

        Parameters
        ----------
        request_id : str
            Unknown names are ignored.
        """
        for table in self._tables.values():
            line = table.lines.get(request_id)
            if line is None:
                continue
            table.count()
            live = list(table.lines.values())
            counts = table.counts(live).sum(axis=2)
            if counts[live.index(line), 1] > 0.0:
                start = table.kinds.prior + table.past
                _, shares = _common(table.kinds.likelihoods(counts), start)
                table.past = table.past * self.config.pool_memory + shares[live.index(line)]
            table.drop(request_id)

    def reset(self) -> None:
        """Forget everything."""
        self._tables.clear()

    def _table(self, proposer: str, sign: int) -> _Table:
        table = self._tables.get((proposer, sign))
        if table is None:
            kinds = self._kinds.get(sign)
            if kinds is None:
                kinds = self._kinds[sign] = _Kinds(*self.config.prior(sign), self.max_kappa)
            table = self._tables[proposer, sign] = _Table(kinds, self.config, self.max_kappa)
        return table

    def _by_depth(self, table: _Table, common: Floats) -> list[float]:
        """Return what the pool showed at each depth, relative to what its kinds predict.

        A depth that was never reached is believed to be like the one before it.
        """
        weight = self.config.shrinkage_rounds
        accepted, reached = table.pool()
        hoped = table.kinds.rates(common[None, :])[0] * reached
        found, before = [], 1.0
        for expected, kept in zip(hoped.tolist(), accepted.tolist(), strict=True):
            before = (kept + weight * before) / (expected + weight)
            found.append(before)
        return found


def _common(fits: Floats, start: Floats) -> tuple[Floats, Floats]:
    """Return how common kinds are, in requests, and what share of each kind a line is.

    A few steps of expectation and maximisation, from the prior, which counts as one
    request. A line that showed nothing is of no kind.
    """
    seen = (fits.min(axis=1, keepdims=True) < 1.0) if len(fits) else fits
    common, shares = start, np.zeros_like(fits)
    for _ in range(_STEPS if len(fits) > 1 else 2 * len(fits)):
        shares = common * fits
        shares *= seen / shares.sum(axis=1, keepdims=True)
        common = start + shares.sum(axis=0)
    return common, shares
