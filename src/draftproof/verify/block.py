"""Block verification: all drafts of a round are judged together.

Sun et al., 2403.10444, algorithm 2. Never fewer accepted drafts in expectation
than token-by-token verification, and the same law.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict
from draftproof.verify.draft_laws import claimed_prob, draft_law
from draftproof.verify.no_law import NoLawError

__all__ = ["verify_block"]


def verify_block(draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
    """Keep the longest prefix whose own coin says yes.

    Parameters
    ----------
    draft : Draft
        K drafts, at least one.
    law_at : callable of int
        Target law after ``j`` drafts; not called past the first draft that the
        target cannot emit, and for ``K`` only if all drafts survive.
    coins : RoundCoins
        ``accept(i)`` decides the prefix that ends with draft ``i``, ``sample(i)``
        draws what follows.

    Returns
    -------
    Verdict
        ``num_accepted`` is the last success, not the first failure.

    Notes
    -----
    With P_0 = 1 and P_i = min(1, P_{i-1} p(x_i) / q(x_i)), prefix i survives if its
    coin is below h_i, where h_K = P_K and otherwise

        R_i = sum_x (P_i p(x | x^i) - q(x | x^i))+,   h_i = R_i / (R_i + 1 - P_i),

    and the token after prefix i < K comes from the law of that excess. Prefixes are
    asked from the longest down, so the excess is summed only where it decides:
    h_i = 1 where P_i = 1 (also for 0 / 0), and h_i is at most P_i as R_i is.

    Whether prefix i survives depends on drafts that come after it. The drafts that
    were thrown away are therefore not independent of the outcome, and their coins
    must not be used again: ``draft`` and ``accept`` coins are keyed by the round,
    see `draftproof.core.rng`.

    Where the target has no law after a prefix, that prefix is the last: whether there is
    one depends on the prefix alone, so this is a shorter draft like any other.
    """
    # weights[i] is P_i; targets[i] and proposals[i] are the laws after prefix i.
    weights: list[float] = [1]
    targets: list[Law] = []
    proposals: list[Law] = []
    last = len(draft)
    for i, token in enumerate(draft.token_ids):
        try:
            target = law_at(i)
        except NoLawError:
            if i == 0:
                raise
            last = i
            break
        proposal = draft_law(draft, i, target.vocab_size)
        draft_prob = claimed_prob(draft, i, proposal)
        targets.append(target)
        proposals.append(proposal)
        weight = min(1, weights[i] * (target.prob(token) / draft_prob))
        if not weight > 0:
            break
        weights.append(weight)
    for i in range(len(weights) - 1, 0, -1):
        weight = weights[i]
        if weight < 1:
            coin = coins.accept(i - 1)
            if not coin < weight:
                continue
            if i < last:
                mass, residual = targets[i].residual_with_mass(proposals[i], weight)
                if not coin < mass / (mass + (1 - weight)):
                    continue
                return Verdict(i, residual.draw(coins.sample(i)), "recovered")
        if i == last:
            return Verdict(last, law_at(last).draw(coins.sample(last)), "bonus")
        return Verdict(i, targets[i].residual(proposals[i]).draw(coins.sample(i)), "recovered")
    return Verdict(0, targets[0].residual(proposals[0]).draw(coins.sample(0)), "recovered")
