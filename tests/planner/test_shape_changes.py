"""Passes that take longer behind one of another shape: what the controller makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from draftproof.core.kappa_policy import RowState
from draftproof.core.types import StepRecord
from draftproof.errors import ConfigError
from draftproof.planner.controller import ControllerConfig, GoodputController
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import ParallelDraft, RoundCost
from draftproof.planner.slots import SlotPricer
from draftproof.planner.told import PricedAs

#: A pass of n tokens costs 0.8 + 0.2 n plain steps, half a step more behind another shape.
FREE = RoundCost(AffineCost(0.8, 0.2), ParallelDraft(0.01))
COST = replace(FREE, change_s=0.5)


def decode(cost, length, signs, kept=0):
    """Decode a text that keeps so many drafts; return drafts of each round."""
    controller = GoodputController(cost, config=ControllerConfig(max_kappa=12))
    rounds, done = [], 0
    while done < length:
        left = length - done
        row = RowState("0", 100, min(12, left - 1), ("d",), signs, left)
        (choice,) = controller.choose([row])
        accepted = min(kept, choice.kappa)
        controller.observe(StepRecord("0", 0, (0,) * choice.kappa, accepted, (0,) * (accepted + 1)))
        rounds.append(choice.kappa)
        done += accepted + 1
    return rounds


@pytest.mark.parametrize("signs", [(), (-1,)])
def test_a_mere_hope_is_tried_where_a_hundredth_of_the_text_covers_the_change_too(signs):
    # Draft and change lose 0.71 steps, a draft alone 0.21.
    assert not any(decode(COST, 24, signs))
    assert any(decode(FREE, 24, signs)), "the planted fault: changes that are not priced"
    assert any(decode(COST, 200, signs))


@pytest.mark.parametrize("sign", [1, 2, 3])
@pytest.mark.parametrize("kept", [0, 2, 12])
def test_what_was_told_is_drafted_as_if_changes_cost_nothing(sign, kept):
    assert decode(COST, 60, (sign,), kept) == decode(FREE, 60, (sign,), kept)


def test_hopes_that_come_true_are_followed():
    assert decode(COST, 100, (), 12)[-2] >= 3


def test_one_row_that_was_told_is_enough():
    told = RowState("0", 9, 5, ("a", "b"), (3, -1))
    untold, silent = replace(told, signs=()), replace(told, signs=(0, 0))
    priced = PricedAs({})
    assert priced.is_told([untold, told], ["a", "a"])
    assert not priced.is_told([untold, told], ["a", "b"])
    assert not priced.is_told([untold, silent], ["a", ""])


def test_a_change_that_saves_time_is_refused():
    with pytest.raises(ConfigError, match="change_s is -1"):
        replace(COST, change_s=-1.0)


def test_rows_with_different_drafts_pay_for_the_change_and_a_single_row_does_not():
    def drafts(cost, survival):
        beliefs = {"d": (np.repeat(np.array(survival)[:, None], 2, 1), np.ones(len(survival)))}
        names, limits = ["d"] * len(survival), [1] * len(survival)
        return SlotPricer(cost, {}, 2).admit(names, limits, beliefs, 0.0).kappas

    one_of_four = [0.8, 0.0, 0.0, 0.0]
    assert drafts(FREE, one_of_four) == [1, 0, 0, 0], "the planted fault: it is not priced"
    assert drafts(COST, one_of_four) == [0, 0, 0, 0]
    assert drafts(COST, [0.95] * 4) == [1, 1, 1, 1]
    assert drafts(COST, [0.8]) == drafts(FREE, [0.8]) == [1]
