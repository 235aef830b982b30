"""The exact joint law of what a decoder emits, over models that are tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import product
from random import Random
from typing import Any

from draftproof.core.types import Draft
from draftproof.testing.branching import BranchingCoins, CoinKey, exact_law, outcomes
from draftproof.testing.fraction_law import FractionLaw
from draftproof.verify import verify

Prefix = tuple[int, ...]
JointLaw = dict[Prefix, Any]


@dataclass(frozen=True)
class TableModel:
    """Target and drafter as functions of the prefix."""

    name: str
    vocab_size: int
    target: Callable[[Prefix], Any]
    draft: Callable[[Prefix], Any]


@dataclass(frozen=True)
class Round:
    """What a round emitted, and the context that the next one will condition on."""

    emitted: Prefix
    context: Prefix
    num_accepted: int


#: (model, context, kappa, coins) -> Round
RoundFunction = Callable[[TableModel, Prefix, int, Any], Round]


def sampled_draft(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Draft:
    tokens: Prefix = ()
    laws = []
    for i in range(kappa):
        laws.append(model.draft(context + tokens))
        tokens += (laws[-1].draw(coins.draft(i)),)
    return Draft(tokens, tuple(laws), "sampled")


def raced_draft(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Draft:
    tokens: Prefix = ()
    laws = []
    for i in range(kappa):
        laws.append(model.draft(context + tokens))
        tokens += (laws[-1].race(coins.noise(i, model.vocab_size)),)
    return Draft(tokens, tuple(laws), "raced")


def argmax_draft(model: TableModel, context: Prefix, kappa: int, coins: Any) -> Draft:
    """A deterministic drafter, so that its laws are one-hot and left out."""
    tokens: Prefix = ()
    for _ in range(kappa):
        probs = model.draft(context + tokens).dense()
        tokens += (int(probs.argmax()),)
    return Draft(tokens, None, "argmax")


def close(context: Prefix, tokens: Prefix, num_accepted: int, last: int) -> Round:
    emitted = (*tokens[:num_accepted], last)
    return Round(emitted, context + emitted, num_accepted)


def shipped_round(
    rule: str,
    propose: Callable[..., Draft],
    model: TableModel,
    context: Prefix,
    kappa: int,
    coins: Any,
) -> Round:
    """One round of the shipped rule."""
    draft = propose(model, context, kappa, coins)
    verdict = verify(rule, draft, lambda j: model.target(context + draft.token_ids[:j]), coins)
    return close(context, draft.token_ids, verdict.num_accepted, verdict.token_id)


def shipped(rule: str, propose: Callable[..., Draft] = sampled_draft) -> RoundFunction:
    return partial(shipped_round, rule, propose)


def one_round(model: TableModel, play: RoundFunction, context: Prefix, kappa: int) -> list[Any]:
    """Return (probability, Round) of every path of one round with fresh coins."""
    return outcomes(
        lambda brancher: play(model, context, kappa, BranchingCoins(brancher).round(len(context)))
    )


def emitted_law(model: TableModel, play: RoundFunction, kappa: int, horizon: int) -> JointLaw:
    """Return the law of the first tokens when every round is speculative.

    Coins are keyed by the round, so rounds are independent given their context and
    states can be pooled by (text, context).
    """
    done: JointLaw = defaultdict(Fraction)
    open_states: dict[tuple[Prefix, Prefix], Any] = {((), ()): Fraction(1)}
    while open_states:
        text, context = min(open_states, key=lambda state: len(state[0]))
        mass = open_states.pop((text, context))
        for weight, played in one_round(model, play, context, kappa):
            longer = text + played.emitted
            if len(longer) >= horizon:
                done[longer[:horizon]] += mass * weight
            else:
                state = (longer, played.context)
                open_states[state] = open_states.get(state, 0) + mass * weight
    return dict(done)


def first_round_law(model: TableModel, play: RoundFunction, kappa: int) -> tuple[JointLaw, Any]:
    """Return the law of kappa + 1 tokens, one round then plain, and mean acceptance."""
    law: JointLaw = defaultdict(Fraction)
    accepted: Any = 0
    for weight, played in one_round(model, play, (), kappa):
        accepted += weight * played.num_accepted
        missing = kappa + 1 - len(played.emitted)
        for tail in product(range(model.vocab_size), repeat=max(missing, 0)):
            mass = weight * path_prob(model.target, played.context, tail)
            law[(played.emitted + tail)[: kappa + 1]] += mass
    return {word: mass for word, mass in law.items() if mass > 0}, accepted


def shared_coin_law(
    model: TableModel,
    play: RoundFunction,
    kappa: int,
    horizon: int,
    key: CoinKey,
) -> JointLaw:
    """Return the law when coins live as long as the request, placed by ``key``."""

    def run(brancher: Any) -> Prefix:
        source = BranchingCoins(brancher, key)
        text: Prefix = ()
        while len(text) < horizon:
            text += play(model, text, kappa, source.round(len(text))).emitted
        return text[:horizon]

    return exact_law(run)


def path_prob(law: Callable[[Prefix], Any], context: Prefix, tail: Prefix) -> Any:
    prob: Any = 1
    for token in tail:
        prob = prob * law(context).prob(token)
        context = (*context, token)
    return prob


def target_law_of(model: TableModel, horizon: int) -> JointLaw:
    words = product(range(model.vocab_size), repeat=horizon)
    law = {word: path_prob(model.target, (), word) for word in words}
    return {word: prob for word, prob in law.items() if prob > 0}


def total_variation(left: JointLaw, right: JointLaw) -> float:
    words = set(left) | set(right)
    return float(sum(abs(left.get(w, 0) - right.get(w, 0)) for w in words) / 2)


def survival_sum(model: TableModel, kappa: int, rule: str) -> Any:
    """Return the closed form of the mean number of accepted drafts.

    standard: sum over i of E_q[prod of min(1, p/q)] (2211.17192, section 3.1);
    block: sum over i of E_q[P_i] (2403.10444, proof of theorem 2).
    """
    total: Any = 0
    stack = [((), Fraction(1), Fraction(1))]
    while stack:
        prefix, mass, weight = stack.pop()
        if len(prefix) == kappa:
            continue
        target, draft = model.target(prefix), model.draft(prefix)
        for token in range(model.vocab_size):
            if draft.prob(token) > 0:
                ratio = target.prob(token) / draft.prob(token)
                kept = min(1, weight * ratio) if rule == "block" else weight * min(1, ratio)
                reach = mass * draft.prob(token)
                total += reach * kept
                stack.append(((*prefix, token), reach, kept))
    return total


# --- tables -----------------------------------------------------------------------


def constant_model(p: Sequence[Any], q: Sequence[Any], name: str = "constant") -> TableModel:
    target, draft = FractionLaw(p), FractionLaw(q)
    return TableModel(name, len(p), lambda _: target, lambda _: draft)


def random_model(kind: str, vocab_size: int, seed: int) -> TableModel:
    """Return prefix-dependent tables of small fractions of one kind."""

    def weights(label: str, prefix: Prefix) -> list[int]:
        rng = Random(f"{kind} {seed} {label} {prefix}")
        if kind == "ties":
            drawn = [rng.choice((1, 2)) for _ in range(vocab_size)]
        elif kind == "zeros":
            drawn = [rng.choice((0, 0, 1, 3, 5)) for _ in range(vocab_size)]
        elif kind == "peaked":
            drawn = [rng.choice((0, 1, 1, 2, 40)) for _ in range(vocab_size)]
        else:
            drawn = [rng.randint(1, 9) for _ in range(vocab_size)]
        if not any(drawn):
            drawn[rng.randrange(vocab_size)] = 1
        return drawn

    @cache
    def target(prefix: Prefix) -> FractionLaw:
        drawn = weights("target", prefix)
        if kind == "disjoint":
            drawn = [w if t % 2 == 0 else 0 for t, w in enumerate(drawn)]
        return FractionLaw(drawn)

    @cache
    def draft(prefix: Prefix) -> FractionLaw:
        if kind == "equal":
            return target(prefix)
        drawn = weights("draft", prefix)
        if kind == "disjoint":
            drawn = [w if t % 2 == 1 else 0 for t, w in enumerate(drawn)]
        return FractionLaw(drawn)

    return TableModel(f"{kind}-{vocab_size}-{seed}", vocab_size, target, draft)


KINDS = ("random", "ties", "zeros", "peaked", "disjoint", "equal")
