"""Sample and match: draw from the target, keep the draft where it is equal.

Exact whatever the drafter, because every emitted token is a fresh draw of the
target; only fewer drafts survive than under the ratio rule.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict

__all__ = ["verify_sample_match"]


def verify_sample_match(draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
    """Emit the target's own draw at each position while the draft equals it.

    Parameters
    ----------
    draft : Draft
        K drafts, at least one; independent of the ``sample`` coins.
    law_at : callable of int
        Target law after ``j`` drafts; called for ``0 .. num_accepted`` only.
    coins : RoundCoins
        ``sample(i)`` draws the token at offset ``i``.

    Returns
    -------
    Verdict
        The same text as plain decoding with the same coins, for any drafter.
    """
    for i, token in enumerate(draft.token_ids):
        drawn = law_at(i).draw(coins.sample(i))
        if drawn != token:
            return Verdict(i, drawn, "recovered")
    last = len(draft)
    return Verdict(last, law_at(last).draw(coins.sample(last)), "bonus")
