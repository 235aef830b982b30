"""A draft law on the device is a law of the core, and drafts are drawn from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from device_kit import random_logits, random_params, random_pass, same  # noqa: E402

from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw  # noqa: E402
from draftproof.core.policy import History, SamplingParams, target_law  # noqa: E402
from draftproof.core.rng import CoinSource  # noqa: E402
from draftproof.core.types import Draft  # noqa: E402
from draftproof.device import DeviceLaw, Place, TorchExecutor, draw_drafts  # noqa: E402
from draftproof.errors import ConfigError, InvariantError, NonFiniteLogitsError  # noqa: E402
from draftproof.verify import NumpyExecutor, VerifyRow  # noqa: E402

WEIGHTS = np.array([0.0, 3.0, 1.0, 0.0, 4.0], dtype=np.float32)


def device_law(weights=WEIGHTS, known=None) -> DeviceLaw:
    return DeviceLaw(torch.from_numpy(weights), float(weights.sum(dtype=np.float64)), known)


def test_it_is_the_law_of_its_weights():
    law, twin = device_law(), DenseLaw(WEIGHTS.copy())
    assert [law.prob(t) for t in (-1, 0, 1, 4, 5)] == [0, 0, 3 / 8, 1 / 2, 0]
    assert law.vocab_size == 5
    assert not law.is_one_hot
    assert np.array_equal(law.dense(), twin.dense())
    assert np.array_equal(law.probs_at(np.array([4, 1])), [0.5, 0.375])
    noise = np.array([0.1, 0.5, 0.2, 0.1, 2.0])
    assert law.race(noise) == twin.race(noise)
    for u in (0.0, 0.374, 0.375, 0.4999, 0.5, 1 - 2.0**-53):
        assert law.draw(u) == twin.draw(u)


def test_known_weights_are_not_fetched():
    law = device_law(known=(1, 3.0))
    assert law.prob(1) == 3 / 8


@pytest.mark.parametrize(
    "other", [DenseLaw([1, 1, 1, 1, 1.0]), SparseLaw([1, 3], [1, 1], 5), OneHotLaw(4, 5)]
)
@pytest.mark.parametrize("scale", [1, 0.6])
def test_residuals_on_both_sides(other, scale):
    law, twin = device_law(), DenseLaw(WEIGHTS.copy())
    for one, two, right in ((law, other, (twin, other)), (other, law, (other, twin))):
        mass, residual = one.residual_with_mass(two, scale)
        expected_mass, expected = right[0].residual_with_mass(right[1], scale)
        assert mass == pytest.approx(expected_mass, abs=1e-15)
        assert np.allclose(residual.dense(), expected.dense(), atol=1e-15)


@pytest.mark.parametrize(
    ("weights", "total"),
    [
        (torch.ones(2, 2), 4.0),
        (torch.ones(2, dtype=torch.float64), 2.0),
        (torch.ones(0), 1.0),
        (torch.zeros(2), 0.0),
        (torch.ones(2), float("nan")),
    ],
)
def test_what_is_no_law_is_refused(weights, total):
    with pytest.raises(InvariantError, match="expected"):
        DeviceLaw(weights, total)


def test_drafts_are_the_definitions_own():
    """The same token as the core's law of the same logits, and the same probability."""
    rng = np.random.default_rng(0)
    num_drawn = num_equal = 0
    for seed in range(25):
        size = (3, 256, 300, 1000)[seed % 4]
        logits = random_logits(rng, 5, size)
        places = [Place(row, random_params(rng, size), History([0, 1]), (2,)) for row in range(5)]
        coins = rng.random(5).tolist()
        drafted = draw_drafts(torch.from_numpy(logits), places, coins)
        for place, coin, entry in zip(places, coins, drafted, strict=True):
            try:
                law = target_law(logits[place.row], place.params, place.history, place.extra)
            except NonFiniteLogitsError:
                assert isinstance(entry, NonFiniteLogitsError)
                continue
            token, own = entry
            num_drawn += 1
            num_equal += token == law.draw(coin)
            assert own.is_one_hot == place.params.is_greedy
            assert own.prob(token) == pytest.approx(law.prob(token), rel=3e-6)
            assert own.prob(token) == pytest.approx(own.dense()[token], rel=1e-12)
            assert np.allclose(own.dense(), law.dense(), rtol=3e-6, atol=1e-12)
    assert num_drawn > 100
    assert num_equal >= num_drawn - 1  # a coin may lie within the rounding of an edge


