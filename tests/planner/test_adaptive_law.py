"""The law of the text under adaptive draft lengths, by enumeration of every coin.

The controller decides from finished rounds: the law is the target's, exactly. A policy
that looks at the drafts of the round it decides about is the planted fault.
"""

from __future__ import annotations

import pytest
from enumeration import (
    random_model,
    sampled_draft,
    shipped_round,
    target_law_of,
    total_variation,
)

from draftproof.core.kappa_policy import RowState
from draftproof.core.types import Draft, StepRecord
from draftproof.planner.controller import ControllerConfig, GoodputController
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import ParallelDraft, RoundCost
from draftproof.planner.tracker import TrackerConfig
from draftproof.testing.branching import BranchingCoins, exact_law

pytestmark = pytest.mark.exact

HORIZON = 4
TABLES = [random_model("random", 2, seed) for seed in range(3)]
#: One round of evidence changes the choice, so that lengths depend on what survived.
EAGER = ControllerConfig(
    max_kappa=2,
    min_gain=0.0,
    decide_every=1,
    probe_after=1,
    tracker=TrackerConfig(prior_rate=0.7, prior_strength=0.5, shrinkage_rounds=0.5),
)
COST = RoundCost(AffineCost(1.0, 0.5), ParallelDraft(0.05))


def adaptive_law(model, rule, propose, lengths):
    def run(brancher):
        coins = BranchingCoins(brancher)
        controller = GoodputController(COST, config=EAGER)
        text, chosen = (), ()
        while len(text) < HORIZON:
            choice = controller.choose([RowState("r", len(text), 2, ("draft",))])[0]
            chosen += (choice.kappa,)
            played = shipped_round(rule, propose, model, text, choice.kappa, coins.round(len(text)))
            controller.observe(
                StepRecord("r", len(text), (0,) * choice.kappa, played.num_accepted, ())
            )
            text += played.emitted
        lengths.add(chosen)
        return text[:HORIZON]

    return exact_law(run)


@pytest.mark.parametrize("rule", ["standard", "block"])
@pytest.mark.parametrize("model", TABLES, ids=range(len(TABLES)))
def test_lengths_that_follow_finished_rounds_keep_the_law(model, rule):
    lengths = set()
    law = adaptive_law(model, rule, sampled_draft, lengths)
    assert total_variation(law, target_law_of(model, HORIZON)) == 0.0
    # The lengths did differ with what survived before.
    assert len({chosen[1] for chosen in lengths if len(chosen) > 1}) > 1


def test_lengths_that_look_at_the_drafts_bias_it():
    def peeking(model, context, kappa, coins):
        """Give up the draft when its first token is an unlikely one."""
        draft = sampled_draft(model, context, kappa, coins)
        unlikely = draft.token_ids and model.draft(context).prob(draft.token_ids[0]) < 0.5
        return Draft() if unlikely else draft

    biased = [
        total_variation(
            adaptive_law(model, "standard", peeking, set()), target_law_of(model, HORIZON)
        )
        for model in TABLES
    ]
    assert max(biased) > 0.05
