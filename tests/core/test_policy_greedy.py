"""Greedy is one law on every path: the first of the largest logits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_kit import F32_MAX, law_of

from draftproof.core.law import OneHotLaw
from draftproof.core.policy import (
    DEFAULT_ORDER,
    GREEDY_TEMPERATURE,
    History,
    SamplingParams,
    target_law,
)
from draftproof.core.types import Draft
from draftproof.errors import NonFiniteLogitsError
from draftproof.verify import RULES, plain_token, verify


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-4, 1e-2])
def test_small_temperatures_are_finite_and_greedy_below_one_threshold(temperature: float) -> None:
    logits = np.array([1.0, 3.0, 2.5, -40.0], dtype=np.float32)
    params = SamplingParams(temperature=temperature)
    law = target_law(logits, params, History())
    assert np.isfinite(law.dense()).all()
    assert law.prob(1) == pytest.approx(1.0, abs=1e-12)
    assert params.is_greedy == law.is_one_hot == (temperature < GREEDY_TEMPERATURE)
    extreme = np.array([-F32_MAX, F32_MAX, 0.0, -np.inf], dtype=np.float32)
    assert target_law(extreme, params, History()).dense().tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "top_k": 2, "top_p": 0.3, "min_p": 0.9},
        {"top_k": 1},
        {"temperature": 0.5, "top_p": 1e-6},
        {"temperature": 0.0, "logit_bias": {0: -1.0}},
        {"temperature": 0.0, "order": DEFAULT_ORDER[::-1], "top_k": 3, "presence_penalty": 1.0},
    ],
)
def test_the_first_of_equal_logits_wins_on_every_path(fields) -> None:
    tied = [1.0, 3.0, 3.0, 0.0]
    law = law_of(tied, **fields)
    assert isinstance(law, OneHotLaw)
    assert law.draw(0.999) == 1
    for rule in RULES:
        assert plain_token(rule, law, None) == 1
        for drafted in (1, 2):  # a tie between a drafted and another token
            verdict = verify(rule, Draft((drafted,)), lambda j: law, _NoCoins())
            assert (verdict.num_accepted, verdict.token_id) == (int(drafted == 1), 1)


class _NoCoins:
    """Greedy rounds need no randomness beyond what cannot matter."""

    def accept(self, i: int) -> float:
        return 0.5

    def sample(self, i: int) -> float:
        return 0.999


@given(st.permutations(DEFAULT_ORDER), st.integers(0, 2**32))
def test_greedy_is_the_limit_of_small_temperatures_in_every_order(order, seed: int) -> None:
    rng = np.random.default_rng(seed)
    fields = {
        "order": tuple(order), "top_k": 3, "top_p": 0.8, "min_p": 0.05,
        "banned_token_ids": (int(rng.integers(6)),), "logit_bias": {2: 0.9},
    }  # fmt: skip
    logits = rng.permutation(6) * 0.7
    try:
        cold = law_of(logits, temperature=1.01e-5, **fields)
    except NonFiniteLogitsError:
        with pytest.raises(NonFiniteLogitsError):
            law_of(logits, temperature=0.0, **fields)
        return
    assert law_of(logits, temperature=0.0, **fields).prob(int(cold.dense().argmax())) == 1.0
