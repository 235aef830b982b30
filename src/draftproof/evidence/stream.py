"""The audit of one long text over a full vocabulary, token by token.

The reference model is forced along the emitted text. At every position bets are made
that have mean 1 if the token follows the reference law p:

* towards and away from the drafter's law q: ``1 + b (v(z) - E_p[v])`` with
  ``v = min(q / p, c) / c`` and ``|b| <= 1``. Every fault of a verifier tilts the text
  towards or away from the drafter;
* towards p at another temperature, ``v = min(p_T / p, c) / c``.

The wealth of a mixture of bettors is the evidence. It may be looked at after every
token: by Ville's inequality it ever reaches 1/alpha with a probability of at most
alpha. No prompt has to be repeated, and no conditioning on acceptance takes place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from draftproof.errors import ConfigError
from draftproof.evidence.fixed_budget import check_alpha

__all__ = ["StreamAudit", "StreamBets"]


@dataclass(frozen=True, slots=True)
class StreamBets:
    """Which bets are made.

    Parameters
    ----------
    caps : tuple of float
        Largest ratio q / p that counts; above 1.
    stakes : tuple of float
        Shares of the wealth that are put at risk on either side; inside (0, 1).
    temperatures : tuple of float
        Temperatures relative to the reference law, not 1.
    ratio_cap : float
        Largest ratio of a temperature bet.
    tolerance : float
        Largest total variation, per token, that numeric noise may cause; a bias up to
        it raises no alarm.
    """

    caps: tuple[float, ...] = (2.0, 5.0)
    stakes: tuple[float, ...] = (0.05, 0.2, 0.5, 0.9)
    temperatures: tuple[float, ...] = (0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.5, 2.0)
    ratio_cap: float = 4.0
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        """Refuse bets that could lose more than everything."""
        if not all(cap > 1 for cap in (*self.caps, self.ratio_cap)):
            raise ConfigError(f"caps {self.caps}, {self.ratio_cap}: expected numbers above 1")
        if not all(0 < stake < 1 for stake in self.stakes):
            raise ConfigError(f"stakes {self.stakes}: expected numbers inside (0, 1)")
        if not all(value > 0 and value != 1 for value in self.temperatures):
            raise ConfigError(f"temperatures {self.temperatures}: expected positive, not 1")
        if not 0 <= self.tolerance < 1:
            raise ConfigError(f"tolerance {self.tolerance}: expected a TV in [0, 1)")

    @property
    def log_weights(self) -> NDArray[np.float64]:
        """Logarithms of the shares of the bettors: half on q, half on temperatures."""
        on_q = 2 * len(self.caps) * len(self.stakes)
        on_t = len(self.temperatures)
        groups = (on_q > 0) + (on_t > 0)
        sizes = [on_q] * on_q + [on_t] * on_t
        return -np.log(np.array(sizes, dtype=np.float64) * groups)

    def log_factors(
        self,
        target_probs: NDArray[np.floating],
        draft_probs: NDArray[np.floating] | None,
        token_ids: NDArray[np.integer],
    ) -> NDArray[np.float64]:
        """Return what every bettor gains or loses at every position.

        Parameters
        ----------
        target_probs : ndarray of float, shape (T, V)
            Reference law of each position, given the emitted text before it.
        draft_probs : ndarray of float, shape (T, V), optional
            The drafter's law there, one-hot for a deterministic draft; a row of zeros
            where nothing was drafted. None if no law is known.
        token_ids : ndarray of int, shape (T,)
            The emitted tokens.

        Returns
        -------
        ndarray of float64, shape (T, S)
            Logarithms of the factors, in the order of `log_weights`.
        """
        p = np.asarray(target_probs, dtype=np.float64)
        at = np.arange(len(p))
        chosen = np.maximum(p[at, token_ids], 1e-300)
        on_q = self.log_factors_on_drafter(self.gaps(p, draft_probs, token_ids))
        factors = []
        with np.errstate(divide="ignore"):
            logs = np.log(p)
        for temperature in self.temperatures:
            bent = np.exp((logs - logs.max(axis=1, keepdims=True)) / temperature)
            bent /= bent.sum(axis=1, keepdims=True)
            gap = _gap(p, bent, chosen, bent[at, token_ids], self.ratio_cap)
            # The whole likelihood ratio where no cap binds: 1 + cap * gap = p_T / p.
            factor = np.maximum(1 + self.ratio_cap * gap, 0.0)
            factors.append(factor / (1 + self.ratio_cap * self.tolerance))
        if not factors:
            return on_q
        with np.errstate(divide="ignore"):
            on_t = np.log(np.stack(factors, axis=1))
        found: NDArray[np.float64] = np.concatenate([on_q, on_t], axis=1)
        return found

    def gaps(
        self,
        target_probs: NDArray[np.floating],
        draft_probs: NDArray[np.floating] | None,
        token_ids: NDArray[np.integer],
    ) -> NDArray[np.float64]:
        """Return what the bets on the drafter's law turn on.

        Parameters
        ----------
        target_probs : ndarray of float, shape (T, V)
            See `log_factors`.
        draft_probs : ndarray of float, shape (T, V), optional
            See there.
        token_ids : ndarray of int, shape (T,)
            The tokens.

        Returns
        -------
        ndarray of float64, shape (T, C)
            For each cap ``v(z) - E_p[v]``, between -1 and 1.
        """
        p = np.asarray(target_probs, dtype=np.float64)
        if draft_probs is None or not self.caps:
            return np.zeros((len(p), len(self.caps)))
        q = np.asarray(draft_probs, dtype=np.float64)
        at = np.arange(len(p))
        p_at, q_at = np.maximum(p[at, token_ids], 1e-300), q[at, token_ids]
        return np.stack([_gap(p, q, p_at, q_at, cap) for cap in self.caps], axis=1)

    def log_factors_on_drafter(self, gaps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the bettors on the drafter's law gain or lose.

        Parameters
        ----------
        gaps : ndarray of float64, shape (T, C)
            What `gaps` gave.

        Returns
        -------
        ndarray of float64, shape (T, 2 * C * S)
            Logarithms of the factors of S stakes on either side, cap by cap.
        """
        stakes = np.array([side * stake for stake in self.stakes for side in (1, -1)])
        slack = 1 + np.abs(stakes) * self.tolerance
        factors = (1 + gaps[:, :, None] * stakes) / slack
        found: NDArray[np.float64] = np.log(factors).reshape(len(gaps), -1)
        return found


