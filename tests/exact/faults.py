"""Wrong rules that engines have shipped, each as a round of its own.

Every fault differs from a right round in one place. The tests ask two things: that
the checks which the shipped rules pass go red on each of them, and by how much.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from enumeration import (
    Prefix,
    Round,
    RoundFunction,
    TableModel,
    argmax_draft,
    close,
    raced_draft,
    sampled_draft,
    shipped,
)

from draftproof.core.types import Draft
from draftproof.testing.fraction_law import FractionLaw


@dataclass(frozen=True)
class Fault:
    """A wrong round, the rule it stands for and the tables it can be seen on.

    ``min_kappa`` is the shortest draft that can show it; ``rounds`` says whether one
    round shows it or whole texts are needed; ``shows`` what goes wrong: the ``law``,
    or only the ``length``.
    """

    name: str
    rule: str
    play: RoundFunction
    min_kappa: int = 1
    whole_texts: bool = False
    shows: str = "law"


def plus(p: FractionLaw, q: FractionLaw, scale: Any = 1) -> FractionLaw:
    return p.residual(q, scale)


def power(law: FractionLaw, exponent: int) -> FractionLaw:
    return FractionLaw([p**exponent for p in law.probs])


def target_at(model: TableModel, context: Prefix, draft: Draft) -> Callable[[int], FractionLaw]:
    return lambda j: model.target(context + draft.token_ids[:j])


# --- token by token ---------------------------------------------------------------


def token_round(
    *,
    propose: Callable[..., Draft] = sampled_draft,
    scored: Callable[[FractionLaw], FractionLaw] = lambda q: q,
    judged: Callable[[FractionLaw], FractionLaw] = lambda p: p,
    residual: Callable[[FractionLaw, FractionLaw], FractionLaw] = plus,
    row: Callable[[int], int] = lambda j: j,
    first_checked: int = 0,
    lenience: Any = 1,
    accept_coin: Callable[[Any, int], Any] = lambda coins, i: coins.accept(i),
    residual_coin: Callable[[Any, int], Any] = lambda coins, i: coins.sample(i),
) -> RoundFunction:
    """The token rule with one piece exchanged."""

    def play(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
        draft = propose(model, context, kappa, coins)
        at = target_at(model, context, draft)
        for i in range(first_checked, kappa):
            token = draft.token_ids[i]
            p = judged(at(row(i)))
            q = scored(model.draft(context + draft.token_ids[:i]))
            if accept_coin(coins, i) * (lenience * q.prob(token)) < p.prob(token):
                continue
            last = residual(p, q).draw(residual_coin(coins, i))
            return close(context, draft.token_ids, i, last)
        return close(context, draft.token_ids, kappa, at(row(kappa)).draw(coins.sample(kappa)))

    return play


def unclamped(p: FractionLaw, q: FractionLaw) -> FractionLaw:
    gaps = [abs(a - b) for a, b in zip(p.probs, q.probs, strict=True)]
    return FractionLaw(gaps) if any(gaps) else p


def unmasked_residual(p: FractionLaw, q: FractionLaw) -> FractionLaw:
    """Zero the drafter's favourite, as a one-hot residual would, after a sampled draft."""
    weights = [0 if t == q.argmax() else a for t, a in enumerate(p.probs)]
    return FractionLaw(weights) if any(weights) else p


def top_half(law: FractionLaw) -> FractionLaw:
    half = (law.vocab_size + 1) // 2
    kept = sorted(range(law.vocab_size), key=lambda t: (-law.probs[t], t))[:half]
    return FractionLaw([p if t in kept else 0 for t, p in enumerate(law.probs)])


