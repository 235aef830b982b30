"""Every defect that is planted in the engine is seen, and the right engine is not blamed.

Laws are enumerated through the whole engine, so a law fault is seen with certainty and
the right engine is never blamed by chance. The checks that run real texts use fixed
seeds: they are deterministic too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from test_exact_law import naive_warp, plain_warp
from test_exact_law import reference_law as naive_law

from draftproof.core.rng import CoinSource
from draftproof.testing.faults import (
    CHECKS,
    COMBINATIONS,
    ENGINE_FAULTS,
    SCENES,
    PiecewiseExecutor,
    check_fault,
    enumerate_engine,
    nothing_wrong,
    reference_law,
    run_scene,
)
from draftproof.testing.faults.caches import drifting, right_cut
from draftproof.testing.faults.checks import right_enumeration
from draftproof.testing.faults.fault import Where
from draftproof.testing.faults.rules import block_rule, judged_by, token_rule
from draftproof.testing.faults.scene import PROMPT
from draftproof.testing.faults.trees import recursive_rule, trees_judged_by

pytestmark = pytest.mark.exact

#: Largest TV that the float64 sums of an enumeration leave, and the least of a fault.
TOLERANCE, LEAST_TV = 1e-6, 0.008
#: Scenes whose texts are too long to enumerate; greedy texts are compared instead.
GREEDY = ("greedy", "greedy ties")
ENUMERATED = [name for name in SCENES if name not in GREEDY]


def names_of(faults):
    return [fault.name for fault in faults]


OF_LENGTH = [fault for fault in ENGINE_FAULTS if fault.check == "length"]
OTHERS = [fault for fault in ENGINE_FAULTS if fault.check != "length"]


@pytest.mark.parametrize("fault", OTHERS, ids=names_of(OTHERS))
def test_every_fault_is_caught(fault):
    finding = check_fault(fault)
    assert finding.is_caught
    if fault.check == "law":
        assert finding.size > LEAST_TV


@pytest.mark.parametrize("fault", COMBINATIONS, ids=names_of(COMBINATIONS))
def test_faults_are_caught_under_policies(fault):
    finding = check_fault(fault)
    assert finding.is_caught
    assert finding.size > LEAST_TV


@pytest.mark.parametrize("name", ENUMERATED)
def test_the_right_engine_passes_in_every_scene(name):
    found = CHECKS["law"](SCENES[name], nothing_wrong)
    assert not found.is_caught
    assert found.size < TOLERANCE


@pytest.mark.parametrize(
    ("check", "scene"),
    [
        *(("ends", SCENES[name]) for name in ("holes", "twins")),
        ("ends", replace(SCENES["holes"], rule="block")),
        ("ends", replace(SCENES["holes"], rule="sample-match")),
        *(("text", SCENES[name]) for name in (*GREEDY, "sample-match", "coupled")),
        ("text", replace(SCENES["in company"], rule="sample-match")),
        ("seeds", SCENES["token rule"]),
        ("redraw", SCENES["token rule"]),
        ("logprobs", SCENES["token rule"]),
        ("logprobs", SCENES["frequency"]),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.name}-{value.rule}",
)
def test_the_right_engine_passes_the_checks_of_texts(check, scene):
    assert CHECKS[check](scene, nothing_wrong).size == 0


@pytest.mark.parametrize("fault", OF_LENGTH, ids=names_of(OF_LENGTH))
def test_faults_of_length_cost_tokens_and_leave_the_law_alone(fault):
    found = enumerate_engine(fault.scene, fault.plant)
    assert found.total_variation(reference_law(fault.scene)) < TOLERANCE
    assert found.tokens_per_pass < 0.98 * right_enumeration(fault.scene).tokens_per_pass


def piecewise(parts):
    return replace(parts, executor=PiecewiseExecutor())


UNCHANGED = [
    *((name, piecewise) for name in ("token rule", "block", "coupled", "frequency", "grammar")),
    *((name, piecewise) for name in ("tree", "traversal", "in company")),
    ("token rule", judged_by(token_rule())),
    ("certain drafts", judged_by(token_rule())),
    ("block", judged_by(block_rule())),
    ("long block", judged_by(block_rule())),
    ("tree", trees_judged_by(recursive_rule())),
    ("wide tree", trees_judged_by(recursive_rule())),
    ("token rule", drifting(right_cut)),
    ("in company", drifting(right_cut)),
]


@pytest.mark.parametrize(
    ("name", "plant"), UNCHANGED, ids=[f"{i}-{name}" for i, (name, _) in enumerate(UNCHANGED)]
)
def test_copies_with_nothing_exchanged_are_right(name, plant):
    """What a fault shows is the piece that it exchanges, not the copy around it."""
    found = enumerate_engine(SCENES[name], plant)
    assert found.total_variation(reference_law(SCENES[name])) < TOLERANCE
    right = right_enumeration(SCENES[name]).tokens_per_pass
    assert found.tokens_per_pass == pytest.approx(right, rel=TOLERANCE)


POLICIES = {
    "token rule": {},
    "temperature": {"temperature": 0.5},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.75},
    "min-p": {"min_p": 0.4},
    "bias": {"logit_bias": {0: 1.5, 2: -1.0}},
    "banned": {"banned_token_ids": (2,)},
    "frequency": {"frequency_penalty": 0.9},
    "presence": {"presence_penalty": 1.2},
    "repetition": {"repetition_penalty": 1.6},
    "top-k and top-p": {"temperature": 0.8, "top_k": 2, "top_p": 0.7},
}


@pytest.mark.parametrize("name", POLICIES)
def test_references_are_those_of_the_policy_written_again(name):
    scene, knobs = SCENES[name], POLICIES[name]
    warp = naive_warp(**knobs) if knobs else plain_warp
    expected = naive_law(scene.table, PROMPT, scene.horizon, warp)
    found = reference_law(scene)
    assert sum(abs(found.prob(text) - expected.get(text, 0.0)) for text in found.outcomes) < 1e-5
    assert sum(expected.get(text, 0.0) for text in found.outcomes) == pytest.approx(1, abs=1e-6)


def test_passes_are_as_many_as_the_ratio_rule_promises():
    """Leviathan et al., 2211.17192: a draft survives with probability sum of min(p, q)."""
    scene = SCENES["two rounds"]
    draft = scene.drafter().table

    def law(table, text):
        context = np.array([*PROMPT, *text])
        return table.probs(context, np.arange(len(context)))

    def passes(text):
        left = scene.horizon - len(text)
        if left == 0:
            return 0.0
        p = law(scene.table, text)
        if not text or left == 1:
            return 1 + sum(p[x] * passes((*text, x)) for x in range(2) if p[x] > 0)
        q = law(draft, text)
        total = 1.0
        for x in range(2):
            kept, refused = min(p[x], q[x]), max(p[x] - q[x], 0.0)
            after = law(scene.table, (*text, x))
            total += kept * sum(after[y] * passes((*text, x, y)) for y in range(2))
            total += refused * passes((*text, x)) if refused else 0.0
        return total

    found = enumerate_engine(scene).tokens_per_pass
    assert found == pytest.approx(scene.horizon / passes(()), rel=1e-6)


def test_the_catalogue_is_in_order():
    names = names_of((*ENGINE_FAULTS, *COMBINATIONS))
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert {fault.where for fault in ENGINE_FAULTS} == set(get_args(Where))
    assert {fault.check for fault in ENGINE_FAULTS} == set(CHECKS)
    assert all(fault.description for fault in ENGINE_FAULTS)
    assert len(ENGINE_FAULTS) >= 90


def test_a_run_ends_when_its_text_is_long_enough():
    scene = SCENES["tree"]
    run = run_scene(scene, nothing_wrong, CoinSource, 3)
    assert len(run.text) == scene.horizon <= len(run.tokens)
    assert run.text == tuple(event.token_id for event in run.tokens)[: scene.horizon]
