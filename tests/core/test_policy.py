"""Logits become the law that the policy describes, in any order of its stages."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from draftproof.core.law import DenseLaw, OneHotLaw
from draftproof.core.policy import (
    DEFAULT_ORDER,
    GREEDY_TEMPERATURE,
    History,
    SamplingParams,
    target_law,
)
from draftproof.core.types import Draft
from draftproof.errors import ConfigError, NonFiniteLogitsError
from draftproof.verify import RULES, plain_token, verify

F32_MAX = float(np.finfo(np.float32).max)


def law_of(logits, history: History | None = None, extra=(), **fields):
    row = np.asarray(logits, dtype=np.float32)
    return target_law(row, SamplingParams(**fields), history or History(), extra)


# --- a second description, slow and in full ------------------------------------------


def reference(logits, params: SamplingParams, prompt, output) -> np.ndarray:
    """The definitions of the policy, over all V tokens in float64 with full sorts."""
    row = np.asarray(logits, dtype=np.float32).astype(np.float64)

    def softmax() -> np.ndarray:
        weights = np.exp(row - row.max())
        return weights / weights.sum()

    for stage in params.order:
        if stage == "bias":
            for token, bias in params.logit_bias.items():
                row[token] += bias
        elif stage == "penalties":
            for token in set(prompt) | set(output):
                factor = params.repetition_penalty
                row[token] = row[token] / factor if row[token] > 0 else row[token] * factor
            for token in set(output):
                row[token] -= params.presence_penalty
                row[token] -= params.frequency_penalty * list(output).count(token)
        elif stage == "allowed":
            banned = set(params.banned_token_ids)
            if params.allowed_token_ids is not None:
                banned |= set(range(len(row))) - set(params.allowed_token_ids)
            if len(output) < params.min_tokens:
                banned |= params.eos_token_ids
            row[list(banned)] = -np.inf
        elif stage == "temperature":
            row = row / params.temperature
        elif stage == "top_k" and params.top_k:
            order = sorted(range(len(row)), key=lambda t: (-row[t], t))
            row[order[params.top_k :]] = -np.inf
        elif stage == "top_p" and params.top_p < 1:
            probs = softmax()
            order = sorted(range(len(row)), key=lambda t: (-probs[t], t))
            before = np.cumsum(probs[order]) - probs[order]
            row[
                [t for t, mass in zip(order, before, strict=True) if mass >= params.top_p]
            ] = -np.inf
        elif stage == "min_p" and params.min_p:
            probs = softmax()
            row[probs < params.min_p * probs.max()] = -np.inf
    return softmax()


@settings(max_examples=150)
@given(st.data())
def test_any_policy_in_any_order_is_the_slow_description(data) -> None:
    size = data.draw(st.integers(2, 12))
    # Distinct logits on a coarse grid: no filter boundary within rounding.
    logits = np.array(data.draw(st.permutations([0.37 * i - 2 for i in range(size)])))
    prompt = data.draw(st.lists(st.integers(0, size - 1), max_size=4))
    output = data.draw(st.lists(st.integers(0, size - 1), max_size=6))
    split = data.draw(st.integers(0, len(output)))
    params = SamplingParams(
        temperature=data.draw(st.sampled_from([1.0, 0.31, 0.7, 1.9])),
        top_k=data.draw(st.sampled_from([0, 1, 3, size])),
        top_p=data.draw(st.sampled_from([1.0, 0.4317, 0.8731])),
        min_p=data.draw(st.sampled_from([0.0, 0.0713])),
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=data.draw(st.sampled_from([0.0, 0.51])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.23, -0.17])),
        logit_bias=data.draw(st.sampled_from([{}, {0: 1.13}, {1: -2.07, 0: 0.11}])),
        allowed_token_ids=data.draw(
            st.sampled_from([None, (1, 0), tuple(range(size - 1, -1, -1))])
        ),
        banned_token_ids=data.draw(st.sampled_from([(), (1,)])),
        eos_token_ids=frozenset({size - 1}),
        min_tokens=data.draw(st.sampled_from([0, 3])),
        order=tuple(data.draw(st.permutations(DEFAULT_ORDER))),
    )
    history = History(prompt)
    for token in output[:split]:
        history.append(token)
    row = logits.astype(np.float32)
    kept = row.copy()
    try:
        law = target_law(row, params, history, output[split:])
    except NonFiniteLogitsError:
        # A filter before the mask may leave only masked tokens.
        assert params.order.index("allowed") > 0
        return
    assert (row == kept).all()
    assert law.dense() == pytest.approx(reference(logits, params, prompt, output), abs=2e-6)


# --- truncation on real sizes ----------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9000),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.001, 1.0, 6.0]),
    st.booleans(),
)
def test_filters_keep_what_a_full_sort_keeps(
    size: int, seed: int, spread: float, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=size) * spread).astype(np.float32)
    if ties:
        logits = np.round(logits)
    order = np.lexsort((np.arange(size), -logits))
    for count in (1, 2, 40, size // 2 + 1):
        kept = np.flatnonzero(law_of(logits, top_k=count).dense())
        assert kept.tolist() == sorted(order[:count].tolist())
    weights = np.exp(logits - logits.max())
    order = np.lexsort((np.arange(size), -weights))
    sums = np.cumsum(weights[order], dtype=np.float64)
    for mass in (1e-9, 0.1, 0.9, 0.999):
        kept = np.flatnonzero(law_of(logits, top_p=mass).dense())
        count = int(np.searchsorted(sums, mass * sums[-1])) + 1
        assert abs(len(kept) - count) <= 1 + size * 1e-6, "one entry of rounding at most"
        assert kept.tolist() == sorted(order[: len(kept)].tolist())
    kept = np.flatnonzero(law_of(logits, min_p=0.25).dense())
    assert kept.tolist() == np.flatnonzero(np.exp(logits - logits.max()) >= 0.25).tolist()


def test_top_p_takes_the_shortest_prefix_and_lowest_ids_on_ties() -> None:
    row = np.log2([8, 4, 8, 8, 4]) * np.log(2)
    for mass, kept in [
        (1e-12, [0]), (0.25, [0]), (0.26, [0, 2]), (0.5, [0, 2]), (0.75, [0, 2, 3]),
        (0.76, [0, 1, 2, 3]), (0.99, [0, 1, 2, 3, 4]),
    ]:  # fmt: skip
        assert np.flatnonzero(law_of(row, top_p=mass).dense()).tolist() == kept, mass


def test_top_p_works_on_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert np.flatnonzero(law_of(logits, top_k=2, top_p=0.55).dense()).tolist() == [0]
    first_p = ("top_p", "top_k")
    assert np.flatnonzero(law_of(logits, top_k=2, top_p=0.55, order=first_p).dense()).tolist() == [
        0,
        1,
    ]


def test_min_p_counts_from_the_largest() -> None:
    assert np.flatnonzero(law_of(np.log([0.5, 0.26, 0.24]), min_p=0.5).dense()).tolist() == [0, 1]
    assert law_of(np.log([0.6, 0.4]), min_p=1.0).prob(0) == 1.0


# --- greedy ----------------------------------------------------------------------------


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


# --- bad rows --------------------------------------------------------------------------


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


# --- penalties and minimum length ----------------------------------------------------


def test_drafted_tokens_count_like_committed_ones() -> None:
    logits = np.array([1.0, -0.5, 0.7, 0.2], dtype=np.float32)
    fields = {"repetition_penalty": 1.4, "presence_penalty": 0.3, "frequency_penalty": 0.6}
    text = [2, 2, 0, 3, 2]
    committed = History([1, 2])
    for token in text:
        committed.append(token)
    expected = law_of(logits, committed, **fields).dense()
    for split in range(len(text) + 1):
        history = History([1, 2])
        for token in text[:split]:
            history.append(token)
        before = [array.tolist() for array in history.seen()]
        law = law_of(logits, history, text[split:], **fields)
        assert (law.dense() == expected).all()
        assert [array.tolist() for array in history.seen()] == before, "drafts leave no trace"


def test_repetition_sees_the_prompt_and_the_other_penalties_do_not() -> None:
    history = History([0, 0, 1])
    plain = law_of([1.0, 1.0, 1.0], history)
    assert (law_of([1.0, 1.0, 1.0], history, presence_penalty=2.0).dense() == plain.dense()).all()
    repeated = law_of([1.0, 1.0, 1.0], history, repetition_penalty=2.0)
    assert repeated.prob(0) == repeated.prob(1) < repeated.prob(2)
    negative = law_of([-1.0, -1.0], History([0]), repetition_penalty=2.0)
    assert negative.prob(0) < negative.prob(1)


def test_the_end_is_masked_for_exactly_min_tokens() -> None:
    fields = {"temperature": 0.0, "min_tokens": 20, "eos_token_ids": frozenset({0, 99})}
    for num_extra in (0, 3):
        history = History([5])
        for _ in range(20 - num_extra):
            assert law_of([9.0, 1.0], history, (1,) * num_extra, **fields).prob(0) == 0.0
            history.append(1)
        assert law_of([9.0, 1.0], history, (1,) * num_extra, **fields).prob(0) == 1.0


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(0, 200), max_size=150), st.data())
def test_the_history_counts(prompt, output, data) -> None:
    split = data.draw(st.integers(0, len(output)))
    history = History(prompt)
    for token in output[:split]:
        history.append(token)
    ids, counts = history.seen(output[split:])
    assert history.num_generated == split
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
        token: output.count(token) for token in (*prompt, *output)
    }


# --- the request -----------------------------------------------------------------------


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