def filtered_draft(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Draft:
    narrow = TableModel(
        model.name, model.vocab_size, model.target, lambda prefix: top_half(model.draft(prefix))
    )
    return sampled_draft(narrow, context, kappa, coins)


def other_coin_draft(purpose: str) -> Callable[..., Draft]:
    """Draft with a coin that belongs to another purpose."""

    def propose(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Draft:
        tokens: Prefix = ()
        for i in range(kappa):
            tokens += (model.draft(context + tokens).draw(getattr(coins, purpose)(i)),)
        return Draft(tokens, None, "wrong coin")

    return propose


def noisy_residual_round(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
    """Draft by racing noise, accept by the ratio, race the residual on the same noise."""
    draft = raced_draft(model, context, kappa, coins)
    at = target_at(model, context, draft)
    for i, token in enumerate(draft.token_ids):
        p, q = at(i), draft.laws[i]
        if not coins.accept(i) * q.prob(token) < p.prob(token):
            noise = coins.noise(i, model.vocab_size)
            return close(context, draft.token_ids, i, p.residual(q).race(noise))
    return close(context, draft.token_ids, kappa, at(kappa).draw(coins.sample(kappa)))


def kept_tail_round(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
    """Replace the rejected draft but keep the drafts after it."""
    played = shipped("standard")(model, context, kappa, coins)
    draft = sampled_draft(model, context, kappa, coins)
    emitted = played.emitted + draft.token_ids[played.num_accepted + 1 :]
    return Round(emitted, context + emitted, played.num_accepted)


def phantom_round(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
    """Emit the recovered token but leave the rejected one in the history."""
    played = shipped("standard")(model, context, kappa, coins)
    draft = sampled_draft(model, context, kappa, coins)
    if played.num_accepted == kappa:
        return played
    kept = context + draft.token_ids[: played.num_accepted + 1]
    return Round(played.emitted, kept, played.num_accepted)


def no_bonus_round(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
    """End the round after full acceptance: right law, one token short."""
    played = shipped("standard")(model, context, kappa, coins)
    if played.num_accepted < kappa:
        return played
    return Round(played.emitted[:-1], played.context[:-1], kappa)


def timid_round(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
    """Accept by drawing and comparing although the ratio rule was promised."""
    return shipped("sample-match")(model, context, kappa, coins)


# --- block ------------------------------------------------------------------------


def block_round(
    *,
    stop_at_failure: bool = False,
    token_residual: bool = False,
    weight_as_bar: bool = False,
    padded: bool = False,
    coin: Callable[[Any, int], Any] = lambda coins, i: coins.accept(i),
) -> RoundFunction:
    """Block verification with one piece exchanged."""

    def play(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Round:
        draft = sampled_draft(model, context, kappa, coins)
        at = target_at(model, context, draft)
        weights: list[Any] = [Fraction(1)]
        for i, token in enumerate(draft.token_ids):
            ratio = at(i).prob(token) / draft.laws[i].prob(token)
            weights.append(min(Fraction(1), weights[-1] * ratio))

        def after(i: int) -> FractionLaw:
            if i < kappa:
                return draft.laws[i]
            return FractionLaw([0] * (model.vocab_size - 1) + [1])  # what id -1 reads

        last = kappa if padded else kappa - 1
        kept = 0
        for i in range(1, kappa + 1):
            bar = weights[i]
            if i <= last and not weight_as_bar:
                mass = at(i).residual_mass(after(i), bar)
                bar = mass / (mass + 1 - bar) if mass + 1 - bar else Fraction(1)
            if coin(coins, i - 1) < bar:
                kept = i
            elif stop_at_failure:
                break
        if kept == kappa and not padded:
            return close(context, draft.token_ids, kept, at(kept).draw(coins.sample(kept)))
        scale = 1 if token_residual else weights[kept]
        law = at(kept).residual(after(kept), scale)
        return close(context, draft.token_ids, kept, law.draw(coins.sample(kept)))

    return play


FAULTS = [
    Fault("target drawn again on reject", "standard", token_round(residual=lambda p, _: p)),
    Fault("residual not clamped", "standard", token_round(residual=unclamped)),
    Fault("residual masks the favourite", "standard", token_round(residual=unmasked_residual)),
    Fault("q at another temperature", "standard", token_round(scored=lambda q: power(q, 2))),
    Fault("p at another temperature", "standard", token_round(judged=lambda p: power(p, 2))),
    Fault("argmax scored as sampled", "standard", token_round(propose=argmax_draft)),
    Fault("filter missing from the reported q", "standard", token_round(propose=filtered_draft)),
    Fault("lenience 9/10", "standard", token_round(lenience=Fraction(9, 10))),
    Fault("row of the position before", "standard", token_round(row=lambda j: max(j - 1, 0))),
    Fault("first draft unchecked", "standard", token_round(first_checked=1)),
    Fault(
        "one coin drafts and accepts",
        "standard",
        token_round(accept_coin=lambda coins, i: coins.draft(i)),
    ),
    Fault(
        "one coin accepts and recovers",
        "standard",
        token_round(residual_coin=lambda coins, i: coins.accept(i)),
    ),
    Fault(
        "one coin drafts and recovers",
        "standard",
        token_round(propose=other_coin_draft("sample")),
    ),
    Fault("draft noise races the residual", "standard", noisy_residual_round),
    Fault("tail kept after a rejection", "standard", kept_tail_round, 2),
    Fault("rejected token stays in the history", "standard", phantom_round, whole_texts=True),
    Fault("bonus missing", "standard", no_bonus_round, shows="length"),
    Fault("matching in place of the ratio", "standard", timid_round, shows="length"),
    Fault("block stops at the first failure", "block", block_round(stop_at_failure=True), 2),
    Fault("block draws the token residual", "block", block_round(token_residual=True), 2),
    Fault("block takes P for h", "block", block_round(weight_as_bar=True), 2),
    Fault("block counts padding", "block", block_round(padded=True)),
    Fault(
        "block shares one coin", "block", block_round(coin=lambda coins, _: coins.accept(0)), 3
    ),
]  # fmt: skip
