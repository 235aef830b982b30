"""The enumerated law equals the product of the table's own rows under the policy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.history import History
from draftproof.core.params import SamplingParams
from draftproof.core.policy import target_law
from draftproof.errors import CapacityError, ConfigError, PromptError
from draftproof.evidence import enumerate_law

PROMPT = [3, 1]
POLICIES = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.5, top_k=2),
    "nucleus": SamplingParams(top_p=0.7),
    "penalties": SamplingParams(frequency_penalty=1.5, repetition_penalty=1.3, top_k=3),
    "temperature last": SamplingParams(
        temperature=2.0,
        top_p=0.8,
        order=("bias", "penalties", "allowed", "top_k", "top_p", "min_p", "temperature"),
    ),
    "end masked": SamplingParams(min_tokens=2, eos_token_ids=frozenset([0])),
    "greedy": SamplingParams(temperature=0.0),
}


def backend(**options) -> TableBackend:
    return TableBackend(MarkovTable(4, seed=5, zeros=0.3), **options)


def by_hand(params: SamplingParams, horizon: int, ends=frozenset(), history_sees_path=True):
    """Multiply the laws along every text, each from a fresh prefill."""
    law: dict[tuple[int, ...], float] = {}
    table = MarkovTable(4, seed=5, zeros=0.3)
    for text in product(range(4), repeat=horizon):
        prob, cut = 1.0, ()
        for token in text:
            tokens = np.array([*PROMPT, *cut])
            with np.errstate(divide="ignore"):
                logits = np.log(table.probs(tokens, np.arange(len(tokens)))).astype(np.float32)
            extra = cut if history_sees_path else ()
            prob *= target_law(logits, params, History(PROMPT), extra).prob(token)
            cut += (token,)
            if token in ends:
                break
        if prob > 0:
            law[cut] = prob
    return law


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("ends", [(), (0,)])
def test_the_law_is_the_product_of_the_rows(name: str, ends) -> None:
    model = backend()
    law = enumerate_law(model, PROMPT, POLICIES[name], 3, eos_token_ids=ends, rows_per_pass=3)
    expected = by_hand(POLICIES[name], 3, frozenset(ends))
    assert set(law.outcomes) == set(expected)
    for outcome, prob in expected.items():
        assert law.prob(outcome) == pytest.approx(prob, abs=1e-12)
    assert abs(law.probs.sum() - 1) < 1e-12
    assert model.num_open == 0


def test_penalties_count_the_branch_itself() -> None:
    params = POLICIES["penalties"]
    law = enumerate_law(backend(), PROMPT, params, 3)
    blind = by_hand(params, 3, history_sees_path=False)
    assert max(abs(law.prob(o) - blind.get(o, 0)) for o in law.outcomes) > 1e-3


def test_the_order_of_the_stages_is_data() -> None:
    usual = SamplingParams(temperature=2.0, top_p=0.8)
    laws = [enumerate_law(backend(), PROMPT, p, 3) for p in (usual, POLICIES["temperature last"])]
    assert laws[0].outcomes != laws[1].outcomes or abs(laws[0].probs - laws[1].probs).max() > 1e-3


def test_branches_share_passes() -> None:
    model = backend()
    law = enumerate_law(model, PROMPT, SamplingParams(), 3, rows_per_pass=64)
    assert len(law) > 10
    assert model.num_calls == 3


def test_limits_are_named() -> None:
    model = backend()
    with pytest.raises(ConfigError, match="more than 5 continuations at token 2 of 3"):
        enumerate_law(model, PROMPT, SamplingParams(), 3, max_outcomes=5)
    with pytest.raises(ConfigError, match="small top_k"):
        enumerate_law(model, PROMPT, SamplingParams(), 3, max_outcomes=1)
    with pytest.raises(ConfigError, match="horizon 0"):
        enumerate_law(model, PROMPT, SamplingParams(), 0)
    with pytest.raises(PromptError):
        enumerate_law(model, [], SamplingParams(), 1)
    assert model.num_open == 0


def test_a_backend_without_room_says_so_and_keeps_nothing() -> None:
    class Full(TableBackend):
        def reserve(self, sequence_id: int, num_tokens: int) -> bool:
            return self.num_open < 4 and super().reserve(sequence_id, num_tokens)

    model = Full(MarkovTable(4, seed=5))
    with pytest.raises(CapacityError, match="no room for 1 more tokens"):
        enumerate_law(model, PROMPT, SamplingParams(), 3)
    assert model.num_open == 0