def test_draws_agree_with_the_law_that_is_reported():
    """DI-5: 20,000 coins through the draw, and through the reported law: no mismatch."""
    rng = np.random.default_rng(1)
    logits = torch.from_numpy((rng.normal(size=(1, 300)) * 2).astype(np.float32)).bfloat16()
    places = [Place(0, SamplingParams(temperature=0.7), History())] * 2000
    for _ in range(10):
        coins = rng.random(2000).tolist()
        drafted = draw_drafts(logits, places, coins)
        law = drafted[0][1]
        assert [token for token, _ in drafted] == [law.draw(u) for u in coins]


def test_a_place_without_a_law_harms_no_neighbour():
    logits = torch.zeros(3, 10)
    logits[1, 4] = torch.nan
    logits[1, 5] = torch.inf
    for temperature in (0.0, 1.0):
        place = Place(0, SamplingParams(temperature=temperature), History())
        drafted = draw_drafts(logits, [replace(place, row=r) for r in range(3)], [0.1, 0.2, 0.35])
        assert isinstance(drafted[1], NonFiniteLogitsError)
        assert [drafted[0][0], drafted[2][0]] == ([0, 0] if temperature == 0 else [1, 3])
    assert draw_drafts(logits, [], []) == []


def test_policies_that_the_device_does_not_run_are_refused():
    place = Place(0, SamplingParams(banned_token_ids=(10,)), History())
    with pytest.raises(ConfigError, match="expected"):
        draw_drafts(torch.zeros(1, 10), [place], [0.5])


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_judging_device_laws_equals_judging_the_same_laws_on_the_host(rule):
    for seed in range(20):
        work = random_pass(seed, 300, [3, 0, 5], rule=rule, kind=2)
        on_device, on_host = [], []
        for row in work.rows:
            weights = [np.float32(law.dense()) for law in row.draft.laws or ()]
            there = tuple(device_law(w) for w in weights)
            here = tuple(DenseLaw(w) for w in weights)
            tokens = row.draft.token_ids
            on_device.append(replace(row, draft=Draft(tokens, there or None, "kit")))
            on_host.append(replace(row, draft=Draft(tokens, here or None, "kit")))
        executor = TorchExecutor()
        got = executor.judge(on_device, torch.from_numpy(work.logits))
        assert all(map(same, replace(work, rows=on_host).truth(), got))
        assert executor.counts.num_unsupported == 0


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("noise", [0.0, 1e-7, 1e-3, 0.1])
def test_drafters_that_are_almost_the_target(rule, spread, noise):
    """Ratios next to 1, where rounding could decide: still the definition's choice."""
    rng = np.random.default_rng(5)
    executor = TorchExecutor()
    for seed in range(6):
        logits = (rng.normal(size=(5, 200)) * spread).astype(np.float32)
        near = logits + (noise * rng.normal(size=logits.shape)).astype(np.float32)
        params = SamplingParams(temperature=0.8)
        coins = CoinSource(seed).round(3)
        places = [Place(i, params, History()) for i in range(4)]
        drafted = draw_drafts(torch.from_numpy(near), places, [coins.draft(i) for i in range(4)])
        draft = Draft(tuple(t for t, _ in drafted), tuple(law for _, law in drafted), "kit")
        row = VerifyRow("r", rule, draft, params, History(), coins, None, 0)
        got = executor.judge([row], torch.from_numpy(logits))
        assert got == NumpyExecutor().judge([row], logits)
    if noise > 0.01:
        assert executor.counts.num_native >= 5
