"""Dispatch of the rules for chains."""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict
from draftproof.errors import ConfigError, InvariantError
from draftproof.verify.allow_lossy import AllowLossy
from draftproof.verify.block import verify_block
from draftproof.verify.coupled import race_token, verify_coupled
from draftproof.verify.sample_match import verify_sample_match
from draftproof.verify.standard import verify_standard

__all__ = ["RULES", "plain_token", "verify"]

#: Names of the rules: token by token (2211.17192), block (2403.10444), shared noise
#: (2408.07978), and keeping drafts that equal a fresh draw of the target.
RULES = ("standard", "block", "coupled", "sample-match")


def verify(
    rule: str | AllowLossy, draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins
) -> Verdict:
    """Decide one row of one round.

    Parameters
    ----------
    rule : str or AllowLossy
        One of ``RULES``; or, by explicit opt-in, a rule that is not exact.
    draft : Draft
        K drafted tokens and the laws they were drawn from.
    law_at : callable of int
        ``law_at(j)`` is the target law after the first ``j`` drafts, for ``j`` in
        ``0 .. K``. Called at most once per position, and only for positions that
        the rule reaches.
    coins : RoundCoins
        The coins of this round.

    Returns
    -------
    Verdict
        The number of surviving drafts and the token after them.

    Raises
    ------
    ConfigError
        If the rule is unknown.
    InvariantError
        If a draft is outside the vocabulary, or has no mass under the law that the
        drafter claims to have drawn it from.
    """
    if isinstance(rule, AllowLossy):
        return _verify_lossy(rule, draft, law_at, coins)
    if rule not in RULES:
        raise ConfigError(f"rule {rule!r}: expected one of {', '.join(RULES)}")
    if not draft.token_ids:
        return Verdict(0, plain_token(rule, law_at(0), coins), "sampled")
    _refuse_negative(draft)
    if rule == "standard":
        return verify_standard(draft, law_at, coins)
    if rule == "block":
        return verify_block(draft, law_at, coins)
    if rule == "coupled":
        return verify_coupled(draft, law_at, coins)
    return verify_sample_match(draft, law_at, coins)


def _refuse_negative(draft: Draft) -> None:
    if min(draft.token_ids) < 0:
        raise InvariantError(f"drafts {draft.token_ids} of {draft.proposer}: expected ids >= 0")


def _verify_lossy(
    allowed: AllowLossy, draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins
) -> Verdict:
    if not draft.token_ids:
        return Verdict(0, plain_token("standard", law_at(0), coins), "sampled")
    _refuse_negative(draft)
    return allowed.rule.verify(draft, law_at, coins)


def plain_token(rule: str, law: Law, coins: RoundCoins) -> int:
    """Return the token of a round without drafts.

    Parameters
    ----------
    rule : str
        One of ``RULES``.
    law : Law
        The target law of the position.
    coins : RoundCoins
        The coins of this round.

    Returns
    -------
    int
        Drawn with ``sample(0)``; by the race over ``noise(0)`` for ``coupled``.
    """
    if law.is_one_hot:
        return law.draw(0.0)
    if rule == "coupled":
        return race_token(law, coins, 0)
    return law.draw(coins.sample(0))
