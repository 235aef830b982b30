"""What followed the matching places: the draft that they vote for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftproof.proposers._contexts import ContextMatch

__all__ = ["DOUBT", "follow"]

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
    for step in range(kappa):
        votes: dict[int, list[int]] = {}
        for place in places:
            token = token_at(place + step, drafted)
            if token is not None:
                votes.setdefault(token, []).append(place)
        if not votes:
            break
        best = max(votes, key=lambda token: (len(votes[token]), max(votes[token])))
        length, total = match.length + step, sum(map(len, votes.values()))
        score *= length * len(votes[best]) / (length * total + DOUBT)
        if score < least_score:
            break
        drafted.append(best)
        places = tuple(votes[best])
    return tuple(drafted)
