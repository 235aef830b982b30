"""The law each draft was drawn from, whatever form the drafter gave it in."""

from __future__ import annotations

from draftproof.core.law import Law, OneHotLaw
from draftproof.core.types import Draft
from draftproof.errors import InvariantError

__all__ = ["claimed_prob", "draft_law"]


def draft_law(draft: Draft, i: int, vocab_size: int) -> Law:
    """Return the law of draft ``i``; a deterministic draft is one-hot.

    Parameters
    ----------
    draft : Draft
        The draft.
    i : int
        Offset in the draft.
    vocab_size : int
        Number of token ids of the target.

    Returns
    -------
    Law
        Over the target's vocabulary.

    Raises
    ------
    InvariantError
        If a deterministic draft lies outside the vocabulary.
    """
    if draft.laws is None:
        return OneHotLaw(draft.token_ids[i], vocab_size)
    return draft.laws[i]


def claimed_prob(draft: Draft, i: int, law: Law) -> float:
    """Return the probability of draft ``i`` under its own law.

    Parameters
    ----------
    draft : Draft
        The draft.
    i : int
        Offset in the draft.
    law : Law
        What `draft_law` returned.

    Returns
    -------
    float
        Positive.

    Raises
    ------
    InvariantError
        If it is 0: such a token cannot have been drawn from that law.
    """
    prob = law.prob(draft.token_ids[i])
    if not prob > 0.0:
        msg = (
            f"draft {i} of {draft.proposer} is token {draft.token_ids[i]}: "
            f"expected a token of positive mass under its own law {law!r}"
        )
        raise InvariantError(msg)
    return prob
