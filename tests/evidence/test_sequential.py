"""Monitoring: the evidence has mean 1 where the law holds, at every step."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from draftproof.errors import ConfigError, InvariantError
from draftproof.evidence import Counts, JointLaw, SequentialAudit, combine_log_e, log_e_value
from draftproof.evidence.directions import half_mass_shift

PROBS = np.array([0.5, 0.3, 0.2])
LAW = JointLaw(((0,), (1,), (2,)), PROBS, 1)
FAULTS = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.5]])  # the second emits impossible outcomes too


def counts(*cells: int) -> Counts:
    return Counts(np.array(cells, dtype=np.int64))


def mean_after_one_more(cells, evidence) -> float:
    after = [np.array(cells) + np.eye(3, dtype=int)[i] for i in range(3)]
    return sum(p * math.exp(evidence(row)) for p, row in zip(PROBS, after, strict=True))


@pytest.mark.parametrize("faults", [None, FAULTS[:1], FAULTS])
def test_the_evidence_is_a_martingale_or_loses(faults) -> None:
    def evidence(cells) -> float:
        return log_e_value(LAW, counts(*cells), faults)

    assert evidence((0, 0, 0)) == 0.0
    for cells in product(range(4), repeat=3):
        now, mean = math.exp(evidence(cells)), mean_after_one_more(cells, evidence)
        assert mean <= now * (1 + 1e-9)
        if faults is None or len(faults) == 1:
            assert mean == pytest.approx(now, rel=1e-9)


def test_an_empirical_likelihood_ratio_would_not_be_evidence() -> None:
    """The planted fault: the best-fitting law in place of a mixture grows by itself."""

    def greedy(cells) -> float:
        n = sum(cells)
        return sum(c * math.log(c / n / p) for c, p in zip(cells, PROBS, strict=True) if c)

    assert mean_after_one_more((0, 0, 0), greedy) > 2
    assert mean_after_one_more((2, 1, 1), greedy) > 1.05 * math.exp(greedy((2, 1, 1)))


def test_impossible_outcomes_alarm_at_once() -> None:
    audit = SequentialAudit([LAW])
    assert audit.add(0, Counts(np.zeros(3, dtype=np.int64), {(7,): 1}))
    assert audit.p_value == 0.0


@pytest.mark.statistical
def test_nobody_is_accused_however_often_one_looks() -> None:
    """100 audits of 20 looks at level 0.05: more than 15 alarms have a chance of 1e-4."""
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(100):
        audit = SequentialAudit([LAW], alpha=0.05, alternatives=[FAULTS[:1]])
        for _ in range(20):
            audit.add(0, Counts(rng.multinomial(25, PROBS)))
        alarms += audit.is_alarmed
    assert alarms <= 15


@pytest.mark.parametrize(("tv", "most"), [(0.1, 2370), (0.03, 17_400)])
def test_a_bias_is_found_as_fast_as_published(tv: float, most: int) -> None:
    """81 outcomes, worst directions; published: TV 0.03 after at most 17,400 draws."""
    texts = tuple(product(range(3), repeat=4))
    rng = np.random.default_rng(2)
    law = JointLaw(texts, rng.dirichlet(np.full(81, 3.0)), 4)
    needed = []
    for _ in range(5):
        biased = half_mass_shift(law.probs, tv, rng)
        audit, step = SequentialAudit([law]), most // 60
        while not audit.add(0, Counts(rng.multinomial(step, biased))):
            assert audit.num_draws < 3 * most
        needed.append(audit.num_draws)
    assert np.median(needed) <= most


def test_a_known_fault_is_found_sooner() -> None:
    rng = np.random.default_rng(3)
    plain, knowing = (SequentialAudit([LAW], alternatives=[a]) for a in (None, FAULTS[:1]))
    while not plain.is_alarmed:
        new = Counts(rng.multinomial(20, FAULTS[0]))
        plain.add(0, new)
        if not knowing.is_alarmed:
            knowing.add(0, new)
    assert knowing.num_draws < plain.num_draws


def test_the_alarm_stays_and_counts_are_kept() -> None:
    audit = SequentialAudit([LAW, LAW], alpha=0.01)
    assert audit.add(1, counts(0, 0, 60))
    assert audit.add(0, counts(50, 30, 20))
    assert audit.counts[1].cells.tolist() == [0, 0, 60]
    assert audit.num_draws == 160
    assert audit.p_value <= 0.01


def test_prompts_are_combined_by_product_and_mean() -> None:
    assert combine_log_e([math.log(8), math.log(2)]) == pytest.approx(math.log((16 + 5) / 2))
    assert combine_log_e([math.inf, 0.0]) == math.inf
    with pytest.raises(ConfigError):
        combine_log_e([])
    with pytest.raises(ConfigError):
        SequentialAudit([])
    with pytest.raises(InvariantError):
        SequentialAudit([LAW], alternatives=[None, None])
