"""Rows that are no law and requests that make no sense are refused by name."""

from __future__ import annotations

import math
import re
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from policy_kit import F32_MAX, law_of

from draftproof.core.law import DenseLaw
from draftproof.core.policy import (
    DEFAULT_ORDER,
    History,
    SamplingParams,
    target_law,
)
from draftproof.errors import ConfigError, NonFiniteLogitsError


@pytest.mark.parametrize(
    "row",
    [[np.nan, 1.0], [1.0, np.nan], [np.inf, 0.0], [-np.inf, -np.inf], [np.nan, -np.inf]],
)
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.0}, {"top_k": 1}, {"allowed_token_ids": (1,)}]
)
def test_rows_that_are_no_law_are_refused(row, fields) -> None:
    with pytest.raises(NonFiniteLogitsError, match="expected a finite one"):
        law_of(row, **fields)


def test_a_mask_that_leaves_nothing_is_refused() -> None:
    for fields in (
        {"banned_token_ids": (0, 1)},
        {"allowed_token_ids": (1,), "banned_token_ids": (1,)},
        {"temperature": 0.0, "banned_token_ids": (0, 1)},
    ):
        with pytest.raises(NonFiniteLogitsError):
            law_of([1.0, 2.0], **fields)
    with pytest.raises(NonFiniteLogitsError):
        law_of([-np.inf, 2.0], allowed_token_ids=(0,))


@pytest.mark.parametrize("later", ["bias", "penalties", "temperature", "top_k", "top_p", "min_p"])
def test_a_filter_that_left_no_allowed_token_is_refused_whatever_follows(later: str) -> None:
    first = "top_p" if later == "top_k" else "top_k"
    order = tuple(dict.fromkeys((first, "allowed", later, *DEFAULT_ORDER)))
    for temperature in (0.0, 0.7):
        with pytest.raises(NonFiniteLogitsError, match="no allowed token"):
            law_of(
                [1.0, 9.0, 2.0], temperature=temperature, order=order, top_k=1, top_p=0.5,
                min_p=0.1, allowed_token_ids=(0,), logit_bias={0: 0.5}, presence_penalty=0.5,
            )  # fmt: skip


@settings(max_examples=60)
@given(
    arrays(
        np.float32,
        st.integers(1, 8),
        elements=st.one_of(
            st.sampled_from([-F32_MAX, F32_MAX, 0.0, -0.0, -np.inf, 2.0**-149, 88.0, -104.0]),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
        ),
    ),
    st.sampled_from([1.0, 0.7, 1.0e-4, 50.0]),
    st.sampled_from([{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}]),
)
def test_extreme_rows_give_finite_laws_or_are_refused(row, temperature: float, fields) -> None:
    if np.isneginf(row).all():
        with pytest.raises(NonFiniteLogitsError):
            law_of(row, temperature=temperature, **fields)
        return
    law = law_of(row, temperature=temperature, **fields)
    dense = law.dense()
    assert dense.sum() == pytest.approx(1.0, abs=1e-12)
    assert (dense[np.isneginf(row)] == 0).all()
    with np.errstate(over="ignore"):
        weights = np.exp((row - row.max()) / np.float32(temperature))
    assert weights[dense.argmax()] == 1.0, "logits that round to one weight are ties"
    for u in (0.0, 1 - 2.0**-53):
        assert law.prob(law.draw(u)) > 0


def test_half_precision_rows_are_read() -> None:
    row = np.array([1.0, 2.0, -np.inf], dtype=np.float16)
    law = target_law(row, SamplingParams(), History())
    assert isinstance(law, DenseLaw)
    assert law.prob(1) == pytest.approx(1 / (1 + math.exp(-1)), abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_k": 2.5}, "top_k 2.5"),
        ({"top_k": True}, "top_k True"),
        ({"top_p": 0.0}, "top_p 0.0"),
        ({"top_p": 1.1}, "top_p 1.1"),
        ({"min_p": -0.1}, "min_p -0.1"),
        ({"min_p": 1.5}, "min_p 1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty 0.0"),
        ({"presence_penalty": math.inf}, "presence_penalty inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty nan"),
        ({"logit_bias": {3: math.inf}}, r"logit_bias\[3\] inf"),
        ({"logit_bias": {-3: 1.0}}, "logit_bias holds -3"),
        ({"allowed_token_ids": ()}, r"allowed_token_ids \(\)"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids holds -1"),
        ({"banned_token_ids": (-1,)}, "banned_token_ids holds -1"),
        ({"eos_token_ids": frozenset({-1})}, "eos_token_ids holds -1"),
        ({"min_tokens": -2}, "min_tokens -2"),
        ({"order": ("top_q",)}, "order"),
        ({"order": ("top_k", "top_k")}, "order"),
        ({"order": ("bias",), "top_k": 5}, "top_k"),
        ({"order": DEFAULT_ORDER[:3], "temperature": 0.0}, "temperature"),
    ],
)
def test_bad_values_are_named(fields, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SamplingParams(**fields)


@pytest.mark.parametrize("name", ["logit_bias", "allowed_token_ids", "banned_token_ids"])
def test_ids_outside_the_vocabulary_are_refused(name: str) -> None:
    value = {7: 1.0} if name == "logit_bias" else (7,)
    with pytest.raises(ConfigError, match=f"{name} holds 7"):
        law_of([1.0, 2.0], **{name: value})
    with pytest.raises(ConfigError, match="logits of shape"):
        target_law(np.zeros((2, 2), dtype=np.float32), SamplingParams(), History())


def test_every_order_of_two_filters_is_honoured() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    laws = {
        order: tuple(law_of(logits, temperature=2.0, top_p=0.65, order=order).dense().round(6))
        for order in permutations(("temperature", "top_p"))
    }
    assert len(set(laws.values())) == 2


def test_a_policy_is_a_value() -> None:
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = 9.0
    assert params.logit_bias == {1: 2.0}
    assert params == SamplingParams(logit_bias={1: 2.0})
    assert hash(params) == hash(SamplingParams(logit_bias={1: 2.0}))
    assert SamplingParams().has_penalties is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "hot"),
        ("temperature", None),
        ("temperature", True),
        ("top_p", "x"),
        ("repetition_penalty", 1e300),
        ("repetition_penalty", 1e-60),
        ("presence_penalty", 1e39),
        ("frequency_penalty", -1e39),
        ("logit_bias", {1: 1e39}),
        ("logit_bias", {1: None}),
    ],
)
def test_what_float32_cannot_hold_and_what_is_no_number_is_refused_by_name(name, value) -> None:
    shown = value[1] if isinstance(value, dict) else value
    with pytest.raises(ConfigError, match=rf"{name}.*{re.escape(str(shown))}.*expected a finite"):
        SamplingParams(**{name: value})
