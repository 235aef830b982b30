"""The published figures that every planner should reproduce.

Derived figures follow from configuration files and data sheets, not from measurement.
Sources: S1 "Speculative decoding and the correctness proof" (derived roofline of an
8B/1B pair); S2 "four acts" (cost and acceptance tables); S3 SpecDecode-Bench's fit.
"""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.core.law import DenseLaw
from draftproof.planner.acceptance import (
    conditional_rates,
    iid_alpha_for_accepted,
    iid_break_even,
    iid_round,
    iid_survival,
    mixture_posterior,
    mixture_survival,
)
from draftproof.planner.cost import AffineCost, RooflineCost, ScaledCost, step_seconds
from draftproof.planner.hardware import read_hardware
from draftproof.planner.memory import compaction_bytes, noise_row_bytes, reserved_slots
from draftproof.planner.read_config import read_model
from draftproof.planner.rounds import (
    AutoregressiveDraft,
    ParallelDraft,
    RoundCost,
    published_round_cost,
)
from draftproof.planner.rules import overlap_at_temperature, token_acceptance
from draftproof.planner.search import RoundTimes, best_kappa, crossing_batch, speedup

H100 = read_hardware("h100-sxm")
TARGET, DRAFT = read_model("llama-3-8b"), read_model("llama-3.2-1b")


def roofline_pair(context: float = 0.0) -> RoundCost:
    target = RooflineCost.of(TARGET, H100, context=context)
    return RoundCost(target, AutoregressiveDraft(RooflineCost.of(DRAFT, H100, context=context)))


# Roofline, S1 section "the roofline": derived.


def test_bytes_and_floor_of_the_8b_target():
    assert TARGET.streamed_params == pytest.approx(7.50e9, abs=0.01e9)
    assert TARGET.streamed_bytes() == pytest.approx(15.01e9, abs=0.005e9)
    seconds = step_seconds(RooflineCost.of(TARGET, H100), 1, 1)
    assert seconds == pytest.approx(4.48e-3, abs=0.005e-3)
    assert 1 / seconds == pytest.approx(223, abs=0.5)


def test_bytes_and_floor_of_the_1b_drafter():
    assert DRAFT.params_per_dense_layer == pytest.approx(60.8e6, abs=0.05e6)
    assert DRAFT.dense_block_params == pytest.approx(973e6, abs=0.5e6)
    assert DRAFT.head_params == pytest.approx(263e6, abs=0.5e6)
    assert DRAFT.streamed_params == pytest.approx(1.236e9, abs=0.0005e9)
    assert DRAFT.streamed_bytes() == pytest.approx(2.47e9, abs=0.005e9)
    seconds = step_seconds(RooflineCost.of(DRAFT, H100), 1, 1)
    assert seconds == pytest.approx(0.74e-3, abs=0.005e-3)


def test_cost_ratio_of_the_pair():
    assert DRAFT.streamed_bytes() / TARGET.streamed_bytes() == pytest.approx(0.165, abs=5e-4)


def test_ridge():
    assert H100.ridge_tokens() == pytest.approx(295, abs=0.5)


def test_cache_bytes():
    assert TARGET.kv_bytes_per_token == 128 * 1024
    slots = reserved_slots(3, double_buffered=True)
    assert (slots, reserved_slots(0, double_buffered=True)) == (8, 1)
    mib = 1024**2
    assert 64 * slots * TARGET.kv_bytes_per_token == 64 * mib
    assert 64 * TARGET.kv_bytes_per_token == 8 * mib


def test_compacting_a_tree_path():
    moved = compaction_bytes(TARGET, 64, 2.5)
    assert moved == pytest.approx(40e6, rel=0.06)  # "about 40 MB": 40 MiB
    assert moved / H100.bytes_per_s == pytest.approx(12e-6, rel=0.06)


def test_exponential_rows():
    assert noise_row_bytes(64, 128_256) == pytest.approx(32.8e6, abs=0.05e6)


# Tokens per round, S2 act III.


@pytest.mark.parametrize(
    ("alpha", "kappa", "accepted", "tokens", "all_accepted"),
    [
        (0.8, 8, 3.329, 4.329, 0.168),
        (0.5, 4, 0.938, 1.938, 0.062),
        (0.95, 16, 10.638, 11.638, 0.440),
    ],
)
def test_tokens_per_round(alpha, kappa, accepted, tokens, all_accepted):
    found = iid_round(alpha, kappa)
    assert found.accepted == pytest.approx(accepted, abs=6e-4)
    assert found.tokens == pytest.approx(tokens, abs=6e-4)
    assert found.all_accepted == pytest.approx(all_accepted, abs=6e-4)
    closed = (1 - alpha ** (kappa + 1)) / (1 - alpha)
    assert found.tokens == pytest.approx(closed, rel=1e-12)


def test_the_wrong_product():
    assert iid_round(0.8, 8).naive_accepted == pytest.approx(6.4)


