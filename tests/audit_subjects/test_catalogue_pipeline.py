"""Faults of the catalogue through subject, evidence, judge, certificate and ``show``."""

from __future__ import annotations

import json

import numpy as np
import pytest

from draftproof.audit import Evidence, Plan, fault_named
from draftproof.audit.evidence_file import ModelRows
from draftproof.audit.fixtures import FIXTURE_HORIZON, FIXTURE_KAPPA, fixture_tables
from draftproof.audit.kinds import check, kind_of
from draftproof.audit.rounds import plain_law
from draftproof.audit.subjects import CallableSubject, Policy, draw_all, prompt_evidence
from draftproof.core.params import SamplingParams
from draftproof.evidence import JointLaw

TABLES = fixture_tables()
LAW = JointLaw.from_mapping(plain_law(TABLES, FIXTURE_HORIZON), FIXTURE_HORIZON)
MODEL = ModelRows.from_tables(TABLES, FIXTURE_KAPPA, FIXTURE_HORIZON)
POLICY = Policy(SamplingParams(), FIXTURE_HORIZON)
#: Every fault of the law is seen in fewer than 5,000 draws with probability 0.99, at a
#: false-alarm rate of 0.001; the seeds are fixed.
PLAN = Plan(tv=0.1, calibration_samples=4000)
DRAWS = 6000


def decoder(law):
    """Return a function that writes texts of a law, and three drafts a round."""
    texts, probs = list(law), np.array(list(law.values()))

    def decode(prompt_ids, policy, num):
        del prompt_ids
        rng = np.random.default_rng(policy["seed"])
        chosen = rng.choice(len(texts), num, p=probs / probs.sum())
        return {"samples": [texts[i] for i in chosen], "rounds": [(3, 1, 2)] * num}

    return decode


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("target drawn again on reject", 1),
        ("rejected token stays in the history", 1),
        ("bonus missing", 0),  # of the length alone: the law is right
    ],
)
def test_a_fault_is_found_named_and_told(name, code, tmp_path):
    # Each kind of fault once, as a decoder: the whole way of `draftproof audit python`, a
    # certificate in a file, and the way of `draftproof audit show`.
    law = fault_named(name).joint_law(TABLES, FIXTURE_KAPPA, FIXTURE_HORIZON)
    (drawn,) = draw_all(lambda: CallableSubject(decoder(law)), [(0,)], POLICY, DRAWS, first_seed=17)
    evidence = Evidence("decoder", PLAN, (prompt_evidence("tables", LAW, drawn, MODEL),))
    kind = kind_of(evidence)
    verdict = kind.judge(evidence)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(kind.stored(evidence, verdict)))
    again = check(path)
    assert not again.differences
    assert again.facts == kind.facts(evidence, verdict)
    assert again.verdict.exit_code == code, again.verdict.reason
    assert again.facts[0][1].startswith("biased" if code else "exact")
    if code:
        named = again.verdict.diagnosis
        assert name in (named.name, *named.same_law)
        assert any(label == "diagnosis" and named.name in text for label, text in again.facts)
