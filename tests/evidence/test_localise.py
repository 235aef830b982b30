"""Where a law is wrong: the chain rule, Holm, and the one lawful cut by offset."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from draftproof.audit.fixtures import seeded_tables
from draftproof.audit.rounds import plain_law, shipped
from draftproof.core.rng import CoinSource
from draftproof.errors import ConfigError
from draftproof.evidence import (
    Calibrations,
    Counts,
    JointLaw,
    RoundSample,
    discrepancies,
    holm,
    localise,
    next_token_laws,
    offset_tests,
)

KAPPA, HORIZON = 3, 4
TABLES = seeded_tables(3)
LAW = JointLaw.from_mapping(plain_law(TABLES, HORIZON), HORIZON)


def test_the_chain_rule_holds_exactly() -> None:
    counts = np.random.default_rng(0).multinomial(5000, LAW.probs)
    nodes = localise(LAW, Counts(counts), Calibrations(200))
    joint = float(discrepancies(counts[None, :], LAW.probs)[0][0])
    assert sum(node.g for node in nodes) == pytest.approx(joint, rel=1e-9)
    assert 30 <= len(nodes) <= 40


def test_conditional_laws_multiply_to_the_joint_one() -> None:
    laws = next_token_laws(LAW)
    for outcome, prob in zip(LAW.outcomes, LAW.probs, strict=True):
        product_ = 1.0
        for place, token in enumerate(outcome):
            known = laws[outcome[:place]]
            product_ *= known.probs[known.token_ids.index(token)]
        assert product_ == pytest.approx(prob, rel=1e-12)


def test_holm_is_the_stepwise_rule() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_wrong_node_is_named() -> None:
    laws = next_token_laws(LAW)
    wrong = (1, 0)
    bent = dict(zip(LAW.outcomes, LAW.probs, strict=True))
    row = laws[wrong].probs
    for outcome in bent:
        if outcome[:2] == wrong:
            bent[outcome] *= (np.roll(row, 1) / row)[outcome[2]]
    probs = np.array([bent[outcome] for outcome in LAW.outcomes])
    counts = np.random.default_rng(1).multinomial(40_000, probs / probs.sum())
    nodes = localise(LAW, Counts(counts), Calibrations(20_000, seed=1))
    assert nodes[0].prefix == wrong
    assert nodes[0].adjusted < 0.01
    assert all(node.adjusted > 0.01 for node in nodes[1:])
    assert nodes[0].observed != pytest.approx(nodes[0].expected, abs=0.02)


def test_an_impossible_token_is_placed_after_its_prefix() -> None:
    nodes = localise(
        LAW, Counts(np.zeros(81, dtype=np.int64), {(0, 1, 9, 9): 3}), Calibrations(200)
    )
    assert nodes[0].prefix == (0, 1)
    assert nodes[0].p_value == 0.0
    assert nodes[0].observed[9] == 1.0


@pytest.mark.statistical
def test_a_right_law_is_not_accused_at_any_node() -> None:
    """200 audits at 0.05 each: more than 24 families with a rejection have a chance of 1e-4."""
    rng, calibrations, alarms = np.random.default_rng(2), Calibrations(4000, seed=2), 0
    law = JointLaw(tuple(product(range(2), repeat=2)), np.array([0.4, 0.3, 0.2, 0.1]), 2)
    for _ in range(200):
        nodes = localise(law, Counts(rng.multinomial(300, law.probs)), calibrations)
        alarms += nodes[0].adjusted <= 0.05
    assert alarms <= 24


# --- offsets ------------------------------------------------------------------------------


def rounds_of(rule: str, count: int) -> list[RoundSample]:
    play = shipped(rule)
    found = []
    for seed in range(count):
        played = play(TABLES, (), KAPPA, CoinSource(seed).round(0))
        found.append(RoundSample((), played.emitted, played.num_accepted))
    return found


@pytest.fixture(scope="module", params=["standard", "block"])
def rounds(request) -> list[RoundSample]:
    return rounds_of(request.param, 2500)


@pytest.mark.statistical
def test_at_least_j_kept_is_a_lawful_cut(rounds) -> None:
    """Two rules at 0.001: a false alarm has a chance of 0.002, with fixed seeds."""
    tests = offset_tests(LAW, rounds, num_samples=4000)
    assert [test.offset for test in tests] == [0, 1, 2, 3]
    assert tests[0].num_draws == len(rounds)
    assert all(test.adjusted > 1e-3 for test in tests)


def test_conditioning_on_accepted_accuses_a_right_decoder(rounds) -> None:
    """The planted fault: only rounds whose token at the offset was a kept draft."""
    accepted_only = [
        RoundSample(r.prefix, r.emitted[: r.num_accepted], r.num_accepted - 1)
        for r in rounds
        if r.num_accepted
    ]
    tests = offset_tests(LAW, accepted_only, num_samples=20_000)
    assert min(test.adjusted for test in tests) < 1e-3


def test_a_fault_of_one_offset_is_found_there() -> None:
    rng = np.random.default_rng(4)
    samples = []
    for r in rounds_of("standard", 2500):
        emitted = r.emitted
        if r.num_accepted >= 1 and rng.random() < 0.3:
            emitted = (emitted[0], 0, *emitted[2:])
        samples.append(RoundSample((), emitted, min(r.num_accepted, 1)))
    tests = offset_tests(LAW, samples, num_samples=4000)
    assert tests[0].adjusted > 1e-3
    assert tests[1].adjusted < 1e-2
    with pytest.raises(ConfigError, match="emitted no token"):
        offset_tests(LAW, [RoundSample((), (), 0)])


def test_an_impossible_token_at_an_offset_fails_it() -> None:
    tests = offset_tests(LAW, [RoundSample((), (0, 9), 1)], num_samples=200)
    assert tests[1].p_value == 0.0
