"""Coins are pure functions of what they are for, uniform, and never shared by accident."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.core.law import DenseLaw
from draftproof.core.rng import CoinSource, fresh_seed
from draftproof.errors import InvariantError


def all_coins(source: CoinSource, start: int) -> list[float]:
    coins = source.round(start)
    values = [coins.draft(i) for i in range(20)]
    values += [coins.accept(i) for i in range(20)]
    values += [coins.sample(i) for i in range(20)]
    return values + coins.noise(2, 7)[:].tolist()


def test_order_and_company_of_the_questions_do_not_matter() -> None:
    alone = all_coins(CoinSource(9), 40)
    busy = CoinSource(9)
    for start in (0, 7, 39, 500, 40, 33):
        all_coins(busy, start)
    assert all_coins(busy, 40) == alone
    backwards = CoinSource(9).round(40)
    assert [backwards.accept(i) for i in reversed(range(20))] == alone[39:19:-1]


def test_values_are_pinned_so_that_a_seed_means_the_same_text_tomorrow() -> None:
    coins = CoinSource(3).round(5)
    seen = [coins.draft(0), coins.accept(0), coins.sample(0), *coins.noise(0, 2)]
    assert seen == pytest.approx(
        [0.8342907488739597, 0.41534039211666274, 0.12844442111266108, 0.08795629, 0.43052367],
        abs=1e-8,
    )


def test_sample_and_noise_belong_to_positions_and_the_rest_to_rounds() -> None:
    source = CoinSource(1)
    early, late = source.round(10), source.round(13)
    assert early.sample(3) == late.sample(0)
    assert (early.noise(3, 5)[:] == late.noise(0, 5)[:]).all()
    assert early.draft(3) != late.draft(0)
    assert early.accept(3) != late.accept(0)


def test_no_two_places_share_a_coin() -> None:
    seen: list[float] = []
    for seed, stream in [(0, 0), (0, 1), (1, 0), (2**64 - 1, 0), (1 << 40, 3)]:
        source = CoinSource(seed, stream)
        for start in range(0, 70):
            coins = source.round(start)
            seen += [coins.draft(i) for i in range(10)]
            seen += [coins.accept(i) for i in range(10)]
            seen.append(coins.sample(0))
    assert len(set(seen)) == len(seen)


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert CoinSource(-1).round(0).sample(0) == CoinSource(2**64 - 1).round(0).sample(0)
    assert CoinSource(2**64 + 5).seed == 5
    assert CoinSource(5).round(0).sample(0) != CoinSource(5, 1).round(0).sample(0)


def test_a_shorter_vocabulary_gets_a_prefix_of_the_noise_and_none_may_write() -> None:
    coins = CoinSource(4).round(0)
    short = coins.noise(1, 10)[:]
    assert (coins.noise(1, 1000)[:10] == short).all()
    with pytest.raises(ValueError, match="read-only"):
        short[0] = 1.0


@pytest.mark.parametrize("call", [lambda: CoinSource(1, -1), lambda: CoinSource(1).round(-3)])
def test_negative_places_are_refused(call) -> None:
    with pytest.raises(InvariantError, match="expected 0 or more"):
        call()


def ks_distance(values: np.ndarray, cdf) -> float:
    values = np.sort(values)
    grid = np.arange(len(values) + 1) / len(values)
    probs = cdf(values)
    return float(max((probs - grid[:-1]).max(), (grid[1:] - probs).max()))


@pytest.mark.statistical
def test_coins_are_uniform_and_the_noise_exponential() -> None:
    # Kolmogorov-Smirnov, 20,000 values: alarm above 0.0198 has probability 2 e^(-2 n d^2)
    # = 3e-7 per coin kind, and any cdf off by 0.04 is seen with the same certainty.
    n, alarm = 20_000, 0.0198
    assert 2 * math.exp(-2 * n * alarm**2) < 1e-6
    source = CoinSource(20260101)
    rounds = [source.round(start) for start in range(0, n)]
    kinds = [
        [coins.draft(0) for coins in rounds],
        [coins.accept(3) for coins in rounds],
        [coins.sample(0) for coins in rounds],
        [CoinSource(seed).round(0).sample(0) for seed in range(n)],
    ]
    for values in kinds:
        assert min(values) >= 0.0
        assert max(values) < 1.0
        assert ks_distance(np.array(values), lambda x: x) < alarm
    noise = source.round(0).noise(0, n)[:]
    assert noise.min() > 0
    assert ks_distance(noise, lambda x: -np.expm1(-x)) < alarm
    # Neighbouring coins are uncorrelated: six standard errors.
    for left, right in [(kinds[0], kinds[1]), (kinds[2][:-1], kinds[2][1:])]:
        assert abs(np.corrcoef(left, right)[0, 1]) < 6 / math.sqrt(n)


def test_serial_unseeded_requests_all_differ() -> None:
    law = DenseLaw(np.ones(16))
    texts = set()
    first = np.zeros(16)
    for _ in range(200):
        source = CoinSource(fresh_seed())
        text = tuple(law.draw(source.round(i).sample(0)) for i in range(8))
        first[text[0]] += 1
        texts.add(text)
    # 200 of 16^8 texts: a repeat has probability 5e-6. First tokens: chi-square of 15
    # degrees exceeds 60 with probability 2e-7.
    assert len(texts) == 200
    assert ((first - 12.5) ** 2 / 12.5).sum() < 60


def test_same_seed_same_text_other_seed_other_text() -> None:
    law = DenseLaw(np.ones(16))

    def text(seed: int) -> list[int]:
        source = CoinSource(seed)
        return [law.draw(source.round(i).sample(0)) for i in range(12)]

    assert text(8) == text(8)
    assert text(8) != text(9)
