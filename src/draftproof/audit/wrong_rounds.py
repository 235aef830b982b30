"""Verification rounds with one piece exchanged: how engines get it wrong.

Each function writes a right rule out and lets the caller exchange one piece of it.
With nothing exchanged they are right, which the tests prove; what is left is what the
exchanged piece does. They work on laws of floats and of exact fractions alike.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from draftproof.audit.rounds import (
    Prefix,
    Round,
    RoundFunction,
    Tables,
    close,
    raced_draft,
    sampled_draft,
    shipped,
)
from draftproof.audit.table_law import bend, items_of, like, most_probable
from draftproof.core.law import Law
from draftproof.core.types import Draft
from draftproof.testing.fraction_law import FractionLaw

__all__ = [
    "block_round",
    "dropping_draft",
    "favourite_zeroed",
    "filtered",
    "filtered_draft",
    "greedy_round",
    "kept_tail_round",
    "no_bonus_round",
    "noisy_residual_round",
    "other_coin_draft",
    "phantom_round",
    "power",
    "timid_round",
    "token_round",
    "top_mass",
    "unclamped",
]

LawMap = Callable[[Law], Law]


def power(law: Law, exponent: float) -> Law:
    """Return a law at the temperature ``1 / exponent``."""
    return bend(law, lambda _, prob: prob**exponent)


def filtered(law: Law, count: int) -> Law:
    """Return a law cut to its most probable tokens."""
    kept = set(most_probable(law, count))
    return bend(law, lambda token, prob: prob if token in kept else 0)


def top_mass(law: Law, mass: float) -> Law:
    """Return a law cut to the smallest set of likely tokens that holds a mass."""
    kept: dict[int, Any] = {}
    total: Any = 0
    for token in most_probable(law, law.vocab_size):
        if kept and total >= mass:
            break
        kept[token] = law.prob(token)
        total += kept[token]
    return like(law, kept)


def _residual(p: Law, q: Law, token: int) -> Law:  # noqa: ARG001
    return p.residual(q)


def unclamped(p: Law, q: Law, token: int) -> Law:  # noqa: ARG001
    """Return the residual without its clamp, ``|p - q|``."""
    tokens = {token for law in (p, q) for token, prob in items_of(law) if prob > 0}
    return like(p, {token: abs(p.prob(token) - q.prob(token)) for token in tokens})


def favourite_zeroed(p: Law, q: Law, token: int) -> Law:  # noqa: ARG001
    """Return p without the drafter's favourite, as after a deterministic draft."""
    favourite = most_probable(q)[0]
    return bend(p, lambda other, prob: 0 if other == favourite else prob)


