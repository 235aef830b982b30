"""The line for test suites fails on a bias, and refuses to pass on too few draws."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.audit.fixtures import seeded_tables
from draftproof.audit.rounds import plain_law
from draftproof.errors import ConfigError
from draftproof.evidence import JointLaw
from draftproof.evidence.directions import half_mass_shift
from draftproof.testing import assert_exact

LAW = JointLaw.from_mapping(plain_law(seeded_tables(3), 3), 3)
TEXTS = np.array(LAW.outcomes)


def draws(probs, count: int) -> np.ndarray:
    return TEXTS[np.random.default_rng(1).choice(len(LAW), size=count, p=probs)]


@pytest.mark.statistical
def test_it_passes_draws_of_the_law_and_states_what_it_saw() -> None:
    """Chance of a false alarm 1e-4, smallest bias 0.08, seed fixed."""
    report = assert_exact(draws(LAW.probs, 4000), LAW, detects=0.08)
    assert report.false_alarm == 1e-4
    assert 0.03 < report.smallest_detectable <= 0.08
    assert report.estimate.low == 0.0


def test_it_fails_a_bias_and_says_where() -> None:
    biased = half_mass_shift(LAW.probs, 0.1, np.random.default_rng(2))
    with pytest.raises(AssertionError, match=r"biased: p = .*worst after \("):
        assert_exact(draws(biased, 4000), LAW, detects=0.08)
    with pytest.raises(AssertionError, match="1 of them impossible"):
        assert_exact([*draws(LAW.probs, 4000).tolist(), (7, 7, 7)], LAW, detects=0.08)


def test_too_few_draws_are_an_error_and_not_a_pass() -> None:
    with pytest.raises(ConfigError, match=r"expected 0\.02, which takes about"):
        assert_exact(draws(LAW.probs, 4000), LAW, detects=0.02)
    with pytest.raises(ConfigError, match="0 draws"):
        assert_exact([], LAW, detects=0.1)
