"""The shipped rules, integrated over their coins, emit the law of the target."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest
from enumeration import (
    KINDS,
    TableModel,
    argmax_draft,
    constant_model,
    emitted_law,
    first_round_law,
    raced_draft,
    random_model,
    shipped,
    survival_sum,
    target_law_of,
    total_variation,
)

from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw
from draftproof.core.policy import History, SamplingParams, target_law

pytestmark = pytest.mark.exact

#: (vocabulary, kappa, seeds): kappa 1 to 4, vocabulary 2 to 5, in a few seconds.
SIZES = [(2, 1, 3), (2, 4, 2), (3, 2, 3), (3, 3, 1), (4, 2, 1), (5, 1, 3), (5, 2, 1)]
SAMPLED = {"standard": {}, "block": {}, "sample-match": {}, "coupled": {"propose": raced_draft}}


@pytest.mark.parametrize("rule", SAMPLED)
@pytest.mark.parametrize("kind", KINDS)
def test_one_round_and_then_plain_is_exactly_the_target(rule: str, kind: str) -> None:
    for vocab_size, kappa, seeds in SIZES:
        for seed in range(seeds):
            model = random_model(kind, vocab_size, seed)
            law, _ = first_round_law(model, shipped(rule, **SAMPLED[rule]), kappa)
            assert law == target_law_of(model, kappa + 1), model.name


@pytest.mark.parametrize("rule", ["standard", "block", "sample-match"])
@pytest.mark.parametrize("kind", ["random", "zeros", "peaked"])
def test_speculating_in_every_round_is_exactly_the_target(rule: str, kind: str) -> None:
    for vocab_size, kappa, horizon in [(2, 2, 4), (3, 2, 3), (2, 3, 4)]:
        model = random_model(kind, vocab_size, 7)
        law = emitted_law(model, shipped(rule), kappa, horizon)
        assert law == target_law_of(model, horizon)


@pytest.mark.parametrize("rule", SAMPLED)
@pytest.mark.parametrize("kind", ["random", "zeros", "ties"])
def test_deterministic_drafts_are_exact(rule: str, kind: str) -> None:
    for vocab_size, kappa in [(2, 3), (3, 3), (5, 2)]:
        model = random_model(kind, vocab_size, 11)
        law, _ = first_round_law(model, shipped(rule, argmax_draft), kappa)
        assert total_variation(law, target_law_of(model, kappa + 1)) < 1e-15


def as_shipped(model: TableModel, form: str) -> TableModel:
    """Hold the tables in the laws that ship."""

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
        return DenseLaw(probs)

    return TableModel(f"{model.name}-{form}", model.vocab_size, target, draft)


@pytest.mark.parametrize("rule", ["standard", "block", "sample-match"])
@pytest.mark.parametrize("form", ["dense", "sparse", "one-hot"])
def test_shipped_laws_keep_the_rules_exact(rule: str, form: str) -> None:
    for kind in KINDS:
        for vocab_size, kappa in [(3, 3), (5, 2), (2, 4)]:
            model = as_shipped(random_model(kind, vocab_size, 5), form)
            law, _ = first_round_law(model, shipped(rule), kappa)
            assert total_variation(law, target_law_of(model, kappa + 1)) < 1e-12, model.name


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_laws_that_differ_by_one_ulp(rule: str) -> None:
    p = np.array([0.3, 0.25, 0.2, 0.25])
    for q in (np.nextafter(p, 1.0), np.nextafter(p, [0, 1, 0, 1]), p * (1 + 1e-16)):
        model = TableModel(
            "ulp",
            4,
            lambda _: DenseLaw(p),
            lambda _, q=q: DenseLaw(q),
        )
        law, accepted = first_round_law(model, shipped(rule), 2)
        assert total_variation(law, target_law_of(model, 3)) < 1e-12
        assert accepted == pytest.approx(2.0, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_mean_acceptance_has_its_closed_form_and_block_is_never_below(kind: str) -> None:
    for vocab_size, kappa, seeds in SIZES:
        for seed in range(seeds):
            model = random_model(kind, vocab_size, seed)
            means = {}
            for rule in ("standard", "block"):
                _, means[rule] = first_round_law(model, shipped(rule), kappa)
                assert means[rule] == survival_sum(model, kappa, rule)
            assert means["block"] >= means["standard"]
            if kappa == 1:
                assert means["block"] == means["standard"]


def test_the_example_of_the_block_paper() -> None:
    third = Fraction(1, 3)
    model = constant_model((third, 2 * third), (2 * third, third))
    _, standard = first_round_law(model, shipped("standard"), 2)
    _, block = first_round_law(model, shipped("block"), 2)
    assert (standard, block) == (Fraction(10, 9), Fraction(11, 9))


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("rule", ["standard", "block", "sample-match"])
def test_every_policy_reaches_the_emitted_law(rule: str, temperature: float) -> None:
    rows = np.log([[0.40, 0.25, 0.15, 0.10, 0.06, 0.04], [0.10, 0.35, 0.05, 0.30, 0.15, 0.05]])
    for top_p, top_k, min_p in product((0.5, 0.9, 1.0), (0, 1, 2), (0.0, 0.2)):
        params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
        laws = [target_law(row.astype(np.float32), params, History()) for row in rows]
        target, draft = laws
        model = TableModel("policy", 6, lambda _, p=target: p, lambda _, q=draft: q)
        law, _ = first_round_law(model, shipped(rule), 2)
        assert total_variation(law, target_law_of(model, 3)) < 1e-12
        allowed = set(np.flatnonzero(laws[0].dense()))
        assert {token for word in law for token in word} == allowed


def test_one_token_acceptance_is_the_overlap_or_the_product() -> None:
    model = random_model("random", 5, 3)
    p, q = model.target(()).probs, model.draft(()).probs
    overlap = sum(min(a, b) for a, b in zip(p, q, strict=True))
    matched = sum(a * b for a, b in zip(p, q, strict=True))
    agreed = sum(1 / sum(max(p[y] / p[x], q[y] / q[x]) for y in range(5)) for x in range(5))
    means = {rule: first_round_law(model, shipped(rule, **SAMPLED[rule]), 1)[1] for rule in SAMPLED}
    assert means == {
        "standard": overlap, "block": overlap, "sample-match": matched, "coupled": agreed,
    }  # fmt: skip


def test_rejected_mass_and_accepted_mass_make_the_target() -> None:
    for q in [(6, 1, 3), (1, 0, 0), (2, 5, 3)]:
        model = constant_model((2, 5, 3), q)
        assert emitted_law(model, shipped("standard"), 1, 1) == target_law_of(model, 1)
