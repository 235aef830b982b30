"""Intervals keep their confidence, with and without an early end; crossings too."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from draftproof.bench.comparing import shift_estimate
from draftproof.bench.crossing import crossings
from draftproof.bench.estimated import CellSummary, Estimate
from draftproof.bench.intervals import estimate, is_look, is_narrow, spent_error
from draftproof.bench.run_record import Condition
from draftproof.errors import ConfigError

#: Two-sided binomial bound: fewer hits than this have a probability below 1e-4 at 95 %.
TRIALS, FEWEST = 2000, 1860


def lognormal(rng, median, spread=0.4):
    return median * math.exp(rng.gauss(0.0, spread))


def covers(found, truth):
    return found.low is None or found.low <= truth <= found.high


@pytest.mark.parametrize("rounds", [6, 9, 12, 20])
@pytest.mark.statistical
def test_a_median_is_covered(rounds):
    """False alarms 1e-4 each; a coverage of 92 % would be seen with probability 0.9."""
    rng = random.Random(rounds)
    hits = 0
    for _ in range(TRIALS):
        found = estimate([lognormal(rng, 1.8) for _ in range(rounds)], 0.05)
        assert found.low is not None
        hits += covers(found, 1.8)
    assert hits >= FEWEST


@pytest.mark.statistical
def test_a_median_is_covered_by_whoever_stops_when_it_is_narrow():
    """The same bound, over runs that end at the first narrow look or after 28 rounds."""
    rng = random.Random(1)
    hits, early = 0, 0
    for _ in range(TRIALS):
        values = []
        while len(values) < 28:
            values.append(lognormal(rng, 1.8, 0.2))
            found = estimate(values, spent_error(len(values), 0.95, may_stop=True))
            if is_look(len(values)) and is_narrow(found, 0.4):
                early += 1
                break
        hits += covers(found, 1.8)
    assert early > TRIALS // 2
    assert hits >= FEWEST


def test_stopping_without_spending_the_error_would_fail():
    """The planted fault: looking after every round at the whole error loses the confidence."""
    rng = random.Random(1)
    hits = 0
    for _ in range(600):
        values = []
        while len(values) < 40:
            values.append(lognormal(rng, 1.8, 0.2))
            found = estimate(values, 0.05)
            if found.low is not None and not covers(found, 1.8):
                break
        hits += covers(found, 1.8)
    assert hits < 548


def test_errors_of_all_looks_sum_to_the_error():
    looks = [rounds for rounds in range(1, 500) if is_look(rounds)]
    assert looks[:6] == [6, 9, 13, 19, 28, 42]
    spent = [spent_error(rounds, 0.95, may_stop=True) for rounds in looks]
    assert sum(spent) <= 0.05
    assert spent_error(7, 0.95, may_stop=True) == spent[1]
    assert spent_error(7, 0.95, may_stop=False) == pytest.approx(0.05)


def test_too_few_rounds_have_no_interval():
    assert estimate([], 0.05) == Estimate(None, None, None, 0)
    assert estimate([1.0] * 5, 0.05) == Estimate(1.0, None, None, 5)
    assert estimate([3.0, 1.0, 2.0, 6.0, 5.0, 4.0], 0.05) == Estimate(3.5, 1.0, 6.0, 6)
    assert estimate([float(n) for n in range(9)], 0.05) == Estimate(4.0, 1.0, 7.0, 9)
    assert not is_narrow(Estimate(1.0, None, None, 5), 9.0)
    with pytest.raises(ConfigError, match="expected a number between 0 and 1"):
        estimate([1.0], 1.0)


@pytest.mark.parametrize(("left", "right"), [(6, 6), (8, 5)])
@pytest.mark.statistical
def test_a_shift_is_covered(left, right):
    """The same bound for the interval of Moses."""
    rng = random.Random(left)
    hits = 0
    for _ in range(600):
        found = shift_estimate(
            [lognormal(rng, 10.0) for _ in range(left)],
            [lognormal(rng, 11.5) for _ in range(right)],
            0.05,
        )
        assert found.low is not None
        hits += covers(found, 1.15)
    # 600 trials at 95 %: fewer than 548 have a probability below 1e-4.
    assert hits >= 548


def test_shifts_of_small_samples():
    assert shift_estimate([1.0], [2.0], 0.05).low is None
    assert shift_estimate([], [2.0], 0.05).value is None
    found = shift_estimate([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0], 0.05)
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0)


def cell(condition, arm, speedup):
    nothing = Estimate(None, None, None, 0)
    return CellSummary(
        condition, arm, nothing, nothing, nothing, nothing, speedup, None, nothing, None, None,
        (), None, None, None, None, None, 0, 0, False,
    )  # fmt: skip


def crossing_of(tools, speedups, loads=(1, 2, 4, 8, 16)):
    grid = [Condition("chat", 0.0, load) for load in loads]
    settings = tools.settings(grid, rounds=9)
    cells = [cell(index, "kappa 3", found) for index, found in enumerate(speedups)]
    (found,) = crossings(settings, cells)
    return found


@pytest.mark.statistical
def test_a_crossing_is_covered(tools):
    """The speedup is 2 / load^0.4, which crosses 1 at 5.66; the same bound."""
    truth = 2.0 ** (1 / 0.4)
    rng = random.Random(3)
    hits, medians = 0, []
    for _ in range(600):
        speedups = [
            estimate([lognormal(rng, 2.0 / load**0.4, 0.15) for _ in range(9)], 0.05)
            for load in (1, 2, 4, 8, 16)
        ]
        found = crossing_of(tools, speedups)
        hits += (found.pays_up_to or 0.0) < truth < (found.loses_from or math.inf)
        medians.append(found.estimate)
    assert hits >= 548
    assert statistics.median(medians) == pytest.approx(truth, rel=0.1)


def test_what_a_crossing_says(tools):
    def clear(value):
        return Estimate(value, 0.9 * value, 1.1 * value, 9)

    falling = crossing_of(tools, [clear(v) for v in (2.0, 1.5, 1.2, 0.8, 0.5)])
    assert (falling.pays_up_to, falling.loses_from) == (4, 8)
    assert falling.estimate == pytest.approx(4 * 2 ** (math.log(1.2) / math.log(1.2 / 0.8)))
    never = crossing_of(tools, [clear(v) for v in (0.8, 0.7, 0.6, 0.5, 0.5)])
    assert (never.pays_up_to, never.loses_from, never.estimate) == (None, 1, None)
    assert "do not speculate here" in never.says
    always = crossing_of(tools, [clear(v) for v in (2.0, 2.0, 1.5, 1.5, 1.2)])
    assert (always.pays_up_to, always.loses_from) == (16, None)
    open_ended = crossing_of(tools, [clear(v) for v in (2.0, 1.05, 1.0, 0.95, 0.8)])
    assert (open_ended.pays_up_to, open_ended.loses_from) == (1, 16)
    gap = crossing_of(tools, [clear(v) for v in (2.0, 0.8, 1.5, 0.8, 0.5)])
    assert (gap.pays_up_to, gap.loses_from) == (1, 8), "one dip settles nothing"
