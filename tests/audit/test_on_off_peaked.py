"""What a comparison of on and off would have seen where nearly all texts are the same one."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.audit import Plan
from draftproof.audit.subjects import OnOffEvidence, TextCounts, judge_on_off
from draftproof.evidence import two_sample_counts
from draftproof.evidence.directions import top_shifts

PLAN = Plan(tv=0.2, calibration_samples=20_000)
REPEATS = 60


def judged(on, off):
    texts = tuple(map(str, range(len(on))))
    counts = TextCounts("p", texts, tuple(map(int, on)), tuple(map(int, off)))
    return judge_on_off(OnOffEvidence("s", PLAN, (counts,)))


def misses(rng, moved, law, n, m):
    found = 0
    for seed in range(REPEATS):
        on, off = rng.multinomial(n, moved / moved.sum()), rng.multinomial(m, law)
        found += two_sample_counts(on, off, num_samples=20_000, seed=seed).p_value > PLAN.alpha
    return found


@pytest.mark.statistical
@pytest.mark.parametrize("law", [(0.995, 0.005), (0.98, 0.015, 0.005)])
@pytest.mark.parametrize(("n", "m"), [(1000, 1000), (2000, 500)])
def test_the_stated_difference_is_seen_in_a_peaked_law(law, n, m):
    # A difference of the stated size is missed with probability 0.01, or 0.03 for the rounding
    # of few counts: more than 6 of 60 have a chance of 0.003, and the seed is fixed. Bars of the
    # law without the difference, which rare outcomes do not raise, missed 7 to 33 of 100.
    law = np.array(law)
    verdict = judged(np.round(n * law), np.round(m * law))
    assert verdict.verdict == "exact", verdict.reason
    assert verdict.smallest < 0.15
    rng = np.random.default_rng(3)
    shifts = top_shifts(law, verdict.smallest)
    assert shifts
    assert max(misses(rng, moved, law, n, m) for moved in shifts[:2]) <= 6


@pytest.mark.statistical
@pytest.mark.parametrize(("n", "m"), [(400, 400), (2000, 500)])
def test_the_stated_difference_is_seen_in_a_certain_law(n, m):
    # An outcome of the stated mass in either sample alone; as above, the seed is fixed.
    verdict = judged([n], [m])
    assert verdict.verdict == "exact"
    mass = verdict.smallest
    assert 0 < mass < 0.2
    law, moved = np.array([1.0, 0.0]), np.array([1 - mass, mass])
    rng = np.random.default_rng(4)
    assert misses(rng, moved, law, n, m) <= 6
    assert misses(rng, moved, law, m, n) <= 6
    # A quarter of that mass is mostly missed: the statement is no empty one.
    few = np.array([1 - mass / 4, mass / 4])
    assert max(misses(rng, few, law, n, m), misses(rng, few, law, m, n)) > REPEATS / 2


def test_too_few_draws_of_a_certain_law_see_nothing():
    verdict = judged([5], [5])
    assert verdict.smallest == 1.0
    assert verdict.exit_code == 3
