"""What a drafter tells beforehand, what drafting may lose, and the single row's short cut."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.core.types import StepRecord
from draftproof.errors import ConfigError
from draftproof.planner.account import Account
from draftproof.planner.controller import ControllerConfig, GoodputController
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import AutoregressiveDraft, ParallelDraft, RoundCost
from draftproof.planner.slots import BAD_LUCK, SlotPricer, Spare
from draftproof.planner.tracker import AcceptanceTracker, TrackerConfig

#: A pass of n tokens costs 0.8 + 0.2 n plain steps.
COST = RoundCost(AffineCost(0.8, 0.2), ParallelDraft(0.01))


def row(name="0", sign=(3,), most=15, proposers=("ngram",)):
    return RowState(name, 100, most, proposers, sign)


def play(controller, states, kept):
    """Run one round; ``kept`` is how many drafts of each row survive."""
    choices = controller.choose(states)
    for state, choice in zip(states, choices, strict=True):
        accepted = min(kept, choice.kappa)
        controller.observe(StepRecord(state.request_id, 0, (0,) * choice.kappa, accepted, (0,)))
    return [choice.kappa for choice in choices]


def controller_of(**limits):
    return GoodputController(COST, config=ControllerConfig(max_kappa=15, **limits))


# Signs ------------------------------------------------------------------------------------------


def test_a_firm_sign_drafts_far_at_once_and_a_faint_one_does_not():
    firm, faint = (controller_of().choose([row(sign=(sign,))])[0].kappa for sign in (3, 1))
    assert firm >= 6
    assert faint <= 2


def test_where_nothing_would_come_nothing_is_asked_for():
    controller = controller_of()
    for _ in range(200):  # no try after a pause either
        assert controller.choose([row(sign=(0,))]) == [RowChoice(0)]
    mixed = controller.choose([row("a", (0,)), row("b", (3,)), row("c", (0,))])
    assert [choice.kappa > 0 for choice in mixed] == [False, True, False]


def test_what_one_sign_taught_is_not_believed_of_another():
    controller = controller_of(stake=6.0)
    for _ in range(12):
        play(controller, [row(sign=(1,))], 0)
    low, high = (controller.survival("0", "ngram", sign)[0] for sign in (1, 3))
    assert low < 0.25
    assert high == pytest.approx(TrackerConfig().prior(3)[0])
    assert controller.choose([row(sign=(1,))])[0].kappa == 0
    assert controller.choose([row(sign=(3,))])[0].kappa > 0


def test_a_decision_for_one_sign_holds_beside_that_for_another(monkeypatch):
    controller = controller_of(decide_every=8)
    for turn in range(60):
        play(controller, [row(sign=(3 if turn % 2 else 2,))], 15)
    decided = []
    inner = controller._decide
    monkeypatch.setattr(controller, "_decide", lambda rows: decided.append(1) or inner(rows))
    for turn in range(64):
        play(controller, [row(sign=(3 if turn % 2 else 2,))], 15)
    # At most one for each sign in eight rounds, not one in every round.
    assert len(decided) <= 18


def test_where_nothing_paid_nothing_is_decided_again_until_something_is_learnt(monkeypatch):
    dear = RoundCost(AffineCost(0.0, 1.0), ParallelDraft(0.01))
    controller = GoodputController(dear, config=ControllerConfig(max_kappa=15, decide_every=1))
    decided = []
    inner = controller._decide
    monkeypatch.setattr(controller, "_decide", lambda rows: decided.append(1) or inner(rows))
    for turn in range(200):  # signs change in every round, so that no decision holds
        signs = [(turn % 2 + 1,), (turn // 2 % 2 + 1,)]
        states = [row(str(place), sign) for place, sign in enumerate(signs)]
        assert play(controller, states, 0) == [0, 0]
    # One for each of the four kinds of rounds, the tries that are due, and some as more is allowed.
    assert len(decided) <= 60
    before = len(decided)
    controller._round.asked["0"] = (RowChoice(1, "ngram"), 1)
    controller.observe(StepRecord("0", 200, (1,), 1, (1, 2), proposer="ngram"))
    controller.choose([row("0", (2,)), row("1", (1,))])
    assert len(decided) == before + 1


def test_of_two_drafters_the_one_that_would_answer_is_asked():
    states = [row("a", (0, 3), proposers=("x", "y")), row("b", (3, 0), proposers=("x", "y"))]
    assert [choice.proposer for choice in controller_of().choose(states)] == ["y", "x"]


def test_signs_of_a_drafter_that_does_not_tell_are_as_none():
    told, untold = controller_of(), controller_of()
    for turn in range(30):
        assert play(told, [row(sign=(-1,))], turn % 3) == play(untold, [row(sign=())], turn % 3)


# The account ------------------------------------------------------------------------------------


def test_the_account_adds_gains_and_keeps_no_more_than_its_most():
    account = Account(2.0, 0.5, 0.01, 3.0)
    account.expect(inf)
    account.settle(-1.5)
    assert account.held == account.doubt == pytest.approx(0.51)
    account.settle(100.0)
    assert account.held == account.doubt == 3.0
    account.reset()
    assert (account.held, account.doubt) == (2.0, 0.0)
    account.expect(inf)
    assert account.doubt == 2.0


def test_a_short_text_stakes_a_share_of_its_rounds_in_doubt():
    account = Account(2.0, 0.01, 0.0, 3.0)
    account.expect(50)
    assert account.doubt == pytest.approx(0.5)
    account.settle(0.0)
    account.expect(49)  # the same rounds, one later
    assert account.doubt == pytest.approx(0.5)
    account.expect(149)
    assert account.doubt == pytest.approx(1.5)
    account.expect(10_000)  # no more than the whole stake
    assert account.doubt == account.held == pytest.approx(2.0)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_short_text_stakes_more_where_much_speaks_for_its_drafts(batch):
    def first(rate, strength):
        told = TrackerConfig(sign_priors=((rate, strength),))
        controller = controller_of(tracker=told)
        states = [replace(row(str(i), (1,)), remaining=40) for i in range(batch)]
        return sum(choice.kappa for choice in controller.choose(states)) / batch

    # Nearly sure, and as good on average with most rows either easy or hard.
    assert first(0.97, 200.0) >= 7 * bool(batch == 1) + 2
    assert first(0.7, 0.3) <= 2


@pytest.mark.parametrize("length", [20, 60, 200])
def test_drafts_that_all_fail_lose_a_fiftieth_of_a_short_text(length):
    # Good on average, and of this drafter nobody knows on which texts.
    told = TrackerConfig(prior_rate=0.7, prior_strength=0.3, sign_priors=((0.7, 0.3),))
    controller = controller_of(tracker=told)
    spent, drafted = 0.0, 0
    for left in range(length, 0, -1):
        state = replace(row(most=min(left - 1, 15)), remaining=left)
        kappa = play(controller, [state], 0)[0]
        tokens = np.asarray([1.0 + kappa])
        spent += float(COST.pass_seconds(1, tokens, 128)[0]) + 0.01 * bool(kappa)
        drafted += kappa
    assert drafted or length == 20
    # The stake and the allowance are a hundredth each.
    assert spent <= COST.plain_s(1, 128) * length * 1.02 + 1e-9


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("signs", [(), (3,)])
def test_drafts_that_all_fail_lose_no_more_than_stake_and_allowance(batch, signs):
    # Whatever is believed: the prior says that nearly everything is accepted.
    sure = TrackerConfig(prior_rate=0.98, prior_strength=40.0, sign_priors=((0.98, 40.0),))
    controller = controller_of(tracker=sure)
    states = [row(str(i), signs) for i in range(batch)]
    plain, rounds, spent = COST.plain_s(batch, 128), 300, 0.0
    for _ in range(rounds):
        kappas = play(controller, states, 0)
        tokens = np.asarray([float(batch + sum(kappas))])
        spent += float(COST.pass_seconds(batch, tokens, 128)[0]) + 0.01 * any(kappas)
    limits = ControllerConfig()
    assert plain * rounds < spent, "nothing was ever drafted"
    assert spent <= plain * (rounds + limits.stake + limits.allowance * rounds) + 1e-9


def test_without_a_bound_the_same_drafts_lose_far_more():
    # The planted fault of the test above: an account that covers everything.
    sure = TrackerConfig(prior_rate=0.98, prior_strength=40.0, shrinkage_rounds=400.0)
    controller = controller_of(tracker=sure, stake=1e9, most_held=1e9)
    lost = sum(sum(play(controller, [row(sign=())], 0)) * 0.2 for _ in range(40))
    assert lost > 10 * (2.5 + 0.4)


def test_gains_may_be_staked():
    controller = controller_of(stake=0.5)
    first = play(controller, [row()], 15)[0]
    assert first <= 2
    for _ in range(6):
        last = play(controller, [row()], 15)[0]
    assert last == 15


def test_contradictory_bounds_are_refused():
    for broken in (
        {"stake": -1.0},
        {"stake": 9.0, "most_held": 8.0},
        {"allowance": -0.1},
        {"stake_share": -0.1},
    ):
        with pytest.raises(ConfigError, match="stake"):
            ControllerConfig(**broken)
    with pytest.raises(ConfigError, match="prior_rate"):
        TrackerConfig(sign_priors=((1.0, 2.0),))


# Look-ups ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draft", [ParallelDraft(0.2, 0.05), AutoregressiveDraft(AffineCost(0.1, 0.02))]
)
@pytest.mark.parametrize("spare", [0.7, 2.5, float("inf")])
def test_a_single_row_is_priced_from_the_definition(draft, spare):
    cost = RoundCost(AffineCost(1.0, 0.1), draft, speculative_s=0.05)
    pricer = SlotPricer(cost, {}, 12)
    rng = np.random.default_rng(3)
    for _ in range(20):
        survival = np.sort(rng.uniform(0.2, 1.0, 12))[::-1].copy()
        limit, given = int(rng.integers(1, 13)), float(rng.choice([1.0, 0.4]))
        beliefs = {"d": (survival[None, :], np.asarray([given]))}
        doubt = float(rng.choice([0.1, 0.3, np.inf]))
        found = pricer.admit(["d"], [limit], beliefs, 100.0, Spare(spare, doubt))
        gains = {0: 1.0}
        for kappa in range(1, limit + 1):
            whole, plain = cost.round_s(1, kappa, 128.0), cost.plain_s(1, 128.0)
            if whole > plain * (1.0 + spare):
                break
            if whole / plain - 1.0 - (given * survival[:kappa] >= 1.0 - BAD_LUCK).sum() > doubt:
                continue
            drafting = whole - float(cost.pass_seconds(1, np.asarray([kappa + 1.0]), 128.0)[0])
            seconds = given * whole + (1 - given) * (plain + drafting)
            gains[kappa] = (1.0 + given * survival[:kappa].sum()) * plain / seconds
        best = max(gains, key=lambda kappa: gains[kappa])
        assert found.kappas == [best]
        assert found.gain == pytest.approx(gains[best])


@pytest.mark.parametrize("doubt", [0.1, 0.4, np.inf])
def test_what_a_batch_risks_follows_from_the_definition(doubt):
    cost = RoundCost(AffineCost(1.0, 0.2), AutoregressiveDraft(AffineCost(0.01, 0.0)))
    pricer = SlotPricer(cost, {}, 6)
    rng = np.random.default_rng(4)
    drafted = 0
    for _ in range(30):
        survival = np.sort(rng.uniform(0.5, 1.0, (3, 6)))[:, ::-1].copy()
        beliefs = {"d": (survival, np.ones(3))}
        found = pricer.admit(["d"] * 3, [6] * 3, beliefs, 0.0, Spare(2.0, doubt))
        kappas = np.asarray(found.kappas)
        tokens = np.asarray([3.0 + kappas.sum()])
        whole = float(cost.pass_seconds(3, tokens, 0.0)[0]) + 0.01 * kappas.max()
        loss = whole / cost.plain_s(3, 0.0) - 1.0
        kept = sum(
            (row[:kappa] >= 1.0 - BAD_LUCK).sum()
            for row, kappa in zip(survival, kappas, strict=True)
        )
        assert found.loss == pytest.approx(loss)
        assert found.risk == pytest.approx(loss - kept / 3)
        assert found.loss <= 2.0
        assert found.risk <= doubt
        free = pricer.admit(["d"] * 3, [6] * 3, beliefs, 0.0, Spare(2.0))
        assert free.gain >= found.gain
        drafted += int(kappas.sum())
    assert drafted


def test_counts_do_not_depend_on_when_they_are_read():
    # Rounds are counted all at once when somebody asks; weights are cut on the way.
    eager, lazy = AcceptanceTracker(6), AcceptanceTracker(6)
    short = TrackerConfig(request_memory=0.5, pool_memory=0.6)
    for tracker in (eager, lazy):
        tracker.config = short
    rng = np.random.default_rng(5)
    for _ in range(900):  # beyond what a weight may grow to
        for name in ("a", "b"):
            drafted = int(rng.integers(0, 7))
            accepted = int(rng.integers(0, drafted + 1))
            for tracker in (eager, lazy):
                tracker.note(name, "d", drafted, accepted)
        eager.beliefs(["a"], "d")
    for found, expected in zip(
        eager.beliefs(["a", "b"], "d"), lazy.beliefs(["a", "b"], "d"), strict=True
    ):
        assert found == pytest.approx(expected, rel=1e-12)


def test_a_try_that_is_kept_is_soon_followed_by_another():
    gaps = {}
    for kept in (0, 15):
        controller = controller_of()
        for _ in range(40):
            play(controller, [row(sign=())], 0)
        tries = [turn for turn in range(300) if any(play(controller, [row(sign=())], kept))]
        gaps[kept] = tries[1] - tries[0]
    # Four rounds, or until the decision that holds is over; in vain they double from 16.
    assert gaps[15] <= 8
    assert gaps[0] >= 32
