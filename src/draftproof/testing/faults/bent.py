"""Laws made from laws: what a wrong engine computes in place of the right one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftproof.core.law import DenseLaw, Law, OneHotLaw

__all__ = ["best_only", "heated", "law_of", "top_k", "top_p", "unclamped", "without"]


def law_of(weights: np.ndarray[tuple[int], np.dtype[np.float64]], otherwise: Law) -> Law:
    """Return the law of some weights, or another law where they sum to 0."""
    return DenseLaw(weights) if weights.sum() > 0 else otherwise


def heated(temperature: float) -> Callable[[Law], Law]:
    """Return the map of a law to the same law at another temperature."""
    return lambda law: DenseLaw(law.dense() ** (1 / temperature))


def best_only(law: Law) -> Law:
    """Return the law that is certain of the most probable token."""
    return OneHotLaw(int(law.dense().argmax()), law.vocab_size)


def top_k(count: int) -> Callable[[Law], Law]:
    """Return the map of a law to its ``count`` most probable tokens."""

    def cut(law: Law) -> Law:
        probs = law.dense()
        probs[np.argsort(-probs, kind="stable")[count:]] = 0.0
        return DenseLaw(probs)

    return cut


def top_p(mass: float) -> Callable[[Law], Law]:
    """Return the map of a law to the fewest tokens that hold a mass."""

    def cut(law: Law) -> Law:
        probs = law.dense()
        order = np.argsort(-probs, kind="stable")
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= mass]] = 0.0
        return DenseLaw(probs)

    return cut


def without(law: Law, token: int) -> Law:
    """Return a law without one token; the law itself where that was certain."""
    probs = law.dense()
    probs[token] = 0.0
    return law_of(probs, law)


def unclamped(p: Law, q: Law, token: int) -> Law:
    """Return the residual without its clamp, ``|p - q|``."""
    del token
    return law_of(np.abs(p.dense() - q.dense()), p)
