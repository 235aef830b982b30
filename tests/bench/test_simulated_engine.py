"""A campaign on an engine whose speedup, crossing and acceptance are planted."""

from __future__ import annotations

import math

import pytest

from draftproof.bench.run_record import Condition
from draftproof.bench.running import Bench, run_bench

RATE, KAPPA = 0.7, 3
#: Committed tokens per round of independent coins, Leviathan et al. 2211.17192, eq. 1.
TOKENS = (1 - RATE ** (KAPPA + 1)) / (1 - RATE)


def pass_s(rows, tokens):
    """Free up to 8 tokens, then in proportion: compute-bound beyond."""
    return 0.010 * max(1.0, tokens / 8)


def truth(rows, tokens_per_round=TOKENS, kappa=KAPPA):
    plain = pass_s(rows, rows) / rows
    speculative = pass_s(rows, rows * (kappa + 1)) / (rows * tokens_per_round)
    return plain / speculative


@pytest.fixture(scope="module")
def record(tools):
    runner, clock = tools.simulated_runner(RATE, pass_s, max_rows=8)
    grid = [Condition("chat", 0.0, rows) for rows in (1, 2, 4, 8)]
    settings = tools.settings(grid, rounds=6, max_tokens=48)
    bench = Bench(tools.SUBJECT, settings, tools.environment(), tools.NumberedPrompts())
    return run_bench(bench, runner, clock=clock)


def test_the_planted_speedups_are_recovered(record):
    cells = {
        record.settings.conditions[cell.condition].concurrency: cell.speedup
        for cell in record.cells
        if cell.arm == "kappa 3"
    }
    for rows, speedup in cells.items():
        assert speedup.n == 6
        assert speedup.value == pytest.approx(truth(rows), rel=0.1), rows
        assert speedup.low < truth(rows) < speedup.high, rows


def test_the_planted_acceptance_is_recovered(record):
    """Counts agree within 4 standard errors: false alarms 4 in 60,000 per cell."""
    for cell in record.cells:
        held = [
            each.acceptance
            for each in record.measurements
            if (each.condition, each.arm) == (cell.condition, cell.arm)
        ]
        if cell.arm == "plain":
            assert (cell.acceptance_rate, cell.mean_acceptance_length) == (None, None)
            assert (cell.speedup.value, cell.drafted_per_token) == (None, 0.0)
            continue
        drafts = sum(each.num_drafts for each in held)
        error = math.sqrt(RATE * (1 - RATE) / drafts)
        assert cell.acceptance_rate_per_pos[0] == pytest.approx(RATE, abs=4 * error)
        assert cell.mean_acceptance_length == pytest.approx(TOKENS, abs=4 * 1.3 / drafts**0.5)
        assert 2.0 < cell.tokens_per_chunk < 3.0


def test_the_planted_crossing_is_bracketed(record):
    """The truth is above 1 at 4 rows and below at 8, where drafts cost what they win."""
    assert truth(4) > 1.0 > truth(8)
    (crossing,) = record.crossings
    assert (crossing.pays_up_to, crossing.loses_from) == (4, 8)
    assert 4 < crossing.estimate < 8
    assert "pays up to 4 and loses from 8 on" in crossing.says
    decisions = {
        record.settings.conditions[each.condition].concurrency: each.decision
        for each in record.verdicts
    }
    assert decisions == {
        1: "speculate",
        2: "speculate",
        4: "speculate",
        8: "do not speculate",
    }


def test_the_pace_is_that_of_the_clock(record):
    plain = {
        record.settings.conditions[cell.condition].concurrency: cell.tokens_per_s.value
        for cell in record.cells
        if cell.arm == "plain"
    }
    for rows, pace in plain.items():
        assert pace == pytest.approx(rows / pass_s(rows, rows), rel=1e-6)


def test_every_arm_of_a_round_has_the_same_prompts_and_no_other_round_has_them(record):
    by_round = {}
    for each in record.measurements:
        key = (each.condition, each.round)
        by_round.setdefault(key, set()).add((each.prompts_digest, len(each.requests)))
    assert all(len(kinds) == 1 for kinds in by_round.values())
    digests = [next(iter(kinds))[0] for kinds in by_round.values()]
    assert len(set(digests)) == len(digests)


def test_orders_of_arms_vary(record):
    firsts = {each.arm for each in record.measurements if each.order == 0}
    assert firsts == {"plain", "kappa 3"}
