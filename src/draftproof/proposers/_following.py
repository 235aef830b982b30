"""What followed the matching places: the draft that they vote for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof.proposers._contexts import ContextMatch

__all__ = ["DOUBT", "first_score", "follow"]

#: Length of a match that is trusted at one half when it stands alone.
DOUBT = 2.5


def follow(
    match: ContextMatch,
    token_at: Callable[[int, Sequence[int]], int | None],
    kappa: int,
    least_score: float,
) -> tuple[int, ...]:
    """Follow the places of a match, token by token, while they are trusted.

    At each token the places vote with what stands there. The token with most votes is
    taken, the one seen last among equals: text drifts, so the newest use is the better
    guess. Places that said otherwise drop out. With V votes of N places that match M
    tokens the token is trusted at ``M V / (M N + DOUBT)``; the match grows by one with
    every token taken, and what is trusted multiplies up to the score of the draft.

    Parameters
    ----------
    match : ContextMatch
        The places.
    token_at : callable of (int, sequence of int)
        The token at a place, given what was drafted so far; None past the end of a text.
    kappa : int
        Most tokens.
    least_score : float
        The draft ends before the first token whose score is below this.

    Returns
    -------
    tuple of int
        The draft, possibly empty.
    """
    drafted: list[int] = []
    places, score = match.places, 1.0
    for _ in range(kappa):
        token, trust, places = _next(places, match.length, token_at, drafted)
        score *= trust
        if token is None or score < least_score:
            break
        drafted.append(token)
    return tuple(drafted)


def first_score(match: ContextMatch, token_at: Callable[[int, Sequence[int]], int | None]) -> float:
    """Return the score of the first token that `follow` would take.

    Parameters
    ----------
    match : ContextMatch
        The places.
    token_at : callable of (int, sequence of int)
        The token at a place, given what was drafted so far; None past the end of a text.

    Returns
    -------
    float
        0 where nothing follows.
    """
    return _next(match.places, match.length, token_at, ())[1]


def _next(
    places: Sequence[int],
    matched: int,
    token_at: Callable[[int, Sequence[int]], int | None],
    drafted: Sequence[int],
) -> tuple[int | None, float, tuple[int, ...]]:
    """Return the token that most places vote for, how far it is trusted, and those places."""
    step = len(drafted)
    votes: dict[int, list[int]] = {}
    for place in places:
        token = token_at(place + step, drafted)
        if token is not None:
            votes.setdefault(token, []).append(place)
    if not votes:
        return None, 0.0, ()
    best = max(votes, key=lambda token: (len(votes[token]), max(votes[token])))
    length, total = matched + step, sum(map(len, votes.values()))
    return best, length * len(votes[best]) / (length * total + DOUBT), tuple(votes[best])
