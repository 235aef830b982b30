"""Drafters that read the target's hidden states are told them, and so can be audited."""

from __future__ import annotations

import numpy as np
import pytest
from head_kit import VOCAB, HiddenTable, numpy_head

from draftproof.audit.evidence_file import Plan
from draftproof.audit.state import judge_state
from draftproof.audit.state_run import check_drafter, first_draft_rounds, state_evidence
from draftproof.audit.stream_run import watch_stream
from draftproof.backends.table import MarkovTable
from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.proposers import DraftHeadProposer

PROMPT = (0, 1, 2, 1, 3)
TEXT = (2, 5, 1, 1, 4, 6, 0, 3, 3, 2, 5, 1, 4, 0, 6, 2, 2, 1, 5, 3, 0, 4, 1, 2)


def target():
    return HiddenTable(MarkovTable(VOCAB, None, seed=3))


class Blurred(DraftHeadProposer):
    """Takes states that come one by one for less than they are, as a leak of scale would."""

    def observe(self, request_id, start, hidden):
        super().observe(request_id, start, hidden * (0.5 if len(hidden) == 1 else 1.0))


def test_a_head_is_told_what_it_reads_and_loses_nothing_in_silence():
    found = check_drafter(
        DraftHeadProposer(numpy_head()), PROMPT, TEXT, VOCAB, None, target()
    )  # fmt: skip
    assert [each.silent for each in found] == [1, 4, 16]
    assert max(each.distance for each in found) < 1e-5


def test_a_head_that_reads_committed_states_wrongly_is_found():
    found = check_drafter(Blurred(numpy_head()), PROMPT, TEXT, VOCAB, None, target())
    assert min(each.distance for each in found) > 0.02


@pytest.mark.statistical
def test_kept_drafts_of_a_head_are_held_against_its_promise():
    evidence = state_evidence(
        EngineCore(target(), proposers=[DraftHeadProposer(numpy_head())], kappa=2),
        "table", [("a", PROMPT)], num_tokens=400, first_seed=5,
    )  # fmt: skip
    # Called wrong with probability 0.001 at most; this seed is none of those.
    verdict = judge_state(evidence)
    assert not verdict.findings, verdict.findings
    assert not evidence.unasked
    rounds = np.array(evidence.rounds[0], dtype=float)
    assert len(rounds) > 100
    assert abs(rounds[:, 0].mean() - rounds[:, 1].mean()) < 0.15


def test_a_text_without_states_promises_nothing_of_a_head():
    # What was wrong: a drafter that was told nothing has no law at any place.
    assert check_drafter(DraftHeadProposer(numpy_head()), PROMPT, TEXT, VOCAB) == []
    core = EngineCore(target(), proposers=[DraftHeadProposer(numpy_head())], kappa=2)
    name = core.submit(GenerateRequest(PROMPT, SamplingParams(), max_tokens=40, seed=1))
    assert len(first_draft_rounds(core, core.run()[name], SamplingParams())) > 5


def test_bets_of_a_stream_know_the_law_of_a_head():
    evidence = watch_stream(
        EngineCore(target(), proposers=[DraftHeadProposer(numpy_head())], kappa=2),
        "table", [("a", PROMPT)], SamplingParams(), Plan(tv=0.2),
        budget=120, text_tokens=60, first_seed=11,
    )  # fmt: skip
    # The first place of a text follows the prompt alone, and the last has no more to bet on.
    assert evidence.num_with_law >= 110
