"""Drafts that were made with the coins that judge them: the bias, and what keeps it out.

An output that a request's own seed made tells where the coins lie. As a draft under a rule
that divides by the draft's law it is biased, and no drafter can see that in the tokens. So
shared outputs are kept from requests with their coins, and a prediction turns the seed; the
rules that are seed-identical do not mind.
"""

from __future__ import annotations

import pytest
from test_exact_law import plain_warp, reference_law, total_variation

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.policy import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.engine import exactness as exactness_module
from draftproof.proposers import PredictionProposer, SuffixProposer
from draftproof.proposers.suffix import _Shared
from draftproof.testing.branching import BranchingCoins, exact_law

pytestmark = pytest.mark.exact

PROMPT, HORIZON = (0, 1, 0), 3
#: Zeros keep the number of branches small; three tokens are needed to see a bias.
TARGET = MarkovTable(3, None, seed=31, zeros=0.3)
EXPECTED = reference_law(TARGET, PROMPT, HORIZON, plain_warp)
TOLERANCE, SEEN = 1e-6, 0.01


def second_law(make_proposer, rule, *, same_coins, predicted):
    """Law of a request's output after another request with the same prompt has ended."""

    def program(brancher):
        held = {}

        def coins(seed, stream):
            return held.setdefault(seed, BranchingCoins(brancher))

        core = EngineCore(
            TableBackend(TARGET),
            proposers=[make_proposer()],
            kappa=2,
            rule=rule,
            coin_source=coins,
        )

        def run(seed, prediction=()):
            request = GenerateRequest(
                PROMPT, SamplingParams(), max_tokens=HORIZON, seed=seed, prediction=prediction,
                tenant="t",
            )  # fmt: skip
            name = core.submit(request)
            result = core.run()[name]
            if result.error is not None:
                raise result.error
            return tuple(result.token_ids)

        first = run(1)
        return run(1 if same_coins else 2, first if predicted else ())

    return exact_law(program)


def predicting():
    return PredictionProposer(min_score=1e-9)


def sharing():
    return SuffixProposer(min_score=1e-9, tenant_tokens=100)


def distance(make_proposer, rule, *, same_coins, predicted=False):
    law = second_law(make_proposer, rule, same_coins=same_coins, predicted=predicted)
    return total_variation(law, EXPECTED)


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_an_earlier_output_of_the_same_seed_is_a_lawful_prediction(rule, monkeypatch):
    """The engine turns the seed by the prediction; without that the bias shows."""
    assert distance(predicting, rule, same_coins=False, predicted=True) < TOLERANCE
    assert distance(predicting, rule, same_coins=True, predicted=True) < TOLERANCE
    monkeypatch.setattr(exactness_module, "seed_beside", lambda seed, tokens: seed)
    assert distance(predicting, rule, same_coins=True, predicted=True) > SEEN


@pytest.mark.parametrize("rule", ["coupled", "sample-match"])
def test_seed_identical_rules_take_any_prediction(rule):
    assert distance(predicting, rule, same_coins=True, predicted=True) < TOLERANCE


@pytest.mark.parametrize("same_coins", [False, True])
@pytest.mark.parametrize("rule", ["standard", "block"])
def test_shared_outputs_keep_the_law_whatever_the_seeds(rule, same_coins):
    assert distance(sharing, rule, same_coins=same_coins) < TOLERANCE


def test_shared_outputs_that_their_own_seed_may_use_are_seen(monkeypatch):
    monkeypatch.setattr(_Shared, "is_independent_of", lambda shared, coins: True)
    assert distance(sharing, "standard", same_coins=True) > SEEN
