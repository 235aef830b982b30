"""The joint law of the engine's output equals the target's, by enumeration.

The whole path runs: drafter, policy, pass, rule, stop, commit, next round. Every
branch of every coin is taken, so equality is up to float64 rounding, not statistical.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftproof.backends.table import MarkovTable, PositionTable, TableBackend
from draftproof.core.policy import SamplingParams
from draftproof.core.rng import CoinSource
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.branching import BranchingCoins, exact_law
from draftproof.testing.faults import PiecewiseExecutor
from draftproof.testing.faults.rules import token_rule
from draftproof.testing.scripted import FixedProposer

pytestmark = pytest.mark.exact

PROMPT = (0, 1, 0)
BRANCHED_SEED = 77


def reference_law(table, prompt, horizon, warp):
    """Product of conditionals, with the policy written again, naively."""
    law = {}
    for outcome in itertools.product(range(table.vocab_size), repeat=horizon):
        prob = 1.0
        for i, token in enumerate(outcome):
            context = np.array([*prompt, *outcome[:i]])
            row = table.probs(context, np.arange(len(context)))
            prob *= warp(row, prompt, outcome[:i])[token]
        if prob > 0.0:
            law[outcome] = prob
    return law


def engine_law(target, proposers, *, params, horizon, companions=(), **options):
    """Enumerate one request's outputs, with companions in the same passes."""

    def program(brancher):
        def coins(seed, stream):
            if seed == BRANCHED_SEED:
                return BranchingCoins(brancher)
            return CoinSource(seed, stream)

        core = EngineCore(target, proposers=proposers, coin_source=coins, **options)
        core.submit(
            GenerateRequest(
                PROMPT, params, max_tokens=horizon, seed=BRANCHED_SEED, request_id="studied"
            )
        )
        for request in companions:
            core.submit(request)
        results = core.run()
        for result in results.values():
            if result.error is not None:
                raise result.error
        return tuple(results["studied"].token_ids)

    return exact_law(program)


def total_variation(left, right):
    keys = left.keys() | right.keys()
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in keys)


def plain_warp(row, prompt, generated):
    return row


def drafters():
    return {
        "ngram": lambda: NgramProposer(min_n=1, max_n=3),
        "fixed": lambda: FixedProposer((1, 1, 2, 0)),
        "model": lambda: DraftModelProposer(TableBackend(MarkovTable(3, 1, seed=9, spread=2.0))),
        "model-zeros": lambda: DraftModelProposer(
            TableBackend(MarkovTable(3, 1, seed=4, zeros=0.4))
        ),
        "hot-model": lambda: DraftModelProposer(
            TableBackend(MarkovTable(3, 1, seed=9)), temperature=3.0
        ),
        "greedy-model": lambda: DraftModelProposer(
            TableBackend(MarkovTable(3, 1, seed=9)), temperature=0.0
        ),
        "cut-model": lambda: DraftModelProposer(
            TableBackend(MarkovTable(3, 1, seed=9)), min_confidence=0.5
        ),
    }


TARGETS = {
    "markov": lambda: MarkovTable(3, None, seed=1),
    "zeros": lambda: MarkovTable(3, None, seed=2, zeros=0.35),
    "position": lambda: PositionTable(3, seed=3),
}
#: Largest TV that float32 logits leave; a planted fault shows far more.
TOLERANCE = 1e-6


@pytest.mark.parametrize("rule", ["standard", "block", "coupled", "sample-match"])
@pytest.mark.parametrize("drafter", drafters())
@pytest.mark.parametrize("target", TARGETS)
def test_every_rule_and_drafter_keeps_the_joint_law(target, drafter, rule):
    table = TARGETS[target]()
    # Rules that ignore the drafter's law branch on every draft: a shorter text will do.
    horizon = 3 if rule in ("coupled", "sample-match") and "model" in drafter else 4
    law = engine_law(
        TableBackend(table),
        [drafters()[drafter]()],
        params=SamplingParams(),
        horizon=horizon,
        kappa=2,
        rule=rule,
    )
    assert total_variation(law, reference_law(table, PROMPT, horizon, plain_warp)) < TOLERANCE


@pytest.mark.parametrize("kappa", [1, 2, 3, 4])
@pytest.mark.parametrize("rule", ["standard", "block"])
def test_every_kappa_keeps_the_joint_law(kappa, rule):
    table = MarkovTable(2, None, seed=5, zeros=0.2)
    drafter = DraftModelProposer(TableBackend(MarkovTable(2, 1, seed=6)))
    horizon = kappa + 2  # the shortest text with a full round after the first token
    law = engine_law(
        TableBackend(table),
        [drafter],
        params=SamplingParams(),
        horizon=horizon,
        kappa=kappa,
        rule=rule,
    )
    assert total_variation(law, reference_law(table, PROMPT, horizon, plain_warp)) < TOLERANCE


