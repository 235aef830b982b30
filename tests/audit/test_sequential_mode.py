"""Audits that may stop at any look: alarms early, verdicts at the budget, certificates."""

from __future__ import annotations

import functools
import json
from multiprocessing import Pipe

import numpy as np
import pytest

from draftproof.audit import Evidence, Plan
from draftproof.audit.kinds import check, kind_of
from draftproof.audit.sequential import SequentialEvidence, judge_sequential
from draftproof.audit.subjects import Draws, Policy, prompt_evidence
from draftproof.audit.subjects.fan_out import _serve, draw_in_looks, look_ends
from draftproof.audit.subjects.parts import Part, Work
from draftproof.audit.watch import Watched, watch
from draftproof.core.params import SamplingParams
from draftproof.errors import BackendError, ConfigError
from draftproof.evidence import JointLaw
from draftproof.evidence.sequential_power import sequential_power, smallest_sequential

LAW = JointLaw.from_mapping({(0,): 0.5, (1,): 0.3, (2,): 0.2}, 1)
POLICY = Policy(SamplingParams(), 1)
#: A right subject raises the alarm in a run with probability 0.001, wherever it stops.
PLAN = Plan(tv=0.1, calibration_samples=4000)


class Sampler:
    """Draws from given probabilities; a draw is a function of its seed."""

    def __init__(self, *probs):
        self.edges = np.cumsum(probs)

    def draw(self, prompt_ids, policy, num, first_seed):
        coins = [np.random.default_rng(first_seed + i).random() for i in range(num)]
        tokens = np.searchsorted(self.edges, coins, "right").reshape(num, 1)
        return Draws(tokens.astype(np.int64))


class Dies:
    def draw(self, *_):
        raise ValueError("no more")


def audit(probs, budget=2500, first_seed=5):
    def evidence_of(drawn):
        parts = tuple(prompt_evidence("p", LAW, draws) for draws in drawn)
        return Evidence("sampler", PLAN, parts, expects_speculation=False)

    said = []
    found = watch(
        lambda: Sampler(*probs), [Watched("p", (0,), LAW, POLICY)], evidence_of, budget,
        plan=PLAN, first_seed=first_seed, say=said.append,
    )  # fmt: skip
    assert len(said) == len(found.looks)
    return found


@pytest.mark.statistical
def test_a_right_decoder_goes_to_the_budget_and_a_wrong_one_stops_early(tmp_path):
    # 2500 draws of three outcomes show a bias of TV 0.1 with probability 0.99 (stated by
    # the verdict itself); the planted one is TV 0.2.
    right = judge_sequential(audit((0.5, 0.3, 0.2)))
    assert (right.verdict, right.exit_code, right.alarmed_at) == ("exact", 0, None)
    assert right.looks[-1][0] == 2500
    assert right.smallest_shared <= PLAN.tv

    wrong = audit((0.3, 0.3, 0.4))
    verdict = judge_sequential(wrong)
    assert verdict.exit_code == 1
    assert verdict.alarmed_at == verdict.looks[-1][0] < 2500
    assert verdict.p_value < 1e-3
    assert verdict.worst_nodes

    stored = tmp_path / "c.json"
    content = kind_of(wrong).stored(wrong, verdict)
    stored.write_text(json.dumps(content))
    again = check(stored)
    assert again.verdict.to_json() == verdict.to_json()
    assert not again.differences
    assert ("verdict", f"biased: {verdict.reason}") in again.facts
    content["verdict"]["alarmed_at"] = 1
    stored.write_text(json.dumps(content))
    assert check(stored).differences == ("alarmed_at",)


def test_too_small_a_budget_is_no_evidence():
    verdict = judge_sequential(audit((0.5, 0.3, 0.2), budget=100))
    assert verdict.exit_code == 3
    assert "would have been seen" in verdict.reason


def test_an_impossible_draw_ends_the_audit():
    found = audit((0.5, 0.3, 0.1, 0.1), budget=2000)
    assert len(found.looks) == 1
    verdict = judge_sequential(found)
    assert verdict.verdict == "biased"
    assert "cannot give" in verdict.reason


def test_looks_that_do_not_lead_to_the_counts_are_refused():
    found = audit((0.5, 0.3, 0.2), budget=600)
    with pytest.raises(ConfigError, match="last look"):
        SequentialEvidence(found.final, 600, found.looks[:-1])
    with pytest.raises(ConfigError, match="fall"):
        SequentialEvidence(found.final, 600, (found.looks[-1], found.looks[0], found.looks[-1]))


@pytest.mark.statistical
def test_the_stated_sensitivity_is_what_a_simulation_gives():
    # 300 simulated audits: a power of 0.99 comes out below 0.96 with probability 3e-5.
    tv = smallest_sequential([LAW], [2000], 1e-3, 0.99)
    assert 0.03 < tv < 0.12
    assert sequential_power([LAW], [2000], tv, 1e-3, seed=9) > 0.96
    assert sequential_power([LAW], [2000], tv / 3, 1e-3, seed=9) < 0.5
    assert smallest_sequential([LAW], [20], 1e-3, 0.99) == 1.0


def test_portions_give_the_draws_of_one_run():
    recipe = functools.partial(Sampler, 0.5, 0.3, 0.2)
    jobs = [((0,), POLICY), ((1,), POLICY)]
    (whole,) = draw_in_looks(recipe, jobs, [90], first_seed=3)
    parts = list(draw_in_looks(recipe, jobs, [21, 22, 90], first_seed=3))
    for prompt in range(2):
        joined = np.concatenate([part[prompt].tokens for part in parts])
        np.testing.assert_array_equal(joined, whole[prompt].tokens)
    # The second prompt has seeds of its own.
    assert (whole[0].tokens != whole[1].tokens).any()


def test_a_worker_that_fails_says_why():
    ours, theirs = Pipe()
    ours.send(Part(0, 4))
    _serve(theirs, Dies, Work([((0,), POLICY)], 4, 1))
    answer = ours.recv()
    assert isinstance(answer, BackendError)
    assert "no more" in str(answer)
    with pytest.raises(ConfigError, match="processes 0"):
        list(draw_in_looks(Dies, [((0,), POLICY)], [4], first_seed=1, processes=0))


@pytest.mark.parametrize("budget", [1, 250, 251, 10_000])
def test_looks_rise_to_the_budget(budget):
    ends = look_ends(budget)
    assert ends == sorted(set(ends))
    assert ends[-1] == budget
