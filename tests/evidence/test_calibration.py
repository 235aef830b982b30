"""P-values keep their level, in sparse cells too, and each audit has its own calibration."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest, chi2

from draftproof.errors import ConfigError
from draftproof.evidence import (
    Calibrations,
    Counts,
    JointLaw,
    combine,
    discrepancies,
    fixed_budget_test,
)
from draftproof.evidence.calibration import Calibration, mc_interval

#: Four cells that are almost never drawn, as real models have by the thousand.
SPARSE = np.array([0.3, 0.3, 0.2, 0.2 - 4e-4, 1e-4, 1e-4, 1e-4, 1e-4])
DRAWS = 1500


def law_of(probs) -> JointLaw:
    return JointLaw(tuple((i,) for i in range(len(probs))), np.asarray(probs), 1)


def excess(alarms: int, audits: int, level: float) -> float:
    """Return the p-value of "the false-alarm rate is at most twice the level"."""
    return binomtest(alarms, audits, 2 * level, alternative="greater").pvalue


def asymptotic(counts, probs):
    """Pearson's p-values from the chi-squared table."""
    expected = counts.sum(axis=1, keepdims=True) * probs
    return chi2.sf(((counts - expected) ** 2 / expected).sum(axis=1), len(probs) - 1)


# --- level ------------------------------------------------------------------------------


@pytest.mark.statistical
def test_the_level_holds_in_sparse_cells_where_the_asymptotic_one_fails() -> None:
    """20,000 null audits; a rate above twice 0.001 would be seen at 0.004 and more."""
    counts = np.random.default_rng(7).multinomial(DRAWS, SPARSE, 20_000)
    calibration = Calibrations(20_000, seed=1).of(SPARSE, DRAWS)
    p = calibration.p_values(*discrepancies(counts, SPARSE))
    assert excess(int((p <= 1e-3).sum()), len(p), 1e-3) > 1e-6
    assert (p <= 1e-3).mean() > 2e-4, "the test must not be blind either"
    wrong = asymptotic(counts, SPARSE)
    assert excess(int((wrong <= 1e-3).sum()), len(p), 1e-3) < 1e-12


def test_p_values_of_a_tiny_law_are_valid_at_every_level() -> None:
    """Exact: two cells, three draws, all outcomes summed."""
    probs = np.array([0.7, 0.3])
    outcomes = np.array([[3, 0], [2, 1], [1, 2], [0, 3]])
    weights = np.array([0.343, 0.441, 0.189, 0.027])
    p = Calibrations(50_000, seed=3).of(probs, 3).p_values(*discrepancies(outcomes, probs))
    for level in p:
        assert weights[p <= level].sum() <= level + 0.01


def test_min_p_is_a_statistic_of_its_own() -> None:
    """The smaller of two valid p-values is no p-value; taking it for one goes red."""
    probs = np.full(20, 0.05)
    rng = np.random.default_rng(2)
    calibration = Calibrations(20_000, seed=2).of(probs, 400)
    g, tv = discrepancies(rng.multinomial(400, probs, 20_000), probs)
    honest = calibration.p_values(g, tv)
    tv_ranks = 1 + len(calibration.tv) - np.searchsorted(calibration.tv, tv)
    naive = np.minimum(calibration.single_p_values(g), tv_ranks / (len(calibration.tv) + 1))
    assert excess(int((honest <= 0.01).sum()), 20_000, 0.005) > 1e-6
    assert (naive <= 0.01).mean() > 1.3 * (honest <= 0.01).mean()


def test_ties_count_as_hits() -> None:
    calibration = Calibration.from_samples(np.array([1.0, 2.0, 2.0, 3.0]), np.zeros(4))
    assert calibration.single_p_values(np.array([2.0]))[0] == pytest.approx(4 / 5)
    assert calibration.single_p_values(np.array([2.0 + 1e-12]))[0] == pytest.approx(4 / 5)


# --- one calibration each ---------------------------------------------------------------


class KeyedByLawAlone(Calibrations):
    """A cache that forgets the number of draws: the planted fault."""

    def of(self, probs, num_draws, *, stream=0, num_samples=None):
        return super().of(probs, 4000, stream=stream, num_samples=num_samples)


