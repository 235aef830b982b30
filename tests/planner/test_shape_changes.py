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
from draftproof.planner.rounds import AutoregressiveDraft, ParallelDraft, RoundCost
from draftproof.planner.slots import BAD_LUCK, CHANGE_SHARE, SlotPricer, Spare
from draftproof.planner.tracker import TrackerConfig

#: A pass of n tokens costs 0.8 + 0.2 n plain steps, half a step more behind another shape.
FREE = RoundCost(AffineCost(0.8, 0.2), ParallelDraft(0.01))
COST = replace(FREE, change_s=0.5)


def decode(controller, kept, length, sign=(), change=0.5):
    """Decode a text of which so many drafts are kept, by position; return seconds and drafts."""
    seconds, rounds, done, before = 0.0, [], 0, 0
    while done < length:
        left = length - done
        (choice,) = controller.choose([RowState("0", 100, min(12, left - 1), ("d",), sign, left)])
        accepted = min(kept(done), choice.kappa)
        controller.observe(StepRecord("0", 0, (0,) * choice.kappa, accepted, (0,) * (accepted + 1)))
        seconds += 0.8 + 0.2 * (1 + choice.kappa) + 0.01 * bool(choice.kappa)
        seconds += change * (choice.kappa != before)
        before = choice.kappa
        rounds.append(choice.kappa)
        done += accepted + 1
    return seconds, rounds


def controller_of(cost=COST, **limits):
    return GoodputController(cost, config=ControllerConfig(max_kappa=12, **limits))


def test_drafts_that_hardly_pay_are_not_worth_a_change_of_shape():
    row = RowState("0", 100, 12, ("d",), (1,))
    chosen = [controller_of(cost).choose([row])[0].kappa for cost in (FREE, COST)]
    assert chosen[0] > chosen[1] == 0


def test_behind_drafts_the_change_is_paid_already():
    controller = controller_of(stake=9.0, stake_share=1.0)
    faint = RowState("0", 100, 12, ("d",), (1,))
    firm = replace(faint, signs=(3,))
    assert controller.choose([faint])[0].kappa == 0
    (choice,) = controller.choose([firm])
    assert choice.kappa > 0
    controller.observe(StepRecord("0", 0, (0,) * choice.kappa, choice.kappa, (0,)))
    assert controller.choose([faint])[0].kappa > 0


def test_a_decision_behind_drafts_does_not_hold_behind_a_plain_pass():
    controller = controller_of(decide_every=100, stake=9.0, stake_share=1.0)
    faint = RowState("0", 100, 12, ("d",), (1,))
    (choice,) = controller.choose([replace(faint, signs=(3,))])
    controller.observe(StepRecord("0", 0, (0,) * choice.kappa, choice.kappa, (0,)))
    assert controller.choose([faint])[0].kappa > 0
    controller.observe(StepRecord("0", 1, (), 0, (0,)))  # the drafter was silent: a plain pass
    assert controller.choose([faint])[0].kappa == 0


def test_a_copied_text_is_drafted_all_the_same():
    seconds, rounds = decode(controller_of(), lambda done: 99, 60, (3,))
    assert seconds < 0.45 * 60
    assert rounds[0] > 3


@pytest.mark.parametrize("sign", [(), (2,), (3,)])
def test_drafts_that_all_fail_lose_no_more_than_the_account_has_and_two_changes(sign):
    def lost(cost, length=300):
        change = 2.0 * CHANGE_SHARE
        seconds, rounds = decode(controller_of(cost), lambda done: 0, length, sign, change)
        assert any(rounds)
        return seconds - length

    # The stake and a hundredth of a step with each round; one excursion may overdraw it.
    most = 2.5 + 0.01 * 300 + 2 * 2.0 * CHANGE_SHARE
    assert lost(replace(FREE, change_s=2.0)) <= most
    # The planted fault: changes that are not priced.
    assert lost(FREE) > most


def test_where_changes_cost_nothing_nothing_is_decided_otherwise():
    free, without = (controller_of(cost) for cost in (replace(FREE, change_s=0.0), FREE))
    rng = np.random.default_rng(0)
    luck = rng.integers(0, 5, 200).tolist()
    found = [decode(each, lambda done: luck[done], 120, change=0.0) for each in (free, without)]
    assert found[0] == found[1]


@pytest.mark.parametrize("last", [0, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_rows_are_priced_from_the_definition(batch, last):
    cost = RoundCost(AffineCost(1.0, 0.1), AutoregressiveDraft(AffineCost(0.02, 0.0)), change_s=0.4)
    pricer = SlotPricer(cost, {}, 5)
    pricer.last = last
    rng = np.random.default_rng(4)
    change = 0.4 * CHANGE_SHARE if not last else 0.0
    for _ in range(20):
        survival = np.sort(rng.uniform(0.2, 1.0, (batch, 5)))[:, ::-1].copy()
        beliefs = {"d": (survival, np.ones(batch))}
        spare = Spare(float(rng.choice([0.5, 2.0])), float(rng.choice([0.1, 2.0])))
        found = pricer.admit(["d"] * batch, [5] * batch, beliefs, 0.0, spare)
        kappas = np.asarray(found.kappas)
        if not kappas.any():
            continue
        whole = float(cost.pass_seconds(batch, np.asarray([batch + kappas.sum()]), 0.0)[0])
        whole += 0.02 * kappas.max() + change
        plain = cost.plain_s(batch, 0.0)
        kept = sum(row[:k].sum() for row, k in zip(survival, kappas, strict=True))
        sure = sum((row[:k] >= 1 - BAD_LUCK).sum() for row, k in zip(survival, kappas, strict=True))
        assert found.gain == pytest.approx((batch + kept) / batch * plain / whole)
        assert found.loss == pytest.approx(whole / plain - 1.0)
        shared = change if sure else 0.0
        assert found.risk == pytest.approx((whole - shared) / plain - 1.0 - sure / batch)
        assert found.loss <= spare.worst
        assert found.risk <= spare.doubt
    ones = (np.full((batch, 5), 0.99), np.ones(batch))
    assert any(pricer.admit(["d"] * batch, [5] * batch, {"d": ones}, 0.0).kappas)
    loss, _drafting = pricer.loss_of_one(["d"] * batch, [1] * batch, 0.0)
    pricer.last = 1
    again, _drafting = pricer.loss_of_one(["d"] * batch, [1] * batch, 0.0)
    assert loss - again == pytest.approx(change / cost.plain_s(batch, 0.0))


def test_a_change_that_saves_time_is_refused():
    with pytest.raises(ConfigError, match="change_s is -1"):
        replace(COST, change_s=-1.0)


def test_a_short_text_pays_for_a_change_where_a_draft_is_likely_kept_and_not_for_a_hope():
    hopeful = TrackerConfig(prior_rate=0.7, prior_strength=50.0)
    short = {"kv_tokens": 100, "max_kappa": 12, "proposers": ("d",), "remaining": 24}
    hope, firm = (RowState("0", signs=signs, **short) for signs in ((), (3,)))
    chosen = [
        [controller_of(cost, tracker=hopeful).choose([row])[0].kappa for row in (hope, firm)]
        for cost in (FREE, COST)
    ]
    assert min(chosen[0]) > 0
    assert chosen[1][0] == 0, "a hundredth of the text does not cover draft and change"
    assert chosen[1][1] > 1
