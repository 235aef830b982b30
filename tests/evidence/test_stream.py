"""Bets along one text: fair under the reference, and won against every fault."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import softmax

from draftproof.errors import ConfigError
from draftproof.evidence import StreamAudit, StreamBets

VOCAB = 40


def rows(rng, count: int, noise: float = 0.9):
    logits = 2 * rng.normal(size=(count, VOCAB))
    return softmax(logits, axis=1), softmax(logits + noise * rng.normal(size=logits.shape), axis=1)


def normal(weights):
    return weights / weights.sum(axis=1, keepdims=True)


def token_rule(p, q, accept, residual):
    kept = q * accept
    return kept + (1 - kept.sum(axis=1, keepdims=True)) * residual


#: What a wrong rule emits at a position where it drafts, given p and q.
FAULTS = {
    "target drawn again on reject": lambda p, q: token_rule(p, q, np.minimum(1, p / q), p),
    "lenience .7": lambda p, q: token_rule(
        p, q, np.minimum(1, p / (0.7 * q)), normal(np.maximum(p - q, 0))
    ),
    "q at another temperature": lambda p, q: token_rule(
        p, q, np.minimum(1, p / normal(q**2)), normal(np.maximum(p - normal(q**2), 0))
    ),
    "target cut by top-p": lambda p, q: normal(
        np.where(p >= np.quantile(p, 0.7, axis=1)[:, None], p, 0)
    ),
    "temperature ignored": lambda p, q: normal(p**0.8),
}


def draw(law, rng):
    return (np.cumsum(law, axis=1) > rng.random((len(law), 1))).argmax(axis=1)


def run(fault, rng, tokens: int, bets: StreamBets | None = None) -> StreamAudit:
    audit = StreamAudit(bets)
    while audit.num_tokens < tokens and not audit.is_alarmed:
        p, q = rows(rng, 200)
        audit.add(p, q, draw(p if fault is None else fault(p, q), rng))
    return audit


def means(bets: StreamBets, p, q, law) -> np.ndarray:
    """Return the mean factor of every bettor under a law, exactly."""
    total = np.zeros((len(p), len(bets.log_weights)))
    for token in range(VOCAB):
        factors = np.exp(bets.log_factors(p, q, np.full(len(p), token)))
        assert factors.min() >= 0
        total += law[:, [token]] * factors
    return total


@pytest.mark.parametrize("draft", ["soft", "one-hot", "disjoint", "none"])
def test_every_bet_is_fair_under_the_reference(draft: str) -> None:
    p, q = rows(np.random.default_rng(0), 6, noise=2.0)
    p[0] = np.eye(VOCAB)[3]
    p[1, : VOCAB // 2] = 0
    p[1] /= p[1].sum()
    if draft == "one-hot":
        q = np.eye(VOCAB)[q.argmax(axis=1)]
    elif draft == "disjoint":
        q[1, VOCAB // 2 :] = 0
    found = means(StreamBets(), p, None if draft == "none" else q, p)
    assert found == pytest.approx(np.ones_like(found), abs=1e-9)


def test_a_bet_on_the_raw_ratio_would_be_unfair() -> None:
    """The planted fault: the mean of the capped ratio is not 1, so it must be subtracted."""
    p, q = rows(np.random.default_rng(1), 5, noise=2.0)
    raw = (p * (1 + 0.5 * (np.minimum(q / p, 2.0) / 2 - 0.5))).sum(axis=1)
    assert abs(raw - 1).max() > 0.02


def test_within_the_tolerance_nobody_wins() -> None:
    """The worst law at a TV of 0.01: mass from the factor's worst tokens to its best one."""
    bets = StreamBets(tolerance=0.01)
    p, q = rows(np.random.default_rng(2), 5, noise=2.0)
    logs = np.stack(
        [bets.log_factors(p, q, np.full(len(p), token)) for token in range(VOCAB)], axis=1
    )
    for position in range(len(p)):
        for bettor in range(logs.shape[2]):
            law, left = p[position].copy(), 0.01
            order = np.argsort(logs[position, :, bettor])
            for token in order:
                moved = min(left, law[token])
                law[token] -= moved
                left -= moved
            law[order[-1]] += 0.01
            assert law @ np.exp(logs[position, :, bettor]) <= 1 + 1e-9
    assert means(StreamBets(), p, q, p).max() > 1 - 1e-9


@pytest.mark.statistical
def test_a_right_decoder_is_not_accused() -> None:
    """30 texts of 1,000 tokens at level 0.001 each: a chance of 0.03 in all, fixed seed."""
    rng = np.random.default_rng(3)
    assert not any(run(None, rng, 1000).is_alarmed for _ in range(30))


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_found_within_3000_tokens(name: str) -> None:
    audit = run(FAULTS[name], np.random.default_rng(4), 3000)
    assert audit.is_alarmed
    assert audit.alarmed_at <= audit.num_tokens
    assert audit.log_peak >= math.log(1000)


def test_noise_below_the_tolerance_does_not_grow_into_an_alarm() -> None:
    """Log-probabilities shifted by up to 0.05 in favour of the drafter, TV about 0.01."""

    def noisy(p, q):
        return normal(p * np.exp(np.clip(np.log(q / p), -0.05, 0.05)))

    p, q = rows(np.random.default_rng(5), 200)
    assert 0.005 < np.abs(noisy(p, q) - p).sum(axis=1).mean() / 2 < 0.03
    strict = run(noisy, np.random.default_rng(6), 12_000)
    patient = run(noisy, np.random.default_rng(6), 12_000, StreamBets(tolerance=0.03))
    assert strict.is_alarmed
    assert not patient.is_alarmed


def test_chunks_do_not_matter_and_impossible_tokens_alarm() -> None:
    rng = np.random.default_rng(7)
    p, q = rows(rng, 60)
    tokens = draw(p, rng)
    whole, parts = StreamAudit(), StreamAudit()
    whole.add(p, q, tokens)
    for begin in range(0, 60, 7):
        part = slice(begin, begin + 7)
        parts.add(p[part], q[part], tokens[part])
    assert parts.log_e == pytest.approx(whole.log_e)
    assert parts.log_peak == pytest.approx(whole.log_peak)
    p[2, 5] = 0
    broken = StreamAudit()
    assert broken.add(p[:4], q[:4], [0, 1, 5, 3])
    assert broken.alarmed_at == 3
    assert broken.log_e == math.inf


def test_wrong_input_is_named() -> None:
    p, q = rows(np.random.default_rng(8), 3)
    with pytest.raises(ConfigError, match="draft laws of shape"):
        StreamAudit().add(p, q[:2], [0, 1, 2])
    with pytest.raises(ConfigError, match="laws of shape"):
        StreamAudit().add(p, q, [0, 1])
    for bad in ({"caps": (1.0,)}, {"stakes": (1.0,)}, {"temperatures": (1.0,)}, {"tolerance": 1.0}):
        with pytest.raises(ConfigError):
            StreamBets(**bad)
