"""What an audit would have seen: planned, simulated, and as published."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from draftproof.errors import ConfigError
from draftproof.evidence import (
    Calibrations,
    Counts,
    JointLaw,
    discrepancies,
    draws_needed,
    draws_to_detect,
    estimate_tv,
    power_of_fixture,
    smallest_detectable,
)
from draftproof.evidence.directions import half_mass_shift, random_shift, top_shifts
from draftproof.evidence.power import noncentrality
from draftproof.evidence.sequential_power import smallest_sequential

TEXTS = tuple(product(range(3), repeat=4))


def law_of(concentration: float, seed: int = 0) -> JointLaw:
    probs = np.random.default_rng(seed).dirichlet(np.full(81, concentration))
    return JointLaw(TEXTS, probs, 4)


@pytest.mark.parametrize(
    ("df", "expected"), [(2, 35.2), (8, 46.8), (26, 64.8), (80, 94.8), (242, 146), (728, 234)]
)
def test_the_published_noncentralities(df: int, expected: float) -> None:
    assert noncentrality(df, 1e-3, 0.99) == pytest.approx(expected, abs=0.6)


def test_the_published_number_of_draws() -> None:
    assert draws_needed(81, 0.01) == pytest.approx(237_064, abs=2)
    for draws, tv in ((1000, 0.154), (5000, 0.069), (20_000, 0.034), (250_000, 0.0097)):
        assert draws_needed(81, tv) == pytest.approx(draws, rel=0.03)
    with pytest.raises(ConfigError):
        draws_needed(1, 0.1)


@pytest.mark.statistical
@pytest.mark.parametrize("concentration", [50, 3, 0.7])
def test_the_worst_direction_is_seen_with_the_published_power(concentration: float) -> None:
    """0.99 and more at TV 0.01 and 240,000 draws; 0.97 leaves room for 16 x 300 audits."""
    law = law_of(concentration)
    power = power_of_fixture(
        [law], [240_000], 0.01, Calibrations(20_000, seed=1), directions=6, repeats=300
    )
    assert power.worst >= 0.965
    assert power.worst_low < power.worst
    assert power.random >= power.worst - 0.01
    half = power_of_fixture(
        [law], [60_000], 0.01, Calibrations(20_000, seed=1), directions=4, repeats=200
    )
    assert half.worst < 0.7


def test_power_is_simulated_against_the_law_at_hand() -> None:
    """A calibration of another law would show: its power at no bias is not alpha."""
    law = law_of(3)
    power = power_of_fixture([law], [5000], 1e-9, Calibrations(5000, seed=1), 0.05, repeats=400)
    assert 0.0 <= power.worst < 0.05
    assert 0.03 < power.random < 0.07


def test_the_smallest_detectable_bias_is_detected_and_half_of_it_is_not() -> None:
    law, calibrations = law_of(3), Calibrations(20_000, seed=2)
    found = smallest_detectable([law], [20_000], calibrations, repeats=300, directions=4)
    assert found == pytest.approx(0.034, rel=0.12)
    for tv, seen in ((found, True), (found / 2, False)):
        power = power_of_fixture([law], [20_000], tv, calibrations, directions=4, repeats=300)
        assert (power.worst > 0.95) == seen
    assert smallest_detectable([law], [0], calibrations) == 1.0
    assert smallest_detectable([law], [20], calibrations) == 1.0


PEAK = np.array([0.97, 0.02, 0.01])


def test_a_peaked_law_has_a_smallest_bias_and_it_is_seen() -> None:
    """Power at the stated size at least 0.97 in the worst direction, false alarms at most 0.01."""
    law = JointLaw(((0,), (1,), (2,)), PEAK, 1)
    calibrations, rng = Calibrations(20_000, seed=5), np.random.default_rng(5)
    found = smallest_detectable([law], [20_000], calibrations, repeats=400, directions=4)
    assert 0.003 < found < 0.015
    fit = calibrations.of(PEAK, 20_000)

    def alarm(probs: np.ndarray) -> float:
        p = fit.p_values(*discrepancies(rng.multinomial(20_000, probs, 1000), PEAK))
        return float((p <= 1e-3).mean())

    assert alarm(PEAK) <= 0.01
    shifts = top_shifts(PEAK, found)
    assert len(shifts) == 4
    assert min(map(alarm, shifts)) > 0.97
    assert min(map(alarm, top_shifts(PEAK, found / 2))) < 0.9
    assert 0.003 < smallest_sequential([law], [20_000], 1e-3, 0.99) < 0.03


def test_what_a_certain_law_forbids_is_seen_as_often_as_it_is_drawn() -> None:
    law, calibrations = JointLaw(((0, 0),), np.ones(1), 2), Calibrations(5000)
    found = smallest_detectable([law], [1000], calibrations)
    assert 1 - (1 - found) ** 1000 == pytest.approx(0.99)
    assert power_of_fixture([law], [1000], found, calibrations).worst == pytest.approx(0.99)
    assert smallest_sequential([law], [1000], 1e-3, 0.99) == found
    assert smallest_detectable([law], [0], calibrations) == 1.0


def test_twenty_prompts_see_a_shared_bias_that_none_sees_alone() -> None:
    laws = [law_of(3, seed) for seed in range(20)]
    calibrations = Calibrations(4000, seed=3)
    shared = power_of_fixture(laws, [2000] * 20, 0.05, calibrations, directions=2, repeats=100)
    assert shared.worst > 0.97
    alone = power_of_fixture(laws[:1], [2000], 0.05, calibrations, directions=2, repeats=100)
    assert alone.worst < 0.2


def test_directions_have_the_size_they_claim() -> None:
    rng = np.random.default_rng(0)
    for law in (law_of(50), law_of(0.7)):
        for shift in (half_mass_shift, random_shift):
            biased = shift(law.probs, 0.05, rng)
            assert biased is not None
            assert biased.min() >= 0
            assert biased.sum() == pytest.approx(1)
            assert np.abs(biased - law.probs).sum() / 2 == pytest.approx(0.05)
    half = half_mass_shift(law_of(50).probs, 0.05, rng)
    chi = ((half - law_of(50).probs) ** 2 / law_of(50).probs).sum()
    assert chi == pytest.approx(4 * 0.05**2, rel=0.05)
    assert half_mass_shift(np.array([0.9, 0.1]), 0.05, rng) is None


def test_draws_to_detect_ends_where_the_alarm_is_sure() -> None:
    law, calibrations = law_of(3), Calibrations(5000, seed=4)
    biased = half_mass_shift(law.probs, 0.1, np.random.default_rng(1))
    needed = draws_to_detect(law, biased, calibrations, repeats=200)
    assert needed == pytest.approx(draws_needed(81, 0.1), rel=0.25)
    assert draws_to_detect(law, law.probs, calibrations, repeats=100, most=4000) is None
    leaking = np.append(law.probs * 0.9, 0.1)
    assert draws_to_detect(law, leaking, calibrations, repeats=200) <= 60


@pytest.mark.statistical
@pytest.mark.parametrize("tv", [0.0, 0.03, 0.2])
def test_the_interval_of_the_bias_covers_it(tv: float) -> None:
    """Coverage 0.95 is a guarantee; of 100 intervals fewer than 88 would be a defect."""
    law, rng = law_of(3), np.random.default_rng(6)
    biased = half_mass_shift(law.probs, tv, rng) if tv else law.probs
    covered = 0
    for _ in range(100):
        found = estimate_tv(law, Counts(rng.multinomial(20_000, biased)))
        covered += found.low <= tv <= found.high
        assert found.low <= found.value <= found.high
        assert found.high - found.low < 0.06
    assert covered >= 88
    impossible = Counts(np.array([100, *[0] * 80]), {(9, 9, 9, 9): 100})
    assert estimate_tv(law, impossible).high >= 0.5


def test_an_audit_that_could_never_alarm_is_refused() -> None:
    """Too few null samples leave no p-value below alpha: power 0, whatever the bias."""
    law, coarse = law_of(3), Calibrations(2000)
    with pytest.raises(ConfigError, match=r"2000 calibration samples .* expected 4000"):
        power_of_fixture([law], [100], 0.1, coarse)
    with pytest.raises(ConfigError, match="expected 4000"):
        draws_to_detect(law, law.probs, coarse)