def test_mixture_of_easy_and_hard():
    curve = mixture_survival((0.95, 0.45), (0.5, 0.5), 4)
    # S2 prints simulated survival (.475 at 3, exact .474) and product (.241, exact .240).
    assert curve.rates == pytest.approx([0.700, 0.5525, 0.474, 0.428], abs=1.1e-3)
    assert curve.conditional() == pytest.approx([0.700, 0.789, 0.858, 0.902], abs=6e-4)
    assert pytest.approx(0.241, abs=2e-3) == 0.7**4  # the product of flat rates: wrong
    assert curve.rates[3] > 1.7 * 0.7**4


def test_posterior_of_easy():
    found = [mixture_posterior((0.95, 0.45), (0.5, 0.5), j)[0] for j in range(4)]
    assert found == pytest.approx([0.5, 0.679, 0.817, 0.904], abs=6e-4)


# Speedups, S2 act IV: E[N] / (k c_d + c_v).


def normalised_cost(draft_ratio: float, kappa: int, verify: float) -> RoundCost:
    """Plain step 1, verification of kappa drafts ``verify``."""
    per_token = (verify - 1.0) / kappa
    target = AffineCost(1.0 - per_token, per_token)
    return RoundCost(target, AutoregressiveDraft(AffineCost(draft_ratio, 0.0)))


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.4, (0.83, 0.69, 0.52, 0.42, 0.35)),
        (0.6, (1.24, 1.03, 0.77, 0.62, 0.52)),
        (0.8, (2.16, 1.80, 1.35, 1.08, 0.90)),
        (0.9, (3.06, 2.55, 1.91, 1.53, 1.28)),
    ],
)
def test_speedup_table_of_eight_drafts(alpha, expected):
    curve = iid_survival(alpha, 8)
    ratios = (0.05, 0.1, 0.2, 0.3, 0.4)
    found = [speedup(normalised_cost(c, 8, 1.6), curve, 1, 8) for c in ratios]
    assert found == pytest.approx(expected, abs=0.0051)


@pytest.mark.parametrize(
    ("kappa", "verify", "expected"), [(4, 1.0, 2.10), (8, 1.0, 1.97), (8, 1.6, 1.55), (16, 2.5, 1)]
)
def test_same_acceptance_other_speedups(kappa, verify, expected):
    curve = iid_survival(0.8, kappa)
    found = speedup(normalised_cost(0.15, kappa, verify), curve, 1, kappa)
    assert found == pytest.approx(expected, abs=0.0051)


@pytest.mark.parametrize(
    ("alpha", "expected"),
    [
        (0.5, (1.25, 1.25, 1.08, 0.77, 0.48, 0.27)),
        (0.7, (1.42, 1.56, 1.54, 1.23, 0.79, 0.45)),
        (0.9, (1.58, 1.94, 2.28, 2.36, 1.98, 1.31)),
    ],
)
def test_draft_length_has_an_optimum(alpha, expected):
    cost = RoundCost(AffineCost(0.95, 0.05), AutoregressiveDraft(AffineCost(0.15, 0.0)))
    found = [speedup(cost, iid_survival(alpha, k), 1, k) for k in (1, 2, 4, 8, 16, 32)]
    assert found == pytest.approx(expected, abs=0.0051)


def test_closed_form_with_the_right_variables():
    # A public report had 1.69 here: alpha stood where kappa belongs.
    cost = normalised_cost(0.11, 5, 1.0)
    assert speedup(cost, iid_survival(0.44, 5), 1, 5) == pytest.approx(1.14, abs=0.005)


# The pair on the roofline, S1 "when speculation loses".


def test_break_even_alpha():
    assert iid_break_even(1 + 3 * 0.165, 3) == pytest.approx(0.34, abs=0.005)


def test_crossing_on_the_roofline():
    target = RooflineCost.normalised(295)
    cost = RoundCost(target, AutoregressiveDraft(ScaledCost(target, 0.165)))
    curve = iid_survival(0.7, 3)
    assert crossing_batch(RoundTimes(cost, 3), curve, kappa=3) == pytest.approx(150, abs=1)
    assert speedup(cost, curve, 295, 3) == pytest.approx(0.56, abs=0.005)
    assert 1 - speedup(cost, curve, 295, 3) == pytest.approx(0.44, abs=0.005)
    # Memory-bound for all widths: the textbook formula; compute-bound: E / ((k+1) + k c).
    expected = curve.tokens(3)
    assert speedup(cost, curve, 10, 3) == pytest.approx(expected / (1 + 3 * 0.165))
    assert speedup(cost, curve, 4000, 3) == pytest.approx(expected / (4 + 3 * 0.165))


def test_crossing_from_the_configuration_files():
    curve = iid_survival(0.7, 3)
    assert crossing_batch(RoundTimes(roofline_pair(), 3), curve, kappa=3) == pytest.approx(
        150, abs=2
    )


