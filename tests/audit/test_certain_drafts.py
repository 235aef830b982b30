"""Acceptance of drafts that their drafter had no choice about, against the enumerated law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wrong_keepers import KeepsTooFew, KeepsTooMany

from draftproof.audit import Certificate, Evidence, Plan, RoundLog, judge, recompute
from draftproof.audit.placed_rounds import certain_promises
from draftproof.audit.subjects import EngineSubject, Policy, prompt_evidence
from draftproof.audit.subjects.report import facts_of
from draftproof.audit.verdict import pooled_acceptance
from draftproof.backends.table import FunctionTable, TableBackend, seeded_probs
from draftproof.core.law import DenseLaw
from draftproof.core.params import SamplingParams
from draftproof.core.types import Draft
from draftproof.engine import EngineCore
from draftproof.errors import ConfigError
from draftproof.evidence import JointLaw, RoundSample, enumerate_law
from draftproof.proposers import NgramProposer

PROMPT = (0, 1, 2, 0, 1, 2, 0)
#: A right engine is called biased with probability 0.001, and so are its rounds called slow or
#: fast; seeds are fixed. 1500 draws show TV 0.16, and 0.2 kept drafts per round.
PLAN = Plan(tv=0.18, calibration_samples=4000)
DRAWS = 1500


class Drawn:
    """Draws its drafts, so that they are not certain."""

    name = "drawn"

    def propose(self, requests):
        law = DenseLaw(np.full(5, 0.2))
        tokens = [law.draw(request.coins.draft(0)) for request in requests]
        return [Draft((token,), (law,), self.name) for token in tokens]

    def release(self, request_id):
        del request_id


def evidence_of(executor=None, rule="standard", ends=(), drafter=None):
    table = FunctionTable(5, lambda held: seeded_probs(5, tuple(held[-6:]), seed=3))
    core = EngineCore(
        TableBackend(table),
        proposers=[drafter or NgramProposer(1, 3)],
        kappa=3,
        rule=rule,
        executor=executor,
    )
    policy = Policy(SamplingParams(top_k=2), 4, frozenset(ends))
    law = enumerate_law(
        core.target, PROMPT, policy.params, policy.horizon, eos_token_ids=policy.eos_token_ids
    )
    drawn = EngineSubject(core).draw(PROMPT, policy, DRAWS, 5)
    return Evidence("engine", PLAN, (prompt_evidence("p", law, drawn),))


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("rule", "ends"),
    [("standard", ()), ("block", (2,)), ("coupled", ()), ("sample-match", (2,))],
)
def test_every_exact_rule_keeps_what_certain_drafts_promise(rule, ends):
    verdict = judge(evidence_of(rule=rule, ends=ends))
    assert verdict.verdict == "exact", verdict.reason
    assert verdict.acceptance.promised == verdict.acceptance.ceiling > 0.2
    assert verdict.acceptance.accepted_per_round == pytest.approx(
        verdict.acceptance.promised, abs=0.1
    )
    assert not verdict.findings


@pytest.mark.statistical
def test_too_few_kept_are_exact_but_slow_and_too_many_fast_because_biased(tmp_path):
    slow = evidence_of(KeepsTooFew())
    verdict = judge(slow)
    assert verdict.verdict == "exact", verdict.reason
    assert verdict.findings == ("exact but slow",)
    assert ("finding", "exact but slow") in facts_of(slow, verdict)
    fast = evidence_of(KeepsTooMany())
    verdict = judge(fast)
    assert verdict.verdict == "biased"
    assert "fast because biased" in verdict.findings
    for held in (slow, fast):
        path = tmp_path / "c.json"
        Certificate.of(held).save(path)
        assert recompute(Certificate.load(path))[1] == ()
        assert Certificate.load(path).evidence.prompts[0].samples == held.prompts[0].samples


def test_drafts_that_were_drawn_promise_nothing_here():
    acceptance = pooled_acceptance(evidence_of(drafter=Drawn()))
    assert acceptance.num_drafted > 0
    assert np.isnan(acceptance.promised)


LAW = JointLaw.from_mapping({(0, 1): 0.3, (0, 2): 0.2, (1, 1): 0.5}, 2)


@pytest.mark.parametrize(
    ("drafted", "accepted", "promised"),
    [
        ((0,), 0, 0.5),
        ((0, 2), 1, 0.5 + 0.2),
        ((4, 1), 0, 0.0),  # what the law forbids is never kept
        ((0, 2, 3), 2, 0.5 + 0.2),  # behind the horizon: as it came, and it did not
        ((0, 2, 3), 3, 0.5 + 0.2 + 1),
    ],
)
def test_a_promise_is_the_law_of_the_draft_as_far_as_it_is_known(drafted, accepted, promised):
    log = RoundLog((0, len(drafted)), (0, accepted), (1, accepted + 1), (False, False))
    sample = RoundSample((), (0,) * (accepted + 1), accepted, drafted)
    assert certain_promises(LAW, log, ((sample, 1),)) == pytest.approx([promised])
    assert certain_promises(LAW, None, ((sample, 1),)) is None
    assert certain_promises(LAW, log, ((replace(sample, drafted=None), 1),)) is None
    with pytest.raises(ConfigError, match="expected the same ones"):
        certain_promises(LAW, log, ((sample, 2),))
