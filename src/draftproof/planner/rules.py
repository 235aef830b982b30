"""Acceptance of each exact rule, from laws or from logged ratios.

Each rule has its own formula. Pricing sample-and-match with ``sum min(p, q)``, or
deterministic drafts with the law they were taken from, is an error of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.errors import ConfigError
from draftproof.planner.acceptance import SurvivalCurve

__all__ = [
    "block_survival",
    "coupled_acceptance",
    "one_hot_acceptance",
    "overlap_at_temperature",
    "sample_match_acceptance",
    "survival_from_ratios",
    "token_acceptance",
]

Floats = NDArray[np.float64]
#: Most texts that `block_survival` enumerates.
MAX_TEXTS = 2_000_000


def token_acceptance(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Return the acceptance of the token rule at one position.

    Parameters
    ----------
    target_probs, draft_probs : array_like, shape (V,)
        The laws p and q.

    Returns
    -------
    float
        ``sum min(p, q) = 1 - TV(p, q)`` (2211.17192, theorem 3.5).
    """
    p, q = _laws(target_probs, draft_probs)
    return float(np.minimum(p, q).sum())


def sample_match_acceptance(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Return the acceptance of sample-and-match, ``sum p q``.

    Parameters
    ----------
    target_probs, draft_probs : array_like, shape (V,)
        The laws p and q; q one-hot for deterministic drafts.

    Returns
    -------
    float
        Probability that an independent draw of the target equals the draft.
    """
    p, q = _laws(target_probs, draft_probs)
    return float(p @ q)


def one_hot_acceptance(target_probs: ArrayLike, token: int) -> float:
    """Return the acceptance of a deterministic draft, ``p(token)``.

    Parameters
    ----------
    target_probs : array_like, shape (V,)
        The law p.
    token : int
        The drafted token.

    Returns
    -------
    float
        The same under every exact rule.
    """
    return float(np.asarray(target_probs, dtype=np.float64)[token])


def coupled_acceptance(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Return the acceptance of shared noise, for which drafts are races over it.

    Parameters
    ----------
    target_probs, draft_probs : array_like, shape (V,)
        The laws p and q.

    Returns
    -------
    float
        ``sum over x of 1 / sum over y of max(p_y / p_x, q_y / q_x)`` over tokens
        that both laws allow (2408.07978, section 3).

    Notes
    -----
    Time O(V^2).
    """
    p, q = _laws(target_probs, draft_probs)
    both = np.flatnonzero((p > 0) & (q > 0))
    return float(sum(1.0 / np.maximum(p / p[x], q / q[x]).sum() for x in both))


def overlap_at_temperature(
    target_logits: ArrayLike, draft_logits: ArrayLike, temperature: float
) -> float:
    """Return the token rule's acceptance when both laws are heated alike.

    Parameters
    ----------
    target_logits, draft_logits : array_like, shape (V,)
        Raw logits.
    temperature : float
        Above 0.

    Returns
    -------
    float
        ``sum min(softmax(a / T), softmax(b / T))``. It need not fall with T.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature {temperature}: expected a number above 0")
    laws = []
    for logits in (target_logits, draft_logits):
        scaled = np.asarray(logits, dtype=np.float64) / temperature
        weights = np.exp(scaled - scaled.max())
        laws.append(weights / weights.sum())
    return token_acceptance(*laws)


def survival_from_ratios(ratios: ArrayLike, rule: str) -> SurvivalCurve:
    """Estimate the survival of a rule from the ratios p / q of drafts that were drawn.

    Parameters
    ----------
    ratios : array_like, shape (R, K)
        ``p(x_i) / q(x_i)`` of R rounds of K drafts, each drawn from its q, whatever
        happened to the drafts before it.
    rule : {"standard", "block"}
        ``standard``: the mean product of ``min(1, r)``. ``block``: the mean of
        ``P_i = min(1, P_{i-1} r_i)``, since ``Pr(tau >= i) = E_q[P_i]`` (2403.10444).

    Returns
    -------
    SurvivalCurve
        So the gain of block verification is known without running it.

    Raises
    ------
    ConfigError
        If the rule has no such estimate.
    """
    table = np.asarray(ratios, dtype=np.float64)
    if table.ndim != 2 or not (table >= 0).all():
        raise ConfigError(f"ratios of shape {table.shape}; expected (rounds, drafts), 0 or more")
    if rule == "standard":
        kept = np.cumprod(np.minimum(table, 1.0), axis=1)
    elif rule == "block":
        kept = np.empty_like(table)
        running = np.ones(len(table))
        for place in range(table.shape[1]):
            running = np.minimum(1.0, running * table[:, place])
            kept[:, place] = running
        kept = np.minimum.accumulate(kept.mean(axis=0))[None, :]
    else:
        raise ConfigError(f"rule {rule!r}: expected 'standard' or 'block'")
    return SurvivalCurve(tuple(float(rate) for rate in kept.mean(axis=0)), "laws")


def block_survival(target_probs: ArrayLike, draft_probs: ArrayLike) -> SurvivalCurve:
    """Return the survival of block verification for laws that depend on the place alone.

    Parameters
    ----------
    target_probs, draft_probs : array_like, shape (K, V)
        The laws p and q of each position.

    Returns
    -------
    SurvivalCurve
        ``E_q[P_i]`` by enumeration.

    Raises
    ------
    ConfigError
        If more than two million drafts would have to be enumerated.
    """
    p = np.asarray(target_probs, dtype=np.float64)
    q = np.asarray(draft_probs, dtype=np.float64)
    if p.shape != q.shape or p.ndim != 2:
        raise ConfigError(f"laws of shapes {p.shape} and {q.shape}; expected (K, V) twice")
    if p.shape[1] ** p.shape[0] > MAX_TEXTS:
        raise ConfigError(f"{p.shape[1]}^{p.shape[0]} drafts: too many to enumerate")
    weight, kept = np.ones(1), np.ones(1)
    rates = []
    for place in range(len(p)):
        drawn = q[place] > 0
        ratio = p[place][drawn] / q[place][drawn]
        kept = np.minimum(1.0, np.outer(kept, ratio)).ravel()
        weight = np.outer(weight, q[place][drawn]).ravel()
        rates.append(float(weight @ kept))
    return SurvivalCurve(tuple(rates), "laws")


def _laws(target_probs: ArrayLike, draft_probs: ArrayLike) -> tuple[Floats, Floats]:
    p = np.asarray(target_probs, dtype=np.float64)
    q = np.asarray(draft_probs, dtype=np.float64)
    if p.shape != q.shape or p.ndim != 1:
        raise ConfigError(f"laws of shapes {p.shape} and {q.shape}; expected (V,) twice")
    for name, law in (("target", p), ("draft", q)):
        if not (law >= 0).all() or abs(float(law.sum()) - 1.0) > 1e-6:
            raise ConfigError(f"{name} law sums to {law.sum()}; expected probabilities, sum 1")
    return p, q
