"""What followed the matching places: the draft that they vote for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from draftproof.proposers._contexts import ContextMatch

__all__ = ["DOUBT", "Continuation", "follow"]

#: Matching tokens that count as much evidence against a vote as one vote in its favour.
#: A match of this length that stands alone is trusted at one half.
DOUBT = 2.5


@dataclass(frozen=True, slots=True)
class Continuation:
    """Tokens that followed, and how much they are trusted.

    Parameters
    ----------
    token_ids : tuple of int
        The tokens.
    scores : tuple of float
        For each token, a guess at the probability that it and all before it are
        right. A heuristic, not a law: no token was drawn from it.
    """

    token_ids: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()


def follow(
    match: ContextMatch,
    token_at: Callable[[int, Sequence[int]], int | None],
    kappa: int,
    least_score: float,
) -> Continuation:
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
    Continuation
        The draft and its scores, possibly empty.
    """
    drafted: list[int] = []
    scores: list[float] = []
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
        scores.append(score)
        places = tuple(votes[best])
    return Continuation(tuple(drafted), tuple(scores))
