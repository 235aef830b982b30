"""The checks of the shipped rules go red on every planted fault."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from enumeration import (
    TableModel,
    argmax_draft,
    constant_model,
    emitted_law,
    first_round_law,
    one_round,
    raced_draft,
    random_model,
    shared_coin_law,
    shipped,
    survival_sum,
    target_law_of,
    total_variation,
)

from draftproof.testing.branching import by_place
from draftproof.testing.fraction_law import FractionLaw
from faults import FAULTS, Fault, block_round, power, token_round, top_half

pytestmark = pytest.mark.exact

MODELS = [random_model("random", 3, seed) for seed in range(4)]


def worst_tv(model: TableModel, fault: Fault) -> float:
    kappa = max(2, fault.min_kappa)
    if fault.whole_texts:
        law = emitted_law(model, fault.play, kappa, 3)
        return total_variation(law, target_law_of(model, 3))
    law, _ = first_round_law(model, fault.play, kappa)
    return total_variation(law, target_law_of(model, kappa + 1))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_seen(fault: Fault, record_property) -> None:
    tvs = [worst_tv(model, fault) for model in MODELS]
    record_property("tv", tvs)
    seen = sum(tv > 1e-6 for tv in tvs)
    print(f"{fault.name}: seen on {seen} of 4, mean TV {np.mean(tvs):.4f}, max {max(tvs):.4f}")  # noqa: T201
    if fault.shows == "law":
        assert seen >= 2, "the exactness check must reject it"
        return
    assert max(tvs) == 0.0, "the law is right; only the number of tokens tells"
    model = MODELS[0]
    paths = one_round(model, fault.play, (), 2)
    tokens = sum(weight * len(played.emitted) for weight, played in paths)
    assert tokens < 1 + survival_sum(model, 2, fault.rule)


def test_the_exchangeable_rounds_are_right_when_nothing_is_exchanged() -> None:
    for model in MODELS:
        for play in (token_round(), block_round()):
            law, _ = first_round_law(model, play, 2)
            assert law == target_law_of(model, 3)


# --- why draft coins are keyed by the round ------------------------------------------


def by_position(purpose: str, start: int, i: int) -> tuple[str, int]:
    return purpose, start + i


def test_block_is_biased_when_draft_coins_belong_to_positions() -> None:
    model = random_model("random", 2, 1)
    target = target_law_of(model, 3)
    keyed_by_place = shared_coin_law(model, shipped("block"), 2, 3, by_place)
    assert keyed_by_place == target
    biased = shared_coin_law(model, shipped("block"), 2, 3, by_position)
    tv = total_variation(biased, target)
    print(f"block with draft coins keyed by position: TV {tv:.4f}")  # noqa: T201
    assert tv > 1e-4


def test_standard_does_not_mind_where_draft_coins_belong() -> None:
    # It never looks past the first rejected draft, so the rest stays independent.
    model = random_model("random", 2, 1)
    law = shared_coin_law(model, shipped("standard"), 2, 3, by_position)
    assert law == target_law_of(model, 3)


def test_rules_that_emit_draws_of_the_target_do_not_mind_shared_coins() -> None:
    model = random_model("random", 2, 2)
    for key in (by_place, by_position):
        law = shared_coin_law(model, shipped("sample-match"), 2, 3, key)
        assert law == target_law_of(model, 3)


# --- the six-token fixture --------------------------------------------------------

P = [Fraction(n, 100) for n in (40, 25, 15, 10, 6, 4)]
Q = [Fraction(n, 100) for n in (10, 35, 5, 30, 15, 5)]
SIX = constant_model(P, Q, "six tokens")


def marginal(play, model: TableModel = SIX) -> list[float]:
    law = emitted_law(model, play, 1, 1)
    return [float(law.get((t,), 0)) for t in range(model.vocab_size)]


def fault_named(name: str) -> Fault:
    return next(fault for fault in FAULTS if fault.name == name)


@pytest.mark.parametrize(
    ("case", "name", "expected", "tv"),
    [
        ("DI-1", "filter missing from the reported q", (0.366, 0.313, 0.122, 0.125, 0.075, 0), 0.1),
        ("DI-2", "argmax scored as sampled", (0.214, 0.714, 0.071, 0, 0, 0), 0.46),
        ("DI-4", "target drawn again on reject", (0.26, 0.35, 0.11, 0.14, 0.084, 0.056), 0.18),
        ("NG-3", "first draft unchecked", (0.10, 0.35, 0.05, 0.30, 0.15, 0.05), 0.40),
    ],
)  # fmt: skip
def test_published_biases_are_reproduced(case: str, name: str, expected, tv: float) -> None:
    seen = marginal(fault_named(name).play)
    assert seen == pytest.approx(expected, abs=6e-4), case
    assert total_variation(dict(enumerate(seen)), dict(enumerate(map(float, P)))) == pytest.approx(
        tv, abs=5.1e-3
    )


def test_an_unchecked_argmax_draft_has_tv_three_quarters() -> None:
    law = emitted_law(SIX, token_round(propose=argmax_draft, first_checked=1), 1, 1)
    assert total_variation(law, target_law_of(SIX, 1)) == 0.75


def test_target_left_at_temperature_one() -> None:
    asked = TableModel("T=.5", 6, lambda prefix: power(SIX.target(prefix), 2), SIX.draft)
    expected = (0.615, 0.240, 0.087, 0.038, 0.014, 0.006)
    assert asked.target(()).dense() == pytest.approx(expected, abs=6e-4)
    assert marginal(shipped("standard"), asked) == pytest.approx(expected, abs=6e-4)
    ignoring = token_round(judged=lambda _: FractionLaw(P))
    assert marginal(ignoring, asked) == [float(p) for p in P]
    law = emitted_law(asked, ignoring, 1, 1)
    assert total_variation(law, target_law_of(asked, 1)) == pytest.approx(0.21, abs=5e-3)


def test_matching_a_fresh_draw_is_no_bias() -> None:
    law, accepted = first_round_law(SIX, shipped("sample-match"), 1)
    assert law == target_law_of(SIX, 2)
    _, by_ratio = first_round_law(SIX, shipped("standard"), 1)
    assert (round(float(accepted), 4), by_ratio) == (0.176, Fraction(6, 10))


def test_a_drafter_of_any_other_law_is_no_bias_if_it_reports_that_law() -> None:
    for change in (top_half, lambda q: power(q, 2), lambda q: power(q, 4)):
        changed = change(SIX.draft(()))
        model = TableModel("other draft", 6, SIX.target, lambda _, q=changed: q)
        for rule in ("standard", "block", "sample-match"):
            assert emitted_law(model, shipped(rule), 1, 1) == target_law_of(SIX, 1)
        assert emitted_law(model, shipped("coupled", raced_draft), 1, 1) == target_law_of(SIX, 1)


def test_a_residual_from_rejected_mass_alone_is_needed() -> None:
    # Bound of the redraw fault: t (1 - t) with t = TV(p, q); here .4 * .6 bounds .18.
    law = emitted_law(SIX, token_round(residual=lambda p, q, token: p), 1, 1)
    distance = float(1 - sum(min(p, q) for p, q in zip(P, Q, strict=True)))
    assert total_variation(law, target_law_of(SIX, 1)) <= distance * (1 - distance)