def _gap(
    p: NDArray[np.float64],
    other: NDArray[np.float64],
    p_at: NDArray[np.float64],
    other_at: NDArray[np.float64],
    cap: float,
) -> NDArray[np.float64]:
    """Return ``v(z) - E_p[v]`` for ``v = min(other / p, cap) / cap``, between -1 and 1."""
    mean = np.minimum(other, cap * p).sum(axis=1) / cap
    gap: NDArray[np.float64] = np.minimum(other_at / p_at, cap) / cap - mean
    return gap


class StreamAudit:
    """The wealth of the bettors along one or more texts.

    Parameters
    ----------
    bets : StreamBets
        The bets.
    alpha : float, default 0.001
        False-alarm rate over the whole life of the audit.
    """

    def __init__(self, bets: StreamBets | None = None, alpha: float = 1e-3) -> None:
        check_alpha(alpha)
        self.bets = StreamBets() if bets is None else bets
        self.alpha = alpha
        self._log_weights = self.bets.log_weights
        self._log_wealth = np.zeros(len(self._log_weights))
        #: Tokens seen.
        self.num_tokens = 0
        #: Tokens whose reference probability was 0.
        self.num_impossible = 0
        #: Logarithm of the highest evidence so far.
        self.log_peak = 0.0
        #: Tokens seen when the alarm went on; None while it is off.
        self.alarmed_at: int | None = None

    @property
    def is_alarmed(self) -> bool:
        """Whether the evidence ever reached 1/alpha."""
        return self.alarmed_at is not None

    @property
    def log_wealth(self) -> NDArray[np.float64]:
        """Logarithm of the wealth of every bettor, in the order of the weights."""
        return self._log_wealth.copy()

    @property
    def log_e(self) -> float:
        """Logarithm of the evidence now."""
        if self.num_impossible:
            return math.inf
        return float(logsumexp(self._log_weights + self._log_wealth))

    def add(
        self,
        target_probs: NDArray[np.floating],
        draft_probs: NDArray[np.floating] | None,
        token_ids: ArrayLike | Sequence[int],
    ) -> bool:
        """Add the next positions of the text, in order.

        Parameters
        ----------
        target_probs : ndarray of float, shape (T, V)
            See `StreamBets.log_factors`. A row that sums to 1 only up to rounding is
            taken as it is; use ``tolerance`` for what the model's kernels round.
        draft_probs : ndarray of float, shape (T, V), optional
            See there.
        token_ids : array_like of int, shape (T,)
            The emitted tokens.

        Returns
        -------
        bool
            Whether the alarm is on; it stays on.
        """
        tokens = np.asarray(token_ids, dtype=np.int64)
        if target_probs.ndim != 2 or tokens.shape != target_probs.shape[:1]:
            msg = f"laws of shape {target_probs.shape} for {tokens.shape} tokens: expected (T, V)"
            raise ConfigError(msg)
        if draft_probs is not None and draft_probs.shape != target_probs.shape:
            msg = f"draft laws of shape {draft_probs.shape}: expected {target_probs.shape}"
            raise ConfigError(msg)
        if not len(tokens):
            return self.is_alarmed
        impossible = target_probs[np.arange(len(tokens)), tokens] <= 0
        self.num_impossible += int(impossible.sum())
        path = self._log_wealth + np.cumsum(
            self.bets.log_factors(target_probs, draft_probs, tokens), axis=0
        )
        self._log_wealth = path[-1]
        evidence = logsumexp(self._log_weights + path, axis=1)
        evidence[np.cumsum(impossible) > 0] = np.inf
        self.log_peak = max(self.log_peak, float(evidence.max()))
        over = np.flatnonzero(evidence >= -math.log(self.alpha))
        if self.alarmed_at is None and len(over):
            self.alarmed_at = self.num_tokens + int(over[0]) + 1
        self.num_tokens += len(tokens)
        return self.is_alarmed