def token_round(
    *,
    propose: Callable[..., Draft] = sampled_draft,
    scored: LawMap = lambda q: q,
    judged: LawMap = lambda p: p,
    bonus: LawMap = lambda p: p,
    residual: Callable[[Law, Law, int], Law] = _residual,
    row: Callable[[int], int] = lambda j: j,
    bonus_row: Callable[[int], int] | None = None,
    first_checked: int = 0,
    lenience: Any = 1,
    accept_coin: Callable[[Any, int], Any] = lambda coins, i: coins.accept(i),
    residual_coin: Callable[[Any, int], Any] = lambda coins, i: coins.sample(i),
) -> RoundFunction:
    """Return the token rule with one piece exchanged.

    Parameters
    ----------
    propose : callable
        The drafter.
    scored : callable of Law
        What the verifier takes the drafter's law for.
    judged : callable of Law
        What it takes the target's law for, in ratio and residual.
    bonus : callable of Law
        What the bonus token is drawn from, given the target's law.
    residual : callable of (Law, Law, int)
        The law after a rejection, given p, q and the rejected token.
    row : callable of int
        Which row of target logits it reads for a position.
    bonus_row : callable of int, optional
        The same for the bonus; ``row`` when not given.
    first_checked : int, default 0
        Drafts before it are kept unseen.
    lenience : number, default 1
        Factor of q in the ratio.
    accept_coin : callable of (coins, int)
        The coin that accepts.
    residual_coin : callable of (coins, int)
        The coin that draws the residual.

    Returns
    -------
    RoundFunction
        The round.
    """
    last_row = row if bonus_row is None else bonus_row

    def play(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
        draft = propose(tables, context, kappa, coins)
        tokens, count = draft.token_ids, len(draft)

        def at(j: int) -> Law:
            return tables.target(context + tokens[:j])

        for i in range(first_checked, count):
            p = judged(at(row(i)))
            q = scored(tables.draft(context + tokens[:i]))
            if accept_coin(coins, i) * (lenience * q.prob(tokens[i])) < p.prob(tokens[i]):
                continue
            last = residual(p, q, tokens[i]).draw(residual_coin(coins, i))
            return close(context, tokens, i, last)
        last = bonus(at(last_row(count))).draw(coins.sample(count))
        return close(context, tokens, count, last)

    return play


def filtered_draft(cut: LawMap) -> Callable[..., Draft]:
    """Return the drafter that draws from a cut law but reports the whole one."""

    def propose(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Draft:
        narrow = Tables(
            tables.name,
            tables.vocab_size,
            tables.target,
            lambda prefix: cut(tables.draft(prefix)),
            tables.eos_token_ids,
        )
        return sampled_draft(narrow, context, kappa, coins)

    return propose


def dropping_draft(bar: float) -> Callable[..., Draft]:
    """Return the drafter that drops a token it drew because it is unlikely."""

    def propose(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Draft:
        draft = sampled_draft(tables, context, kappa, coins)
        laws = draft.laws or ()
        kept = 0
        while kept < kappa and laws[kept].prob(draft.token_ids[kept]) >= bar:
            kept += 1
        return Draft(draft.token_ids[:kept], laws[:kept], "dropping")

    return propose


def other_coin_draft(purpose: str) -> Callable[..., Draft]:
    """Return the drafter that draws with a coin that belongs to another purpose."""

    def propose(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Draft:
        tokens: Prefix = ()
        for i in range(kappa):
            tokens += (tables.draft(context + tokens).draw(getattr(coins, purpose)(i)),)
        return Draft(tokens, None, "wrong coin")

    return propose


def noisy_residual_round(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
    """Draft by racing noise, accept by the ratio, race the residual on the same noise."""
    draft = raced_draft(tables, context, kappa, coins)
    tokens, laws = draft.token_ids, draft.laws or ()
    for i, token in enumerate(tokens):
        p, q = tables.target(context + tokens[:i]), laws[i]
        if not coins.accept(i) * q.prob(token) < p.prob(token):
            noise = coins.noise(i, tables.vocab_size)
            return close(context, tokens, i, p.residual(q).race(noise))
    last = tables.target(context + tokens).draw(coins.sample(kappa))
    return close(context, tokens, kappa, last)


def kept_tail_round(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
    """Replace the rejected draft but keep the drafts after it."""
    played = shipped("standard")(tables, context, kappa, coins)
    draft = sampled_draft(tables, context, kappa, coins)
    emitted = played.emitted + draft.token_ids[played.num_accepted + 1 :]
    return Round(emitted, context + emitted, played.num_accepted)


def phantom_round(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
    """Emit the recovered token but leave the rejected one in the history."""
    played = shipped("standard")(tables, context, kappa, coins)
    draft = sampled_draft(tables, context, kappa, coins)
    if played.num_accepted == kappa:
        return played
    kept = context + draft.token_ids[: played.num_accepted + 1]
    return Round(played.emitted, kept, played.num_accepted)


def no_bonus_round(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
    """End the round after full acceptance: right law, one token short."""
    played = shipped("standard")(tables, context, kappa, coins)
    if played.num_accepted < kappa:
        return played
    return Round(played.emitted[:-1], played.context[:-1], kappa)


def timid_round(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
    """Accept by drawing and comparing although the ratio rule was promised."""
    return shipped("sample-match")(tables, context, kappa, coins)


def greedy_round(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
    """Verify greedily at a temperature above 0: every emitted token is the target's best."""
    draft = sampled_draft(tables, context, kappa, coins)
    for i, token in enumerate(draft.token_ids):
        best = most_probable(tables.target(context + draft.token_ids[:i]))[0]
        if token != best:
            return close(context, draft.token_ids, i, best)
    best = most_probable(tables.target(context + draft.token_ids))[0]
    return close(context, draft.token_ids, kappa, best)


def block_round(
    *,
    stop_at_failure: bool = False,
    token_residual: bool = False,
    weight_as_bar: bool = False,
    padded: bool = False,
    coin: Callable[[Any, int], Any] = lambda coins, i: coins.accept(i),
) -> RoundFunction:
    """Return block verification with one piece exchanged.

    Parameters
    ----------
    stop_at_failure : bool, default False
        Keep what stands before the first failure, not up to the last success.
    token_residual : bool, default False
        Draw from ``(p - q)+``, not from ``(P p - q)+``.
    weight_as_bar : bool, default False
        Take ``P_i`` for ``h_i``.
    padded : bool, default False
        Judge one position past the last draft, where the buffer holds padding.
    coin : callable of (coins, int)
        The coin of a prefix.

    Returns
    -------
    RoundFunction
        The round.
    """

    def play(tables: Tables, context: Prefix, kappa: int, coins: Any) -> Round:
        draft = sampled_draft(tables, context, kappa, coins)
        tokens, laws = draft.token_ids, draft.laws or ()

        def at(j: int) -> Law:
            return tables.target(context + tokens[:j])

        one: Any = Fraction(1) if isinstance(at(0), FractionLaw) else 1.0
        weights: list[Any] = [one]
        for i, token in enumerate(tokens):
            weights.append(min(one, weights[-1] * (at(i).prob(token) / laws[i].prob(token))))

        def after(i: int) -> Law:
            # What id -1 reads out of a buffer: the last token of the vocabulary.
            return laws[i] if i < kappa else like(at(kappa), {tables.vocab_size - 1: one})

        last = kappa if padded else kappa - 1
        kept = 0
        for i in range(1, kappa + 1):
            bar = weights[i]
            if i <= last and not weight_as_bar:
                mass = at(i).residual_mass(after(i), bar)
                bar = mass / (mass + one - bar) if mass + one - bar else one
            if coin(coins, i - 1) < bar:
                kept = i
            elif stop_at_failure:
                break
        if kept == kappa and not padded:
            return close(context, tokens, kept, at(kept).draw(coins.sample(kept)))
        scale = 1 if token_residual else weights[kept]
        law = at(kept).residual(after(kept), scale)
        return close(context, tokens, kept, law.draw(coins.sample(kept)))

    return play
