"""Rows that are judged side by side: the same verdicts as one after the other."""

from __future__ import annotations

import os

import numpy as np
import pytest

import draftproof.verify.executor as module
from draftproof.core.law import DenseLaw
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft
from draftproof.errors import ConfigError, NonFiniteLogitsError
from draftproof.verify import NumpyExecutor, VerifyRow

VOCAB = 2_000
KAPPA = 3
POLICIES = (
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(top_k=40),
    SamplingParams(top_p=0.8, temperature=1.3),
)


@pytest.fixture
def low_threshold(monkeypatch):
    """Let a few thousand logits count as work for more than one thread."""
    monkeypatch.setattr(module, "_FEWEST_ENTRIES", 0)


def batch(seed, count=12):
    """Return rows of all rules and policies over their logits; one row holds a NaN."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2.0, size=(count * (KAPPA + 1), VOCAB)).astype(np.float32)
    rows = []
    for place in range(count):
        params = POLICIES[place % len(POLICIES)]
        rule = ("standard", "block", "coupled")[place % 3]
        first = place * (KAPPA + 1)
        coins = CoinSource(seed * 100 + place).round(5)
        drafted = logits[first : first + KAPPA] + rng.normal(size=(KAPPA, VOCAB))
        laws = tuple(target_law(row, params, History()) for row in drafted)
        tokens = tuple(law.draw(coins.draft(i)) for i, law in enumerate(laws))
        draft = Draft(tokens, laws)
        rows.append(VerifyRow(str(place), rule, draft, params, History(), coins, None, first))
    logits[(count - 1) * (KAPPA + 1)] = np.nan
    return rows, logits


def told(verdicts):
    return [repr(v) if isinstance(v, Exception) else v for v in verdicts]


@pytest.mark.usefixtures("low_threshold")
@pytest.mark.parametrize("num_threads", [2, 5])
def test_the_number_of_threads_decides_nothing(num_threads):
    many = NumpyExecutor(num_threads)
    for seed in range(4):
        alone = NumpyExecutor(1).judge(*batch(seed))
        assert told(many.judge(*batch(seed))) == told(alone)
        assert isinstance(alone[-1], NonFiniteLogitsError)
        assert "request 11" in str(alone[-1])


@pytest.mark.usefixtures("low_threshold")
def test_work_is_shared_unless_two_rows_hold_one_law():
    rows, logits = batch(1)
    many = NumpyExecutor(2)
    assert many._is_worth_threads(rows, logits)
    law = DenseLaw(np.ones(VOCAB, dtype=np.float32))
    shared = [
        VerifyRow(r.request_id, "block", Draft((1,), (law,)), POLICIES[0], History(), r.coins)
        for r in rows[:2]
    ]
    assert not many._is_worth_threads(shared, logits)
    assert not NumpyExecutor(1)._is_worth_threads(rows, logits)


def test_few_logits_stay_with_one_thread():
    rows, logits = batch(1)
    assert not NumpyExecutor(2)._is_worth_threads(rows, logits)


@pytest.mark.usefixtures("low_threshold")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own():
    many = NumpyExecutor(2)
    expected = told(many.judge(*batch(3)))
    child = os.fork()
    if child == 0:
        os._exit(0 if told(many.judge(*batch(3))) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_no_thread_at_all_is_refused():
    with pytest.raises(ConfigError, match="num_threads is 0: expected at least 1"):
        NumpyExecutor(0)