def naive_warp(**knobs):
    """The policy written again: float64, sorted, in the documented order."""

    def warp(row, prompt, generated):
        with np.errstate(divide="ignore"):
            logits = np.log(row)
        for token, bias in knobs.get("logit_bias", {}).items():
            logits[token] += bias
        seen = set(prompt) | set(generated)
        for token in seen:
            penalty = knobs.get("repetition_penalty", 1.0)
            logits[token] = (
                logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
            )
        for token in set(generated):
            logits[token] -= knobs.get("presence_penalty", 0.0)
            logits[token] -= knobs.get("frequency_penalty", 0.0) * generated.count(token)
        allowed = set(knobs.get("allowed_token_ids", range(len(row))))
        allowed -= set(knobs.get("banned_token_ids", ()))
        if len(generated) < knobs.get("min_tokens", 0):
            allowed -= set(knobs.get("eos_token_ids", ()))
        logits = np.array([x if t in allowed else -np.inf for t, x in enumerate(logits)])
        if knobs.get("temperature", 1.0) == 0.0:
            return np.eye(len(row))[int(np.argmax(logits))]
        logits = logits / knobs.get("temperature", 1.0)
        probs = np.exp(logits - logits.max())
        probs /= probs.sum()
        order = sorted(range(len(row)), key=lambda t: (-probs[t], t))
        kept = order[: knobs.get("top_k", 0) or len(row)]
        probs = np.array([p if t in kept else 0.0 for t, p in enumerate(probs)])
        probs /= probs.sum()
        if knobs.get("top_p", 1.0) < 1.0:
            mass, nucleus = 0.0, []
            for token in order:
                nucleus.append(token)
                mass += probs[token]
                if mass >= knobs["top_p"]:
                    break
            probs = np.array([p if t in nucleus else 0.0 for t, p in enumerate(probs)])
            probs /= probs.sum()
        floor = knobs.get("min_p", 0.0) * probs.max()
        probs = np.where(probs >= floor, probs, 0.0)
        return probs / probs.sum()

    return warp


POLICIES = {
    "greedy": {"temperature": 0.0},
    "cold": {"temperature": 0.5},
    "hot": {"temperature": 1.7},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.75},
    "min_p": {"min_p": 0.4},
    "bias": {"logit_bias": {0: 1.5, 2: -1.0}},
    "banned": {"banned_token_ids": (1,)},
    "allowed": {"allowed_token_ids": (0, 2)},
    "repetition": {"repetition_penalty": 1.6},
    "presence": {"presence_penalty": 1.2},
    "frequency": {"frequency_penalty": 0.9},
    "all": {
        "temperature": 0.8,
        "top_k": 2,
        "top_p": 0.95,
        "logit_bias": {2: 0.7},
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
    },
}


@pytest.mark.parametrize("drafter", ["fixed", "model"])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_knob_acts_at_every_position(policy, drafter):
    knobs = POLICIES[policy]
    table = MarkovTable(3, None, seed=11)
    law = engine_law(
        TableBackend(table),
        [drafters()[drafter]()],
        params=SamplingParams(**knobs),
        horizon=4,
        kappa=2,
        rule=None,
    )
    expected = reference_law(table, PROMPT, 4, naive_warp(**knobs))
    assert total_variation(law, expected) < TOLERANCE
    unwarped = reference_law(table, PROMPT, 4, plain_warp)
    assert total_variation(unwarped, expected) > 1e-3, "this knob could be ignored unseen"


def test_min_tokens_masks_the_end_until_then():
    table = MarkovTable(3, None, seed=12)
    core_params = SamplingParams(min_tokens=2, eos_token_ids=frozenset({2}))
    law = engine_law(
        TableBackend(table),
        [drafters()["model"]()],
        params=core_params,
        horizon=4,
        kappa=2,
        rule=None,
    )
    warp = naive_warp(min_tokens=2, eos_token_ids=(2,))
    assert total_variation(law, reference_law(table, PROMPT, 4, warp)) < TOLERANCE


def test_a_row_keeps_its_law_in_a_ragged_batch():
    table = MarkovTable(3, None, seed=13)
    companions = [
        GenerateRequest((2, 2, 1, 0, 1), SamplingParams(temperature=0.3), max_tokens=7, seed=1),
        GenerateRequest((1,), SamplingParams(top_k=1), max_tokens=2, seed=2, kappa=0),
        GenerateRequest((0, 1), SamplingParams(temperature=2.0), max_tokens=5, seed=3, kappa=1),
    ]
    law = engine_law(
        TableBackend(table),
        [drafters()["model"]()],
        params=SamplingParams(temperature=0.9),
        horizon=4,
        kappa=2,
        rule="block",
        companions=companions,
    )
    expected = reference_law(table, PROMPT, 4, naive_warp(temperature=0.9))
    assert total_variation(law, expected) < TOLERANCE


def test_a_planted_fault_changes_the_law_as_it_is_measured_here():
    """One is enough for this file; tests/faults holds the catalogue."""
    table = MarkovTable(3, None, seed=14)
    law = engine_law(
        TableBackend(table),
        [drafters()["model"]()],
        params=SamplingParams(),
        horizon=4,
        kappa=2,
        rule="standard",
        executor=PiecewiseExecutor(chain=token_rule(row=lambda j: max(j - 1, 0))),
    )
    assert total_variation(law, reference_law(table, PROMPT, 4, plain_warp)) > 0.005
