"""Logits become the law that the policy describes, in any order of its stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_kit import law_of

from draftproof.core.policy import (
    DEFAULT_ORDER,
    History,
    SamplingParams,
    target_law,
)
from draftproof.errors import NonFiniteLogitsError


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
    # Distinct logits on a coarse grid, and penalties that add up to no multiple of its
    # step: no filter boundary within rounding, no ties.
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
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.2391, -0.17])),
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
        if data.draw(st.booleans()):  # asking in between changes nothing
            history.seen()
    ids, counts = history.seen(output[split:])
    assert history.num_generated == split
    assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == {
        token: output.count(token) for token in (*prompt, *output)
    }
