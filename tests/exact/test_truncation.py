"""A cut may look at the drafter's law before a draw, never at what was drawn.

Each drafter below ends its draft early by another rule. The verifier is the shipped
one, so the law is right exactly when the cut anticipates nothing.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from enumeration import (
    Round,
    close,
    constant_model,
    emitted_law,
    random_model,
    shipped_round,
    target_law_of,
    total_variation,
)

from draftproof.core.types import Draft

pytestmark = pytest.mark.exact

BAR = Fraction(2, 5)
TABLES = [random_model("random", 3, seed) for seed in range(12)]


def cut_before(model, context, kappa, coins):
    """Stop where the drafter's law is flat, before drawing from it."""
    return grow(model, context, kappa, coins, before=lambda q: max(q.probs) < BAR)


def cut_after_keeping(model, context, kappa, coins):
    """Stop behind an unlikely token, and keep it."""
    return grow(model, context, kappa, coins, after=lambda q, token: q.prob(token) < BAR)


def cut_and_drop(model, context, kappa, coins):
    """Stop at an unlikely token, and drop it."""
    return grow(model, context, kappa, coins, drop=lambda q, token: q.prob(token) < BAR)


def grow(model, context, kappa, coins, *, before=None, after=None, drop=None) -> Draft:
    tokens, laws = (), []
    for i in range(kappa):
        q = model.draft(context + tokens)
        if before and before(q):
            break
        token = q.draw(coins.draft(i))
        if drop and drop(q, token):
            break
        tokens += (token,)
        laws.append(q)
        if after and after(q, token):
            break
    return Draft(tokens, tuple(laws), "cut")


def tvs(rule: str, propose, horizon: int = 3) -> list[float]:
    def play(model, context, kappa, coins):
        return shipped_round(rule, propose, model, context, kappa, coins)

    return [
        total_variation(emitted_law(model, play, 2, horizon), target_law_of(model, horizon))
        for model in TABLES
    ]


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("propose", [cut_before, cut_after_keeping])
def test_a_cut_that_anticipates_nothing_keeps_the_law(propose, rule: str) -> None:
    assert max(tvs(rule, propose)) == 0.0


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_dropped_token_biases_the_law(rule: str, record_property) -> None:
    sizes = tvs(rule, cut_and_drop, horizon=1)
    record_property("tv", sizes)
    print(f"{rule}, drop an unlikely draw: mean TV {np.mean(sizes):.3f}, max {max(sizes):.3f}")  # noqa: T201
    assert 0.04 < np.mean(sizes) < 0.2
    assert max(sizes) < 0.35


def test_the_cuts_do_cut() -> None:
    cut = [model for model in TABLES if max(model.draft(()).probs) < BAR]
    assert cut, "no table of the set stops the drafter that looks before it draws"


def test_a_search_over_what_was_drawn_turns_70_into_85_percent() -> None:
    """Verify token 1 only when it was not drawn: half of its mass moves to token 0."""

    def play(model, context, kappa, coins) -> Round:
        q = model.draft(context)
        token = q.draw(coins.draft(0))
        if token == 1:  # pruned, in favour of a plain draw
            return close(context, (), 0, model.target(context).draw(coins.sample(0)))
        return shipped_round("standard", lambda *_: Draft((token,), (q,)), model, context, 1, coins)

    half = Fraction(1, 2)
    model = constant_model((Fraction(7, 10), Fraction(3, 10)), (half, half))
    assert emitted_law(model, play, 1, 1)[0,] == Fraction(17, 20)