def test_step_of_the_pair():
    # S1 adds rounded parts, 4.48 + 3 x 0.74 = 6.70; without rounding it is 6.69.
    assert roofline_pair().round_s(1, 3) == pytest.approx(6.694e-3, abs=0.001e-3)
    assert iid_round(0.7, 3).tokens == pytest.approx(2.53, abs=0.005)


def test_conditional_rates():
    assert conditional_rates((0.8, 0.6, 0.0, 0.0)) == pytest.approx((0.8, 0.75, 0.0, 0.0))


# Acceptance and the policy, S2 act I.

TEMPERATURES = (0.1, 0.3, 0.7, 1, 2, 5, 20)


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        ((4, 2, 1, 0.5), (4, 0.5, 1, 2), (1.000, 0.999, 0.953, 0.913, 0.890, 0.936, 0.982)),
        ((4, 3.6, 1, 0.5), (3.6, 4, 1, 0.5), (0.036, 0.417, 0.725, 0.812, 0.918, 0.974, 0.995)),
    ],
)
def test_overlap_and_temperature(target, draft, expected):
    found = [overlap_at_temperature(target, draft, t) for t in TEMPERATURES]
    assert found == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("q", [(0.6, 0.1, 0.3), (1.0, 0.0, 0.0), (0.2, 0.5, 0.3)])
def test_masses_add_up_to_the_target(q):
    p = np.array((0.2, 0.5, 0.3))
    q = np.array(q)
    accepted = token_acceptance(p, q)
    assert accepted == pytest.approx(1 - np.abs(p - q).sum() / 2, abs=1e-12)
    residual = DenseLaw(p.astype(np.float64)).residual(DenseLaw(q)).dense()
    output = np.minimum(p, q) + (1 - accepted) * residual
    assert output == pytest.approx(p, abs=1e-6)  # the core's laws hold float32 weights


# Published step costs, S3: Llama-3.1-8B in bf16 on an H100, context 1000.

EAGLE = published_round_cost("llama-3.1-8b-h100-eagle")
NGRAM = published_round_cost("llama-3.1-8b-h100-ngram")


@pytest.mark.parametrize(
    ("batch", "eagle", "ngram"),
    [
        (1, (1.30, 1.31, 1.31, 1.32), (1.01, 1.03)),
        (32, (1.32, 1.47, 1.62, 1.77), (1.23, 1.53)),
        (128, (1.35, 1.71, 2.07, 2.44), (1.55, 2.28)),
        (512, (1.37, 1.94, 2.51, 3.07), (1.86, 3.00)),
    ],
)
def test_break_even_tokens_of_the_published_fit(batch, eagle, ngram):
    def needed(cost, kappa):
        return cost.round_s(batch, kappa, 1000) / cost.plain_s(batch, 1000)

    assert [needed(EAGLE, k) for k in (1, 3, 5, 7)] == pytest.approx(eagle, abs=0.0051)
    assert [needed(NGRAM, k) for k in (3, 7)] == pytest.approx(ngram, abs=0.0051)


def test_long_context_keeps_large_batches_memory_bound():
    found = EAGLE.round_s(128, 5, 8000) / EAGLE.plain_s(128, 8000)
    assert found == pytest.approx(1.36, abs=0.0051)


@pytest.mark.parametrize(
    ("batch", "kappa", "expected"), [(1, 15, 3.6), (32, 7, 2.35), (128, 5, 1.78), (256, 4, 1.62)]
)
def test_best_kappa_of_the_published_fit(batch, kappa, expected):
    curve = iid_survival(0.8, 15)
    assert best_kappa(RoundTimes(EAGLE, 15, 1000), curve, batch, min_gain=0.0) == kappa
    assert speedup(EAGLE, curve, batch, kappa, 1000) == pytest.approx(expected, abs=0.051)


def test_the_published_fit_against_the_roofline():
    # 81 % of c0 is the streaming of all 16.06 GB; c1 is 764 TFLOP/s of 989.4.
    floor = TARGET.stored_bytes / H100.bytes_per_s
    assert floor == pytest.approx(4.79e-3, abs=0.01e-3)
    assert floor / 5.886e-3 == pytest.approx(0.81, abs=0.005)
    assert 2 * TARGET.total_params / 21.0e-6 / H100.flops_per_s == pytest.approx(0.77, abs=0.005)
    assert pytest.approx(280, abs=0.5) == 5.886e-3 / 21.0e-6


def test_reported_positions_of_a_server():
    # vLLM's unconditional rates are a survival curve: its mean acceptance length is E[N].
    rates = (0.640, 0.320, 0.120)
    assert 1 + sum(rates) == pytest.approx(2.08)
    assert iid_alpha_for_accepted(1.08, 3) == pytest.approx(0.570, abs=5e-4)


def test_lookup_drafting_is_not_free_verification():
    cost = RoundCost(AffineCost(0.0, 1.0), ParallelDraft())
    assert speedup(cost, iid_survival(0.9, 3), 1, 3) == pytest.approx(3.439 / 4)
