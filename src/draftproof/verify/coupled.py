"""Shared noise: the emitted text is a function of the seed, whatever the drafter.

Daliri, Musco and Suresh, 2408.07978, algorithm 2, with exponential noise in place
of Gumbel noise (the same race, one logarithm less).
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict

__all__ = ["race_token", "verify_coupled"]


def race_token(law: Law, coins: RoundCoins, i: int, guess: int | None = None) -> int:
    """Return the winner of the race at offset ``i``.

    Parameters
    ----------
    law : Law
        The racing law.
    coins : RoundCoins
        Provides ``noise(i, V)``; not asked when one token is certain.
    i : int
        Offset in the round.
    guess : int, optional
        The draft there, 0 or more. Right or wrong, it changes no winner.

    Returns
    -------
    int
        The token.
    """
    if law.is_one_hot:
        return law.draw(0.0)
    noise = coins.noise(i, law.vocab_size)
    return law.race(noise) if guess is None else law.race_beside(noise, guess)


def verify_coupled(draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
    """Emit the target's winner of each race while the draft equals it.

    Parameters
    ----------
    draft : Draft
        K drafts, at least one. A drafter that races its own law over the same noise
        agrees most often; any other drafter is lawful too.
    law_at : callable of int
        Target law after ``j`` drafts; called for ``0 .. num_accepted`` only.
    coins : RoundCoins
        ``noise(i, V)`` belongs to the absolute position.

    Returns
    -------
    Verdict
        Every emitted token is the target's own winner at its position.

    Notes
    -----
    The laws of the drafts are not used. Exactness: the token at a position is the
    race of p over the noise of that position, and which prefix it follows depends
    on the noise of earlier positions only.
    """
    for i, token in enumerate(draft.token_ids):
        winner = race_token(law_at(i), coins, i, token)
        if winner != token:
            return Verdict(i, winner, "recovered")
    last = len(draft)
    return Verdict(last, race_token(law_at(last), coins, last), "bonus")
