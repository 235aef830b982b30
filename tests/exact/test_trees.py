"""The shipped tree rules, integrated over their coins, emit the law of the target."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from enumeration import (
    KINDS,
    TableModel,
    constant_model,
    emitted_law,
    first_round_law,
    random_model,
    shipped,
    survival_sum,
    target_law_of,
    total_variation,
)
from trees import (
    best_of,
    depth_of,
    fan,
    greedy_growth_tree,
    mixed_tree,
    sampled_tree,
    shipped_tree,
    sibling_round,
    size_of,
    top_tree,
)

from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw
from draftproof.verify import TREE_RULE_OF, TREE_RULES

pytestmark = pytest.mark.exact

LOP = (((), ()), ())  # two children, the first with two of its own
DEEP = (((((),),), ()), (((),),))
#: (vocabulary, shape, seeds): 1 to 8 nodes, depth 1 to 4, in seconds.
SIZES = [
    (2, fan(1), 2), (2, fan(2), 2), (2, fan(2, 2), 1), (2, DEEP, 1), (2, fan(2, 1, 1), 1),
    (3, fan(2), 3), (3, fan(3), 2), (3, LOP, 1), (3, fan(2, 1), 1), (4, fan(2), 2),
    (4, fan(4), 1), (5, fan(2), 1), (5, fan(3), 1),
]  # fmt: skip
#: The widest trees, on fewer tables.
LARGE = [(3, fan(2, 2)), (3, fan(2, 3)), (3, fan(2, 1, 1)), (4, fan(2, 1))]
RATIO_RULES = ("recursive", "traversal")


def test_the_shapes_reach_eight_nodes() -> None:
    assert {size_of(shape) for _, shape, _ in SIZES} >= {1, 2, 3, 4, 6}
    assert max(size_of(shape) for _, shape in LARGE) == 8
    assert size_of(DEEP) == 8
    assert depth_of(DEEP) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_trees_are_exactly_the_target_and_traversal_keeps_most(kind: str) -> None:
    for vocab_size, shape, seeds in SIZES:
        depth = depth_of(shape)
        for seed in range(seeds):
            model = random_model(kind, vocab_size, seed)
            expected = target_law_of(model, depth + 1)
            means = {}
            for rule in RATIO_RULES:
                play = shipped_tree(rule, sampled_tree(shape))
                law, means[rule] = first_round_law(model, play, depth)
                assert law == expected, (model.name, shape)
            assert means["traversal"] >= means["recursive"]
            if depth == 1:
                assert means["traversal"] == means["recursive"]


@pytest.mark.parametrize(("vocab_size", "shape"), LARGE)
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_large_trees_are_exactly_the_target(kind: str, vocab_size: int, shape) -> None:
    model = random_model(kind, vocab_size, 21)
    depth = depth_of(shape)
    expected = target_law_of(model, depth + 1)
    means = []
    for rule in RATIO_RULES:
        play = shipped_tree(rule, sampled_tree(shape))
        law, mean = first_round_law(model, play, depth)
        assert law == expected
        means.append(mean)
    assert means == sorted(means)


@pytest.mark.parametrize("rule", TREE_RULES)
@pytest.mark.parametrize("kind", ["random", "zeros", "ties", "disjoint"])
def test_deterministic_trees_are_exact_under_every_rule(rule: str, kind: str) -> None:
    for vocab_size, shape in [(2, DEEP), (3, fan(2, 2)), (4, fan(3)), (3, fan(3, 1, 1))]:
        model = random_model(kind, vocab_size, 11)
        depth = depth_of(shape)
        law, _ = first_round_law(model, shipped_tree(rule, top_tree(shape)), depth)
        assert total_variation(law, target_law_of(model, depth + 1)) < 1e-15


def test_deterministic_siblings_are_kept_with_their_target_mass_by_every_rule() -> None:
    for seed in range(5):
        model = random_model("random", 5, seed)
        p, q = model.target(()), model.draft(())
        mass = sum(p.prob(token) for token in best_of(q, 2))
        for rule in TREE_RULES:
            _, mean = first_round_law(model, shipped_tree(rule, top_tree(fan(2))), 1)
            assert mean == pytest.approx(float(mass), abs=1e-15)


@pytest.mark.parametrize("rule", TREE_RULES)
def test_trees_that_grow_by_what_was_drawn_are_exact(rule: str) -> None:
    for kind in ("random", "zeros", "peaked"):
        for propose in (greedy_growth_tree, mixed_tree(fan(2, 2))):
            model = random_model(kind, 3 if rule in RATIO_RULES else 2, 4)
            law, _ = first_round_law(model, shipped_tree(rule, propose), 3)
            assert total_variation(law, target_law_of(model, 4)) < 1e-15


@pytest.mark.parametrize("rule", RATIO_RULES)
@pytest.mark.parametrize("kind", ["random", "zeros"])
def test_trees_in_every_round_are_exact(rule: str, kind: str) -> None:
    for vocab_size, shape, horizon in [(2, fan(2, 1), 4), (3, fan(2), 3)]:
        model = random_model(kind, vocab_size, 7)
        law = emitted_law(model, shipped_tree(rule, sampled_tree(shape)), 2, horizon)
        assert law == target_law_of(model, horizon)


@pytest.mark.parametrize("kind", KINDS)
def test_without_branches_the_laws_and_acceptance_are_those_of_the_chain_rules(kind: str) -> None:
    for vocab_size, kappa in [(2, 4), (3, 3), (5, 2)]:
        model = random_model(kind, vocab_size, 3)
        for chain_rule in ("standard", "block"):
            play = shipped_tree(TREE_RULE_OF[chain_rule], sampled_tree(fan(*[1] * kappa)))
            law, mean = first_round_law(model, play, kappa)
            assert (law, mean) == first_round_law(model, shipped(chain_rule), kappa)
            assert mean == survival_sum(model, kappa, chain_rule)


# --- laws that ship ---------------------------------------------------------------------


def as_shipped(model: TableModel, form: str) -> TableModel:
    @cache
    def target(prefix):
        return DenseLaw(model.target(prefix).dense().astype(np.float32))

    @cache
    def draft(prefix):
        probs = model.draft(prefix).dense()
        if form == "sparse":
            ids = np.flatnonzero(probs)
            return SparseLaw(ids, probs[ids].astype(np.float32), len(probs))
        if form == "one-hot":
            return OneHotLaw(int(probs.argmax()), len(probs))
        return DenseLaw(probs.astype(np.float32))

    return TableModel(f"{model.name}-{form}", model.vocab_size, target, draft)


@pytest.mark.parametrize("form", ["dense", "sparse", "one-hot"])
@pytest.mark.parametrize("rule", RATIO_RULES)
def test_shipped_laws_keep_the_tree_rules_exact(rule: str, form: str) -> None:
    for kind in KINDS:
        for vocab_size, shape in [(3, fan(2, 1)), (2, DEEP), (5, fan(3))]:
            model = as_shipped(random_model(kind, vocab_size, 5), form)
            depth = depth_of(shape)
            law, _ = first_round_law(model, shipped_tree(rule, sampled_tree(shape)), depth)
            assert total_variation(law, target_law_of(model, depth + 1)) < 1e-12, model.name


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_laws_that_differ_by_one_ulp_are_kept_at_the_first_child(rule: str) -> None:
    p = np.array([0.3, 0.25, 0.2, 0.25])
    for q in (p, np.nextafter(p, 1.0), np.nextafter(p, [0, 1, 0, 1]), p * (1 + 1e-16)):
        model = TableModel("ulp", 4, lambda _: DenseLaw(p), lambda _, q=q: DenseLaw(q))
        law, mean = first_round_law(model, shipped_tree(rule, sampled_tree(fan(2, 1))), 2)
        assert total_variation(law, target_law_of(model, 3)) < 1e-12
        assert mean == pytest.approx(2.0, abs=1e-12)


# --- the order of the rules ---------------------------------------------------------------


def test_the_rules_keep_more_and_more(record_property) -> None:
    for vocab_size, shape in [(3, fan(2, 2)), (4, fan(2, 1))]:
        depth = depth_of(shape)
        sums = dict.fromkeys(("chain", "target-only", "recursive", "traversal"), Fraction(0))
        model = random_model("random", vocab_size, 30)
        sums["chain"] += survival_sum(model, depth, "standard")
        for rule, tree in [
            ("target-only", top_tree(shape)),
            ("recursive", sampled_tree(shape)),
            ("traversal", sampled_tree(shape)),
        ]:
            sums[rule] += first_round_law(model, shipped_tree(rule, tree), depth)[1]
        means = {name: round(float(total), 3) for name, total in sums.items()}
        record_property("means", means)
        print(f"V={vocab_size}, {size_of(shape)} nodes: {means}")  # noqa: T201
        assert sums["target-only"] < sums["recursive"] < sums["traversal"]
        assert sums["chain"] < sums["recursive"]


def test_distinct_siblings_are_kept_more_often_than_repeated_ones() -> None:
    totals = [Fraction(0)] * 3
    for seed in range(20):
        model = random_model("random", 4, seed)
        single, repeated, distinct = (
            first_round_law(model, play, 1)[1]
            for play in (
                sibling_round(1),
                sibling_round(2, redraw=True, drop="never"),
                sibling_round(2),
            )
        )
        assert single <= repeated
        shipped_rule = shipped_tree("recursive", sampled_tree(fan(2)))
        assert distinct == first_round_law(model, shipped_rule, 1)[1]
        totals = [a + b for a, b in zip(totals, (single, repeated, distinct), strict=True)]
    assert totals[0] < totals[1] < totals[2]


def test_two_tokens_and_two_siblings_always_keep_one() -> None:
    third = Fraction(1, 3)
    model = constant_model((third, 2 * third), (2 * third, third))
    for rule in RATIO_RULES:
        _, mean = first_round_law(model, shipped_tree(rule, sampled_tree(fan(2))), 1)
        assert mean == 1
