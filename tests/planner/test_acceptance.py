"""Survival curves: rules, estimates, intervals, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import ConfigError
from draftproof.planner.acceptance import (
    SurvivalCurve,
    iid_alpha_for_accepted,
    iid_break_even,
    iid_survival,
    mixture_survival,
)
from draftproof.planner.counts import AcceptanceCounts, AcceptanceData, PooledRates
from draftproof.planner.diagnose import differing_requests, rising_rates
from draftproof.planner.estimate import (
    assumed_survival,
    estimate_survival,
    fit_two_kinds,
    monotone_rates,
    survival_of,
)
from draftproof.planner.rules import (
    block_survival,
    coupled_acceptance,
    one_hot_acceptance,
    sample_match_acceptance,
    survival_from_ratios,
    token_acceptance,
)

P = np.array((0.2, 0.5, 0.3))
Q = np.array((0.6, 0.1, 0.3))


def test_each_rule_has_its_own_formula():
    assert token_acceptance(P, Q) == pytest.approx(0.6)
    assert sample_match_acceptance(P, Q) == pytest.approx(0.26)
    assert one_hot_acceptance(P, 1) == 0.5
    # Deterministic drafts: all rules meet at p(token).
    one_hot = np.array((0.0, 1.0, 0.0))
    for rule in (token_acceptance, sample_match_acceptance, coupled_acceptance):
        assert rule(P, one_hot) == pytest.approx(0.5)


def test_shared_noise_agrees_with_races():
    rng = np.random.default_rng(5)
    noise = rng.exponential(size=(200_000, 3))
    agree = ((noise / P).argmin(axis=1) == (noise / Q).argmin(axis=1)).mean()
    # 200,000 races: standard error 0.0011; the token rule's 0.6 is 80 of them away.
    assert coupled_acceptance(P, Q) == pytest.approx(agree, abs=0.006)
    assert sample_match_acceptance(P, Q) < coupled_acceptance(P, Q) < token_acceptance(P, Q)


def test_block_beats_token_as_in_the_paper():
    p = np.array([(1 / 3, 2 / 3)] * 2)
    q = p[:, ::-1]
    assert block_survival(p, q).accepted(2) == pytest.approx(11 / 9)
    assert token_acceptance(p[0], q[0]) + token_acceptance(p[0], q[0]) ** 2 == pytest.approx(10 / 9)


def test_ratios_give_both_rules():
    p = np.array([(1 / 3, 2 / 3)] * 2)
    q = p[:, ::-1]
    # Every draft with its probability, as often as in 9 rounds.
    ratios = [
        [p[0, x] / q[0, x], p[1, y] / q[1, y]]
        for x, y in itertools.product(range(2), repeat=2)
        for _ in range(round(9 * q[0, x] * q[1, y]))
    ]
    assert survival_from_ratios(ratios, "block").accepted(2) == pytest.approx(11 / 9)
    assert survival_from_ratios(ratios, "standard").accepted(2) == pytest.approx(10 / 9)
    with pytest.raises(ConfigError, match="coupled"):
        survival_from_ratios(ratios, "coupled")


def test_a_curve_may_not_rise():
    with pytest.raises(ConfigError, match="position 2"):
        SurvivalCurve((0.5, 0.6))
    with pytest.raises(ConfigError, match="up to 2"):
        SurvivalCurve((0.5, 0.4)).tokens(3)


@given(alpha=st.floats(0.01, 0.99), kappa=st.integers(1, 12))
def test_rate_and_accepted_are_inverse(alpha, kappa):
    accepted = iid_survival(alpha, kappa).accepted(kappa)
    assert iid_alpha_for_accepted(accepted, kappa) == pytest.approx(alpha, abs=1e-9)
    assert iid_break_even(1 + accepted, kappa) == pytest.approx(alpha, abs=1e-9)


def test_break_even_that_no_rate_reaches():
    assert iid_break_even(4.5, 3) is None
    assert iid_break_even(1.0, 3) == 0.0


def rounds_of(alphas, per_request, kappa, seed):
    rng = np.random.default_rng(seed)
    held = {}
    for number, alpha in enumerate(alphas):
        kept = (rng.random((per_request, kappa)) < alpha).cumprod(axis=1).sum(axis=1)
        held[str(number)] = AcceptanceCounts.from_rounds([(kappa, int(n)) for n in kept])
    pooled = AcceptanceCounts()
    for counts in held.values():
        pooled = pooled.merge(counts)
    return pooled, held


def test_estimate_of_counted_rounds():
    counts = AcceptanceCounts.from_rounds([(3, 3), (3, 1), (3, 0), (3, 2)])
    found = estimate_survival(counts)
    assert found.curve.rates == pytest.approx((0.75, 0.5, 0.25))
    assert found.effective_drafts == pytest.approx(4)
    assert all(
        low <= rate <= high
        for low, rate, high in zip(
            found.low.rates, found.curve.rates, found.high.rates, strict=True
        )
    )


def test_short_drafts_are_not_rejections():
    # Position 2 was drafted twice and kept twice: its conditional rate is 1, not 1/2.
    counts = AcceptanceCounts.from_rounds([(2, 2), (2, 2), (1, 1), (1, 1)])
    assert estimate_survival(counts).curve.rates == pytest.approx((1.0, 1.0))


def test_positions_that_nobody_reached_are_not_known():
    # The long draft failed at once; the short ones survived. Nothing is known of 2.
    counts = AcceptanceCounts.from_rounds([(1, 1), (1, 1), (2, 0)])
    assert estimate_survival(counts).curve.rates == pytest.approx((2 / 3,))
    # Where everything failed at 1, position 2 is known to yield nothing.
    counts = AcceptanceCounts.from_rounds([(2, 0), (2, 0)])
    assert estimate_survival(counts).curve.rates == (0.0, 0.0)


@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=60))
def test_estimates_are_curves_with_ordered_ends(rounds):
    counts = AcceptanceCounts.from_rounds([(n, min(n, kept)) for n, kept in rounds])
    found = estimate_survival(counts)
    for low, rate, high in zip(found.low.rates, found.curve.rates, found.high.rates, strict=True):
        assert low <= rate + 1e-9
        assert rate <= high + 1e-9


@pytest.mark.statistical
def test_interval_covers():
    # 300 experiments at 95 %: fewer than 270 (90 %) has probability 1.4e-4. A nominal
    # 80 % interval, the smallest defect meant, gives 240.
    covered = 0
    for seed in range(300):
        counts, _ = rounds_of([0.7], 80, 3, seed)
        found = estimate_survival(counts)
        covered += found.low.rates[2] <= 0.7**3 <= found.high.rates[2]
    assert covered >= 270


@pytest.mark.statistical
def test_interval_widens_where_requests_differ():
    # Half the requests at 0.95, half at 0.45: the pooled rate at position 1 is 0.7. The
    # interval on rounds alone covers it in about half of the experiments only.
    naive = clustered = 0
    for seed in range(100):
        rng = np.random.default_rng(1000 + seed)
        alphas = np.where(rng.random(20) < 0.5, 0.95, 0.45)
        pooled, held = rounds_of(alphas, 60, 1, seed)
        for requests in ({}, held):
            found = estimate_survival(pooled, requests)
            inside = found.low.rates[0] <= 0.7 <= found.high.rates[0]
            naive += inside and not requests
            clustered += inside and bool(requests)
    assert naive < 70
    assert clustered >= 85  # nominal 95; 85 or fewer has probability 2e-4


def test_rising_rates_are_recognised():
    pooled, held = rounds_of([0.95] * 20 + [0.45] * 20, 50, 4, 3)
    warnings = " ".join(estimate_survival(pooled, held).warnings)
    assert "not an improving drafter" in warnings
    assert "requests differ" in warnings


@pytest.mark.statistical
def test_equal_requests_raise_no_warning():
    # Nominal 1 % each; more than 10 of 200 has probability 1e-5.
    rising = differing = 0
    for seed in range(200):
        pooled, held = rounds_of([0.7] * 12, 40, 4, seed)
        rising += bool(rising_rates(pooled))
        differing += bool(differing_requests(list(held.values())))
    assert rising <= 10
    assert differing <= 10


def test_longer_drafts_need_a_model():
    counts = AcceptanceCounts.from_fixed_kappa(1000, [700, 553, 474])
    found = estimate_survival(counts)
    assert found.extended(2) is found
    with pytest.raises(ConfigError, match="beyond the logged 3"):
        found.extended(4)
    mixed = found.extended(5, "mixture")
    assert mixed.curve.rates[3:] == pytest.approx(
        mixture_survival((0.95, 0.45), (0.5, 0.5), 5).rates[3:], abs=0.01
    )
    assert mixed.assumed == "mixture"
    assert found.extended(4, "iid").curve.rates[3] == pytest.approx(0.474 * 0.474 / 0.553)


def test_two_kinds():
    (easy, hard), share = fit_two_kinds(mixture_survival((0.9, 0.3), (0.25, 0.75), 3).rates)
    assert (easy, hard, share) == pytest.approx((0.9, 0.3, 0.25))
    assert fit_two_kinds((0.5, 0.25, 0.125)) is None


def test_totals_without_positions():
    data = AcceptanceData("log", pooled=PooledRates(1.08, 3, 25))
    found = survival_of(data)
    assert found.assumed == "iid"
    assert found.curve.accepted(3) == pytest.approx(1.08)
    assert found.low.accepted(3) < 1.08 < found.high.accepted(3)
    silent = survival_of(AcceptanceData("gauge", pooled=PooledRates(1.08, 3)))
    assert silent.confidence == 0.0


def test_no_drafts_is_not_a_rate_of_zero():
    with pytest.raises(ConfigError, match="not known"):
        estimate_survival(AcceptanceCounts())
    with pytest.raises(ConfigError, match="not known"):
        survival_of(AcceptanceData("empty"))


def test_pooling_adds_counters():
    # Seven requests of 1 / 10 and one of 3200 / 4000: pooled .787, mean of rates .188.
    counts = AcceptanceCounts.from_fixed_kappa(4000, [3200])
    for _ in range(7):
        counts = counts.merge(AcceptanceCounts.from_fixed_kappa(10, [1]))
    assert estimate_survival(counts).curve.rates[0] == pytest.approx(3207 / 4070)


def test_isotonic_rates():
    assert monotone_rates((0.5, 0.6, 0.3), (1, 1, 1)) == pytest.approx((0.55, 0.55, 0.3))


def test_assumed_rates_say_so():
    assert "assumed" in assumed_survival(0.7, 4).warnings[0]
    with pytest.raises(ConfigError, match=r"1\.2"):
        assumed_survival(1.2, 4)
