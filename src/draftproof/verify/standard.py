"""Token-by-token speculative sampling.

Leviathan et al., 2211.17192, algorithm 1; Chen et al., 2302.01318, algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict
from draftproof.verify.draft_laws import claimed_prob, draft_law

__all__ = ["verify_standard"]


def verify_standard(draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
    """Accept drafts one by one with probability min(1, p / q); stop at the first no.

    Parameters
    ----------
    draft : Draft
        K drafts, at least one.
    law_at : callable of int
        Target law after ``j`` drafts; called for ``0 .. num_accepted`` only.
    coins : RoundCoins
        ``accept(i)`` decides draft ``i``, ``sample(i)`` draws what follows.

    Returns
    -------
    Verdict
        After a rejection the token is drawn from the residual (p - q)+, after K
        acceptances from p.

    Notes
    -----
    The comparison ``u * q < p`` is strict, so a token without target mass is
    refused at ``u = 0`` too, and where p is at least q no coin can refuse. Bounds of p
    are asked for first: they decide most coins, and never otherwise than p would.
    """
    for i, token in enumerate(draft.token_ids):
        target = law_at(i)
        proposal = draft_law(draft, i, target.vocab_size)
        low, high = target.prob_range(token)
        draft_prob = claimed_prob(draft, i, proposal)
        if low >= draft_prob:
            continue
        point = coins.accept(i) * draft_prob
        if point < low:
            continue
        # Between the bounds only the probability itself can tell.
        if low < high and point < high and point < target.prob(token):
            continue
        return Verdict(i, target.residual(proposal).draw(coins.sample(i)), "recovered")
    last = len(draft)
    return Verdict(last, law_at(last).draw(coins.sample(last)), "bonus")
