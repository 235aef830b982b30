"""Rounds over siblings with one piece exchanged: how engines get trees wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftproof.audit.rounds import Prefix, Round, RoundFunction, Tables
from draftproof.audit.table_law import bend
from draftproof.core.law import Law
from draftproof.core.siblings import law_without

__all__ = ["by_confidence", "sibling_round", "walk_round"]


def by_confidence(tokens: list[int], q: Law) -> list[int]:
    """Return siblings sorted by the drafter's confidence."""
    return sorted(tokens, key=lambda token: (-q.prob(token), token))


def sibling_round(
    count: int,
    *,
    redraw: bool = False,
    arrange: Callable[[list[int], Law], list[int]] = lambda tokens, q: tokens,  # noqa: ARG005
    drop: str = "after",
) -> RoundFunction:
    """Return recursive rejection over one level of siblings, with a piece exchanged.

    Parameters
    ----------
    count : int
        Siblings.
    redraw : bool, default False
        Draw with replacement.
    arrange : callable of (list of int, Law)
        Reorder or prune what was drawn.
    drop : str, default "after"
        When a rejected token leaves q: "after" the residual is right for draws without
        replacement, "never" for draws with.

    Returns
    -------
    RoundFunction
        The round.
    """

    def play(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:  # noqa: ARG001
        p, q = tables.target(context), tables.draft(context)
        drawn: list[int] = []
        left: Law | None = q
        while left is not None and len(drawn) < count:
            drawn.append(left.draw(coins.draft(len(drawn))))
            left = left if redraw else law_without(left, drawn[-1])
        current = q
        for j, token in enumerate(arrange(drawn, q)):
            if coins.accept(j) * current.prob(token) < p.prob(token):
                text = (*context, token)
                last = tables.target(text).draw(coins.sample(1))
                return Round((token, last), (*text, last), 1)
            if drop == "before":
                current = law_without(current, token) or current
            p = p.residual(current)
            if drop == "after":
                current = law_without(current, token) or current
        last = p.draw(coins.sample(0))
        return Round((last,), (*context, last), 0)

    return play


def walk_round(candidates: Callable[[Law, Any], list[int]]) -> RoundFunction:
    """Return the target-only walk as engines write it: sums over the candidates.

    Parameters
    ----------
    candidates : callable of (Law, coins)
        The siblings; right if none is listed twice.

    Returns
    -------
    RoundFunction
        The round.
    """

    def play(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:  # noqa: ARG001
        p = tables.target(context)
        tokens = candidates(tables.draft(context), coins)
        reached: Any = 0
        for token in tokens:
            reached += p.prob(token)
            if coins.accept(0) < reached:
                last = tables.target((*context, token)).draw(coins.sample(1))
                return Round((token, last), (*context, token, last), 1)
        rest = bend(p, lambda token, prob: 0 if token in tokens else prob)
        last = rest.draw(coins.sample(0))
        return Round((last,), (*context, last), 0)

    return play
