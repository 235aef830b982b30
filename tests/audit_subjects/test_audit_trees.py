"""Drafts that branch are audited where they branch, up to the end of the short texts."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.audit.subjects import EngineSubject, Policy
from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.core.params import SamplingParams
from draftproof.core.types import TreeDraft
from draftproof.engine import EngineCore
from draftproof.evidence import count_draws, enumerate_law, fixed_budget_test
from draftproof.evidence.calibration import Calibrations

PROMPT = (0, 1, 0)
POLICY = Policy(SamplingParams(), 3)


class Fans:
    """Drafts the likeliest tokens side by side, as many as it may."""

    name = "fans"

    def __init__(self):
        self.sizes = []

    def propose(self, requests):
        self.sizes += [request.kappa for request in requests]
        return [
            TreeDraft(tuple(range(request.kappa)), (-1,) * request.kappa, proposer="fans")
            for request in requests
        ]


def backend():
    return TableBackend(
        FunctionTable(5, lambda held: np.roll([0.4, 0.3, 0.2, 0.1, 0.0], held[-1]), span=1)
    )


@pytest.mark.statistical
@pytest.mark.parametrize(("num_tail", "sizes"), [(0, {1}), (4, {4})])
def test_trees_have_all_their_nodes_with_a_tail(num_tail, sizes):
    drafter = Fans()
    core = EngineCore(backend(), proposers=[drafter], kappa=4)
    draws = EngineSubject(core, num_tail=num_tail).draw(PROMPT, POLICY, 1500, first_seed=3)
    assert sizes <= set(drafter.sizes)
    assert (max(drafter.sizes) == 4) == bool(num_tail)
    assert draws.tokens.shape == (1500, POLICY.horizon)
    assert draws.totals is not None
    assert draws.totals.draws == 1500
    # Called wrong with probability 0.001; this seed is none of those. TV 0.1 would be seen.
    law = enumerate_law(backend(), PROMPT, POLICY.params, POLICY.horizon)
    assert (
        fixed_budget_test(law, count_draws(law, draws.tokens), Calibrations(4000, 0)).p_value
        > 0.001
    )


def test_rounds_past_the_text_are_not_counted():
    core = EngineCore(backend(), proposers=[Fans()], kappa=4)
    draws = EngineSubject(core, num_tail=40).draw(PROMPT, POLICY, 20, first_seed=3)
    # The first round of a text drafts nothing; each of the others emits 1 or 2 tokens.
    assert 20 * 2 <= sum(draws.rounds.values()) <= 20 * POLICY.horizon