@pytest.mark.parametrize(("kind", "is_right"), [(Calibrations, True), (KeyedByLawAlone, False)])
def test_a_calibration_belongs_to_its_number_of_draws(kind, is_right: bool) -> None:
    calibrations, rng = kind(2000, seed=4), np.random.default_rng(4)
    probs = np.array([0.5, 0.3, 0.2])
    counts = rng.multinomial(100, probs, 1000)
    p = calibrations.of(probs, 100).p_values(*discrepancies(counts, probs))
    assert (excess(int((p <= 0.05).sum()), 1000, 0.05) > 1e-4) == is_right


def test_prompts_that_are_combined_do_not_share_a_calibration() -> None:
    """With one calibration for all, its noise adds up and Fisher's test raises false alarms.

    4,000 prompts of one law; a calibration of 2,000 samples, by stream or for all.
    """
    probs, rng = np.array([0.5, 0.3, 0.2]), np.random.default_rng(5)
    shared = 0
    for audit in range(300):
        calibration = Calibrations(2000, seed=audit).of(probs, 30_000)
        p = calibration.p_values(*discrepancies(rng.multinomial(30_000, probs, 4000), probs))
        shared += combine(p.tolist()).rejects(0.01)
    assert excess(shared, 300, 0.005) < 1e-3, "told from the level itself"
    run, apart = Calibrations(100, seed=1), []
    for prompt in range(400):
        g, tv = discrepancies(rng.multinomial(30_000, probs, 1), probs)
        apart.append(float(run.of(probs, 30_000, stream=prompt).p_values(g, tv)[0]))
    assert not combine(apart).rejects(0.002)


def test_equal_content_is_calibrated_once_and_nothing_leaks_between_runs() -> None:
    probs = np.array([0.5, 0.5])
    run = Calibrations(200, seed=1)
    assert run.of(probs, 10) is run.of(probs.copy(), 10)
    assert run.of(probs, 10) is not run.of(probs, 10, stream=1)
    assert (run.of(probs, 10).tv == Calibrations(200, seed=1).of(probs, 10).tv).all()
    with pytest.raises(ConfigError):
        Calibrations(10)


# --- the test ---------------------------------------------------------------------------


def test_an_impossible_outcome_fails_at_once() -> None:
    law = law_of([0.5, 0.5])
    found = fixed_budget_test(law, Counts(np.array([500, 500]), {(9,): 1}), Calibrations(200))
    assert found.p_value == 0.0
    assert found.rejects(1e-12)
    assert found.num_impossible == 1
    assert found.tv >= 1 / 1001


def test_no_draws_and_a_certain_law_say_nothing() -> None:
    nothing = Counts(np.zeros(2, dtype=np.int64))
    assert fixed_budget_test(law_of([0.5, 0.5]), nothing, Calibrations(200)).p_value == 1
    assert fixed_budget_test(law_of([1.0]), Counts(np.array([7])), Calibrations(200)).p_value == 1


def test_a_second_look_reaches_below_the_floor() -> None:
    law = law_of([0.5, 0.5])
    calibrations = Calibrations(1000, seed=1)
    coarse = fixed_budget_test(law, Counts(np.array([700, 300])), calibrations)
    fine = fixed_budget_test(law, Counts(np.array([700, 300])), calibrations, refine_below=1e-4)
    assert coarse.p_value >= calibrations.of(law.probs, 1000).floor > 1e-4
    assert fine.p_value < 1e-4
    assert coarse.p_interval[0] <= fine.p_value <= coarse.p_interval[1]


def test_the_interval_of_a_p_value_covers_it() -> None:
    low, high = mc_interval(51 / 10_001, 10_000)
    assert low < 0.005 < high
    assert mc_interval(1 / 101, 100)[0] == 0.0
    assert mc_interval(1.0, 100)[1] == 1.0


# --- several prompts --------------------------------------------------------------------


def test_one_bad_prompt_and_a_shared_bias_are_both_found() -> None:
    one_bad = [0.5] * 19 + [1e-5]
    shared = [0.02] * 20
    assert combine(one_bad).rejects(1e-3)
    assert combine(one_bad).fisher > 1e-3
    assert combine(shared).rejects(1e-3)
    assert combine(shared).smallest > 1e-3
    assert combine([0.01]).p_value == 0.01
    assert combine([0.3, 0.0]).p_value == 0.0
    for wrong in ([], [1.2]):
        with pytest.raises(ConfigError):
            combine(wrong)
