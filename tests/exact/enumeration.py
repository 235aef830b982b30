"""The exact joint law of what a decoder emits, over models that are tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from random import Random
from typing import Any

from draftproof.audit.rounds import (
    Prefix,
    Round,
    RoundFunction,
    Tables,
    argmax_draft,
    close,
    decode_law,
    one_round,
    raced_draft,
    sampled_draft,
    shipped,
    shipped_round,
)
from draftproof.testing.branching import BranchingCoins, CoinKey, exact_law
from draftproof.testing.fraction_law import FractionLaw

#: The rounds themselves are the auditor's; only what the tests ask of them is here.
__all__ = [
    "KINDS",
    "JointLaw",
    "Prefix",
    "Round",
    "RoundFunction",
    "TableModel",
    "argmax_draft",
    "close",
    "constant_model",
    "emitted_law",
    "first_round_law",
    "one_round",
    "path_prob",
    "raced_draft",
    "random_model",
    "sampled_draft",
    "shared_coin_law",
    "shipped",
    "shipped_round",
    "survival_sum",
    "target_law_of",
    "total_variation",
]

JointLaw = dict[Prefix, Any]

#: Target and drafter as functions of the prefix, in exact fractions here.
TableModel = Tables


def emitted_law(model: TableModel, play: RoundFunction, kappa: int, horizon: int) -> JointLaw:
    """Return the law of the first tokens when every round is speculative."""
    return decode_law(model, play, kappa, horizon, whole_blocks=True)


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
