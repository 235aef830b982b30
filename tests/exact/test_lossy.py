"""Rules that change the law change it by at most what they say, and reach that."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from enumeration import (
    argmax_draft,
    constant_model,
    emitted_law,
    first_round_law,
    one_round,
    random_model,
    sampled_draft,
    shipped,
    target_law_of,
    total_variation,
)

from draftproof.verify import (
    AcceptThreshold,
    AllowLossy,
    Lenience,
    SyntheticAcceptance,
    TypicalAcceptance,
)
from draftproof.verify.lossy import joint_bound
from faults import token_round

pytestmark = pytest.mark.exact

KINDS = ("random", "zeros", "peaked", "disjoint", "ties")
TABLES = [random_model(kind, v, seed) for kind in KINDS for v in (2, 3, 5) for seed in range(4)]
PROPOSERS = (sampled_draft, argmax_draft)


def token_tv(model, rule, propose=sampled_draft, horizon: int = 1) -> float:
    law = emitted_law(model, shipped(AllowLossy(rule), propose), horizon, horizon)
    return total_variation(law, target_law_of(model, horizon))


@pytest.mark.parametrize("value", [Fraction(1, 2), Fraction(9, 10), Fraction(1)])
@pytest.mark.parametrize(
    "make",
    [
        Lenience,
        lambda value: AcceptThreshold(acc=value),
        lambda value: AcceptThreshold(single=value),
        lambda value: AcceptThreshold(acc=value, single=Fraction(4, 5)),
        lambda value: TypicalAcceptance(epsilon=value, alpha=float(value) / 2),
    ],
    ids=["lenience", "acc", "single", "both", "typical"],
)
def test_no_token_leaves_its_bound(make, value) -> None:
    rule = make(value)
    seen = 0.0
    for model in TABLES:
        for propose in PROPOSERS:
            tv = token_tv(model, rule, propose)
            assert tv <= float(rule.bound(model.vocab_size)) + 1e-12, model.name
            if isinstance(rule, TypicalAcceptance):
                assert tv <= rule.bound_at(model.target(())) + 1e-12
            seen = max(seen, tv)
    print(f"{rule}: largest TV {seen:.4f}")  # noqa: T201
    if rule.bound(2) == 0:
        assert seen == 0, "a knob at 1 is exact"
    else:
        assert seen > 0.01, "a bound that nothing comes near would prove little"


def test_lenience_costs_exactly_what_it_says() -> None:
    for value in (Fraction(1, 2), Fraction(9, 10)):
        for model in TABLES:
            p, q = model.target(()), model.draft(())
            expected = Lenience(value).bound_at(p, q)
            assert token_tv(model, Lenience(value)) == pytest.approx(expected, abs=1e-12)
            distance = total_variation(dict(enumerate(p.probs)), dict(enumerate(q.probs)))
            assert expected <= min(distance, 1 - value) + 1e-12


@pytest.mark.parametrize("value", [Fraction(1, 2), Fraction(9, 10), Fraction(19, 20)])
def test_the_bounds_are_reached(value: Fraction) -> None:
    model = constant_model((value, 1 - value), (1, 0))
    for rule in (Lenience(value), AcceptThreshold(acc=value), AcceptThreshold(single=value)):
        assert token_tv(model, rule) == pytest.approx(float(rule.bound(2)), abs=1e-12)
        assert rule.bound(2) == 1 - value


def test_typical_acceptance_reaches_its_bound() -> None:
    model = constant_model((1, 15), (1, 0))
    rule = TypicalAcceptance(epsilon=0.0625, alpha=1.0)
    assert rule.bar(model.target(())) == 0.0625
    assert token_tv(model, rule) == pytest.approx(rule.bound_at(model.target(())), abs=1e-12)
    assert rule.bound(2) == rule.bound_at(model.target(()))


def test_typical_acceptance_at_two_nats() -> None:
    # The entropy of e^2 equal tokens, as near as whole tokens come: 7 of them.
    target = constant_model([1] * 7, [1] * 7).target(())
    bar = TypicalAcceptance().bar(target)
    assert bar == pytest.approx(0.09 / 7)
    assert 1 - 0.09 * math.exp(-2) == pytest.approx(0.988, abs=5e-4)


def test_lenience_with_the_target_as_residual_leaves_the_bound() -> None:
    lenience = Fraction(19, 20)
    worst = 0.0
    for p in range(1, 20):
        for q in range(1, 21):
            model = constant_model((p, 20 - p), (q, 20 - q))
            right = token_round(lenience=lenience)
            wrong = token_round(lenience=lenience, residual=lambda p, q, token: p)
            target = target_law_of(model, 1)
            assert total_variation(emitted_law(model, right, 1, 1), target) <= 0.05
            worst = max(worst, total_variation(emitted_law(model, wrong, 1, 1), target))
    print(f"lenience 0.95, residual p: largest TV {worst:.3f}")  # noqa: T201
    assert worst > 0.24 > 0.05


def test_texts_compose_to_the_joint_bound() -> None:
    for value in (Fraction(1, 2), Fraction(9, 10)):
        for rule in (Lenience(value), AcceptThreshold(acc=value)):
            for model in (random_model("random", 2, 3), random_model("peaked", 3, 1)):
                for length in (2, 3):
                    bound = joint_bound(float(rule.bound(2)), length)
                    assert bound == pytest.approx(1 - float(value) ** length)
                    assert token_tv(model, rule, horizon=length) <= bound
    assert joint_bound(1.0, 5) == 1.0
    assert joint_bound(0.0, 5) == 0.0


# --- synthetic -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rates",
    [
        (Fraction(4, 5), Fraction(1, 2), Fraction(1, 10)),
        (Fraction(1), Fraction(1), Fraction(0)),
        (Fraction(0), Fraction(0), Fraction(0)),
        (Fraction(3, 4),),
    ],
)
@pytest.mark.parametrize("kind", ["random", "disjoint"])
def test_synthetic_rates_are_the_rates_of_every_position(rates, kind: str) -> None:
    rule = AllowLossy(SyntheticAcceptance(rates))
    paths = one_round(random_model(kind, 2, 3), shipped(rule), (), 3)
    for i in range(3):
        kept = sum(weight for weight, played in paths if played.num_accepted > i)
        assert kept == (rates[i] if i < len(rates) else 0)
    assert sum(weight * played.num_accepted for weight, played in paths) == sum(rates)


def test_synthetic_text_is_not_the_target() -> None:
    rule = AllowLossy(SyntheticAcceptance((1.0, 1.0)))
    model = random_model("disjoint", 4, 0)
    law, _ = first_round_law(model, shipped(rule), 2)
    assert total_variation(law, target_law_of(model, 3)) == pytest.approx(1.0)
    assert np.isclose(float(sum(law.values())), 1.0)
