"""The policy matrix: parameters that are honoured, ignored, misapplied, refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from draftproof.audit import DraftTotals, Plan
from draftproof.audit.kinds import check, kind_of
from draftproof.audit.matrix import judge_matrix
from draftproof.audit.matrix_evidence import Cell, MatrixEvidence
from draftproof.audit.matrix_run import PAIRS, Knob, groups_of, run_matrix
from draftproof.audit.matrix_subjects import DrawnMatrix, best_next_tokens
from draftproof.audit.subjects import Draws, padded
from draftproof.audit.subjects.draws import RoundKind, totals_of
from draftproof.backends.table import FunctionTable, TableBackend, seeded_probs
from draftproof.errors import ConfigError
from draftproof.evidence import JointLaw, enumerate_law

#: A right subject is called biased with probability 0.001 over the whole matrix; a cell
#: shows TV 0.15 with probability 0.99, and what is planted moves the law by more.
PLAN = Plan(tv=0.15, calibration_samples=6000)
PROMPT = (0, 1, 2, 0, 1, 2)
TARGET = TableBackend(
    FunctionTable(6, lambda held: seeded_probs(6, tuple(held[-2:]), seed=8, spread=1.2))
)
HORIZON = 3


class Sampler:
    """Draws from the law of a policy that may not be the one it was asked for."""

    def __init__(self, change=lambda policy: policy):
        self.change = change

    def draw(self, prompt_ids, policy, num, first_seed):
        policy = self.change(policy)
        law = enumerate_law(
            TARGET, prompt_ids, policy.params, policy.horizon, eos_token_ids=policy.eos_token_ids
        )
        rng = np.random.default_rng(first_seed)
        outcomes = [law.outcomes[i] for i in rng.choice(len(law), num, p=law.probs)]
        return Draws(padded(outcomes, policy.horizon))


def with_params(**changed):
    return lambda policy: replace(policy, params=replace(policy.params, **changed))


def hot(policy):
    """The square root of the temperature in place of the temperature."""
    return with_params(temperature=policy.params.temperature**0.5)(policy)


def refuses_min_p(policy):
    if policy.params.min_p:
        raise ConfigError("min_p is not supported")
    return policy


def forgets_penalty_beside_bias(policy):
    return with_params(repetition_penalty=1.0)(policy) if policy.params.logit_bias else policy


@pytest.fixture(scope="module")
def groups():
    subject = DrawnMatrix(Sampler(), TARGET, PROMPT)
    return groups_of(subject, best_next_tokens(TARGET, PROMPT), HORIZON)


def run(groups, change=lambda policy: policy, **options):
    subject = DrawnMatrix(Sampler(change), TARGET, PROMPT)
    return run_matrix(subject, "sampler", PLAN, groups, horizon=HORIZON, first_seed=1, **options)


def of(groups, *names):
    return [group for group in groups if {knob.name for knob in group} <= set(names)]


def statuses(evidence):
    return {cell.label: cell.status for cell in judge_matrix(evidence).cells}


@pytest.mark.statistical
def test_a_right_subject_is_exact_in_every_cell(groups, tmp_path):
    evidence = run(groups)
    verdict = judge_matrix(evidence)
    assert len(verdict.cells) == len(groups) == 11 + len(PAIRS) == 21
    assert {cell.status for cell in verdict.cells} == {"exact"}, verdict.reason
    assert verdict.exit_code == 0
    assert all(cell.smallest <= PLAN.tv for cell in verdict.cells)
    stored = tmp_path / "c.json"
    stored.write_text(json.dumps(kind_of(evidence).stored(evidence, verdict)))
    again = check(stored)
    assert not again.differences
    assert sum(label == "cell" for label, _ in again.facts) == 21


@pytest.mark.statistical
def test_an_ignored_parameter_is_named_alone_and_in_pairs(groups):
    chosen = of(groups, "temperature", "top_p")
    found = statuses(run(chosen, with_params(top_p=1.0)))
    assert found == {"temperature": "exact", "top_p": "ignored", "temperature + top_p": "ignored"}
    verdict = judge_matrix(run(chosen, with_params(top_p=1.0)))
    assert verdict.exit_code == 1
    assert "without top_p" in verdict.cells[1].detail


@pytest.mark.statistical
def test_a_misapplied_parameter_is_biased_and_a_refusal_is_no_fault(groups):
    chosen = of(groups, "temperature", "min_p")
    misapplied = judge_matrix(run(chosen, hot))
    assert misapplied.cells[0].status == "biased"
    assert "another law than asked for: temperature" in misapplied.reason
    refused = run(chosen, refuses_min_p)
    assert statuses(refused) == {
        "temperature": "exact", "min_p": "refused", "temperature + min_p": "refused",
    }  # fmt: skip
    assert judge_matrix(refused).exit_code == 0


@pytest.mark.statistical
def test_a_fault_of_a_pair_alone_is_found(groups):
    chosen = of(groups, "logit_bias", "repetition_penalty")
    assert statuses(run(chosen, forgets_penalty_beside_bias)) == {
        "repetition_penalty": "exact",
        "logit_bias": "exact",
        "logit_bias + repetition_penalty": "ignored",
    }


class Drafting(Sampler):
    """Tells of rounds that drafted, in the log alone or draw by draw."""

    def __init__(self, rounds, draws=None):
        super().__init__()
        self.rounds, self.draws = {RoundKind(1, 0, 1, False): rounds}, draws

    def draw(self, prompt_ids, policy, num, first_seed):
        drawn = super().draw(prompt_ids, policy, num, first_seed)
        totals = None if self.draws is None else totals_of(self.rounds, self.draws)
        return replace(drawn, rounds=self.rounds, reports_rounds=True, totals=totals)


@pytest.mark.parametrize(
    ("subject", "share"),
    [
        (Drafting(4000), ""),
        (Drafting(200), "0.067"),  # of three tokens, so of 67 draws of 1000 at least
        (Drafting(200, draws=200), ""),
        (Drafting(4000, draws=99), "0.099"),
    ],
)
def test_drafts_must_be_certain_in_a_tenth_of_the_draws_of_a_cell(groups, subject, share):
    drawn = DrawnMatrix(subject, TARGET, PROMPT)
    evidence = run_matrix(
        drawn, "s", PLAN, groups[:1], horizon=HORIZON, first_seed=1, draws=1000,
        expects_speculation=True,
    )  # fmt: skip
    (cell,) = judge_matrix(evidence).cells
    assert cell.status == ("not enough evidence" if share else "exact")
    assert f"drafts are certain in {share}" in cell.detail or not share


def test_a_value_that_changes_nothing_proves_nothing():
    found = judge_matrix(run([(Knob("min_p", 1e-6),)]))
    assert found.cells[0].status == "indistinct"
    assert found.exit_code == 3


def test_too_few_draws_are_no_evidence(groups):
    assert judge_matrix(run(groups[:1], draws=40)).exit_code == 3
    with pytest.raises(ConfigError, match="no parameter"):
        run([])


def certain(draws):
    """A cell whose parameter leaves one token, with some draws of it."""
    law = JointLaw.from_mapping({(1,): 1.0}, 1)
    other = JointLaw.from_mapping({(1,): 0.5, (2,): 0.5}, 1)
    counted = (((1,), draws),) if draws else ()
    cell = Cell(("banned_token_ids",), "banned_token_ids (2,)", law, (other,), counted)
    return judge_matrix(MatrixEvidence("x", PLAN, (cell,)))


def test_a_certain_law_needs_draws_as_every_law_does():
    nothing = certain(0)
    assert nothing.exit_code == 3
    assert nothing.cells[0].detail == "nothing was drawn"
    # An outcome of mass 0.15 stays away from 10 draws with probability 0.2, not 0.01.
    assert certain(10).exit_code == 3
    verdict = certain(40)
    assert verdict.exit_code == 0
    assert verdict.cells[0].smallest == pytest.approx(1 - 0.01 ** (1 / 40))


def test_counts_that_are_none_are_refused():
    law = JointLaw.from_mapping({(1,): 1.0}, 1)
    for times in (0, -3, 2.5, float("nan"), True):
        with pytest.raises(ConfigError, match="times: expected 1 or more"):
            Cell(("top_k",), "top_k 1", law, (law,), (((1,), times),))
    with pytest.raises(ConfigError, match="4 draws of 3"):
        Cell(("top_k",), "top_k 1", law, (law,), (((1,), 3),), drafts=DraftTotals(0, 4, 4, 4))
