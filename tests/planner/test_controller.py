"""The run-time controller: what it chooses, what it learns, what it must not look at."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.core.types import StepRecord
from draftproof.errors import ConfigError, InvariantError
from draftproof.planner.controller import ControllerConfig, GoodputController
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import (
    AutoregressiveDraft,
    ParallelDraft,
    RoundCost,
    published_round_cost,
)
from draftproof.planner.simulate import (
    SchedulePolicy,
    StaticPolicy,
    poisson_requests,
    simulate,
)
from draftproof.planner.tracker import AcceptanceTracker, TrackerConfig

EAGLE = published_round_cost("llama-3.1-8b-h100-eagle")
#: Verification costs as much per token as decoding: drafts never pay.
COMPUTE_BOUND = RoundCost(AffineCost(0.0, 1.0), ParallelDraft(0.1))


def rows(count, max_kappa=8, proposers=("draft",), kv_tokens=1000):
    return [RowState(str(i), kv_tokens, max_kappa, proposers) for i in range(count)]


def record(name, choice, accepted, drafted=None):
    length = choice.kappa if drafted is None else drafted
    return StepRecord(
        str(name),
        0,
        (1,) * length,
        min(accepted, length),
        (1,) * (min(accepted, length) + 1),
        proposer=choice.proposer if length else "none",
    )


def run(controller, alphas, num_rounds, seed=0, proposers=("draft",)):
    """Run rounds with each row's own acceptance; return the choices of every round."""
    rng = np.random.default_rng(seed)
    history = []
    for _ in range(num_rounds):
        choices = controller.choose(rows(len(alphas), proposers=proposers))
        history.append(choices)
        for name, choice in enumerate(choices):
            alpha = alphas[name]
            if isinstance(alpha, dict):
                alpha = alpha.get(choice.proposer, 0.0)
            kept = int((rng.random(choice.kappa) < alpha).cumprod().sum())
            controller.observe(record(name, choice, kept))
    return history


def goodput(cost, survival, kappas, context=1000.0):
    """Expected tokens per second, straight from the definition."""
    batch = len(kappas)
    tokens = sum(1 + sum(survival[r][:k]) for r, k in enumerate(kappas))
    seconds = float(cost.pass_seconds(batch, np.asarray([float(batch + sum(kappas))]), context)[0])
    for depth in range(1, max(kappas, default=0) + 1):
        count = np.asarray([float(sum(k >= depth for k in kappas))])
        seconds += float(cost.draft.depth_seconds(depth, count, context)[0])
    return tokens / seconds


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "draft",
    [
        ParallelDraft(0.3),
        ParallelDraft(0.3, 0.02),
        AutoregressiveDraft(AffineCost(0.08, 0.01)),
    ],
)
def test_no_set_of_drafts_is_better(draft, seed):
    # Every assignment of 0..3 drafts to 4 rows, priced from the definition.
    cost = RoundCost(AffineCost(1.0, 0.06), draft, speculative_s=0.05)
    config = ControllerConfig(max_kappa=3, min_gain=0.0, decide_every=1)
    controller = GoodputController(cost, config=config)
    rng = np.random.default_rng(seed)
    run(controller, rng.uniform(0.1, 0.95, 4), 30, seed)
    survival = [controller.survival(str(r), "draft") for r in range(4)]
    chosen = [choice.kappa for choice in controller.choose(rows(4, kv_tokens=1024))]
    best = max(
        goodput(cost, survival, kappas, 1024.0) for kappas in itertools.product(range(4), repeat=4)
    )
    found = goodput(cost, survival, chosen, 1024.0)
    if draft == ParallelDraft(0.3):
        # All slots of a drafting batch cost the same: sorting them is optimal.
        assert found == pytest.approx(best, rel=1e-9)
    assert found >= 0.99 * best


def test_easy_requests_get_longer_drafts():
    controller = GoodputController(EAGLE)
    last = run(controller, [0.95] * 16 + [0.2] * 16, 60)[-1]
    easy, hard = (np.mean([c.kappa for c in last[part]]) for part in (slice(16), slice(16, 32)))
    assert easy > hard + 2


def test_plain_decoding_is_an_arm():
    controller = GoodputController(COMPUTE_BOUND)
    history = run(controller, [1.0] * 8, 200)
    assert all(choice == RowChoice(0) for choices in history for choice in choices)
    # A drafter that is never right is left alone after a while.
    controller = GoodputController(EAGLE)
    history = run(controller, [0.0] * 8, 400)
    drafted = [any(choice.kappa for choice in choices) for choices in history]
    assert drafted[0]
    assert sum(drafted[100:]) <= 6


def test_it_comes_back_when_drafts_get_better():
    controller = GoodputController(EAGLE)
    run(controller, [0.0] * 8, 60)
    assert not any(choice.kappa for choice in run(controller, [0.0] * 8, 1)[0])
    history = run(controller, [0.95] * 8, 400)
    assert all(choice.kappa >= 3 for choice in history[-1])


def test_fewer_drafts_in_a_larger_batch():
    small, large = (
        np.mean([c.kappa for c in run(GoodputController(EAGLE), [0.7] * size, 40)[-1]])
        for size in (2, 128)
    )
    assert small > large > 0


def test_limits_are_kept():
    controller = GoodputController(EAGLE, config=ControllerConfig(max_kappa=5))
    states = [RowState("a", 10, 0, ("draft",)), RowState("b", 10, 2, ("draft",)),
              RowState("c", 10, 50, ("draft",)), RowState("d", 10, 4, ())]  # fmt: skip
    for _ in range(50):
        choices = controller.choose(states)
        assert choices[0].kappa == choices[3].kappa == 0
        assert choices[1].kappa <= 2
        assert choices[2].kappa <= 5
        for state, choice in zip(states, choices, strict=True):
            controller.observe(record(state.request_id, choice, choice.kappa))
    assert choices[2].kappa == 5
    assert controller.choose([]) == []
    assert GoodputController(EAGLE, config=ControllerConfig(max_kappa=0)).choose(states[2:3]) == [
        RowChoice(0)
    ]


def test_a_decision_holds_for_some_rounds_and_is_cut_to_the_limits():
    controller = GoodputController(EAGLE, config=ControllerConfig(decide_every=3))
    first = controller.choose(rows(16))
    assert first[0].kappa > 2
    assert [c.kappa for c in controller.choose(rows(16, max_kappa=2))] == [2] * 16
    assert controller.choose(rows(16, proposers=())) == [RowChoice(0)] * 16
    controller = GoodputController(EAGLE, config=ControllerConfig(decide_every=100))
    controller.choose(rows(16))
    for count in (17, 200):  # one more row keeps the decision, a crowd does not
        found = controller.choose(rows(count))
        assert len(found) == count
    assert found[0].kappa < first[0].kappa


def test_every_round_of_a_held_decision_is_learnt():
    rare = GoodputController(EAGLE, config=ControllerConfig(decide_every=5))
    often = GoodputController(EAGLE, config=ControllerConfig(decide_every=1))
    for controller in (rare, often):
        for _ in range(5):
            for name, choice in enumerate(controller.choose(rows(3, max_kappa=2))):
                assert choice.kappa == 2
                controller.observe(record(name, choice, name))
    assert rare.survival("1", "draft") == often.survival("1", "draft")


def test_the_better_drafter_of_each_row():
    cost = RoundCost(AffineCost(1.0, 0.01), ParallelDraft(0.01))
    drafters = {"a": ParallelDraft(0.01), "b": ParallelDraft(0.01)}
    controller = GoodputController(cost, drafters)
    alphas = [{"a": 0.9, "b": 0.1}] * 3 + [{"a": 0.1, "b": 0.9}] * 3
    # Both are tried by hand first, so that beliefs exist for both.
    for name in ("a", "b"):
        for _ in range(15):
            run(controller, alphas, 1, proposers=(name,))
    last = run(controller, alphas, 30, proposers=("a", "b"))[-1]
    assert [choice.proposer for choice in last] == ["a"] * 3 + ["b"] * 3


def test_a_silent_drafter_costs_little_and_yields_nothing():
    controller = GoodputController(EAGLE)
    asked = []
    for _ in range(80):
        choices = controller.choose(rows(8))
        asked.append(sum(choice.kappa for choice in choices))
        for name, choice in enumerate(choices):
            controller.observe(record(name, choice, 0, drafted=0))
    # In the second half only tries of one draft per row, and few of them.
    assert max(asked[40:]) <= 8
    assert sum(map(bool, asked[40:])) <= 2
    # Silence is not rejection: the survival of drafts that come is unharmed.
    assert controller.survival("0", "draft")[0] == pytest.approx(0.6)


def test_rounds_that_were_not_chosen_teach_nothing():
    controller = GoodputController(EAGLE)
    controller.observe(record("x", RowChoice(4, "draft"), 4))
    choices = controller.choose(rows(1))
    controller.observe(record("0", choices[0], 0))
    before = controller.survival("0", "draft")
    controller.observe(record("0", RowChoice(4, "draft"), 4))  # the round is over
    assert controller.survival("0", "draft") == before


def test_choices_depend_on_finished_rounds_only():
    # The tokens of records do not matter, and neither does who sits beside whom.
    one, two = GoodputController(EAGLE), GoodputController(EAGLE)
    for step in range(30):
        first, second = one.choose(rows(4)), two.choose(rows(4))
        assert first == second
        for name, choice in enumerate(first):
            kept = (step + name) % (choice.kappa + 1)
            one.observe(record(name, choice, kept))
            other = StepRecord(str(name), 7, tuple(range(choice.kappa)), kept, (3,) * (kept + 1))
            two.observe(other)


def test_equal_calls_choose_alike():
    controller = GoodputController(EAGLE)
    first = run(controller, [0.9, 0.2], 40)
    controller.reset()
    assert run(controller, [0.9, 0.2], 40) == first
    keeping = GoodputController(EAGLE, config=ControllerConfig(forget_after_call=False))
    alphas = [0.9, 0.4] * 16
    first = run(keeping, alphas, 20)
    keeping.reset()
    assert run(keeping, alphas, 20) != first


def test_a_released_name_starts_from_the_pool():
    controller = GoodputController(EAGLE)
    run(controller, [0.95, 0.05], 60)
    easy, pool = controller.survival("0", "draft"), controller.survival("new", "draft")
    controller.release("0")
    controller.release("0")
    # How common kinds are is worked out in a few steps, hence not to the last digit.
    assert controller.survival("0", "draft") == pytest.approx(pool, abs=1e-3)
    assert pool[0] < easy[0] - 0.2


def test_beliefs_shrink_to_the_pool_and_follow_evidence():
    tracker = AcceptanceTracker(4, TrackerConfig())
    for _ in range(200):
        tracker.fold("d", {str(i): (4, 2) for i in range(10)})
    survival, given = tracker.beliefs(["0", "new"], "d")
    assert survival[1] == pytest.approx(survival[0], abs=0.02)
    assert survival[0, 1] > 0.95
    assert survival[0, 2] < 0.05
    assert given == pytest.approx(1.0, abs=0.01)
    for _ in range(40):
        tracker.fold("d", {"0": (4, 0)})
    survival, _ = tracker.beliefs(["0", "1"], "d")
    assert survival[0, 0] < 0.45  # 40 rounds at a memory of 0.97
    assert survival[1, 0] > 0.8


def test_a_few_long_drafts_that_survive_make_long_drafts_likely():
    tracker = AcceptanceTracker(12)
    believed, _ = tracker.beliefs(["0"], "d")
    assert believed[0, 0] == pytest.approx(TrackerConfig().prior_rate)
    assert believed[0, 11] > 0.6**12, "some requests are easy"
    for _ in range(2):
        tracker.fold("d", {"0": (3, 3)})
    survival, _ = tracker.beliefs(["0"], "d")
    # A single rate, six accepted drafts and a prior of 0.6 would hope for about 0.05.
    assert survival[0, 11] > 0.5
    tracker.fold("d", {"0": (8, 0)})
    after, _ = tracker.beliefs(["0"], "d")
    assert after[0, 11] < survival[0, 11] / 2


def test_kinds_are_learnt_from_other_requests():
    # All others accept about 4 in 5; without them a new one would be easy or hard.
    alone, among = AcceptanceTracker(12), AcceptanceTracker(12)
    rng = np.random.default_rng(1)
    for _ in range(30):
        kept = {str(i): (8, int((rng.random(8) < 0.8).cumprod().sum())) for i in range(16)}
        among.fold("d", kept)
    new_alone, new_among = (t.beliefs(["new"], "d")[0][0] for t in (alone, among))
    assert new_among[0] == pytest.approx(0.8, abs=0.05)
    assert new_among[7] == pytest.approx(0.8**8, abs=0.08)
    assert new_alone[7] > 0.2
    # What the others taught stays when they have gone.
    for i in range(16):
        among.release(str(i))
    stayed = among.beliefs(["new"], "d")[0][0]
    assert stayed == pytest.approx(new_among, abs=0.03)


def test_contradictory_settings_are_refused():
    for broken in ({"max_kappa": -1}, {"probe_after": 0}, {"probe_after": 9, "probe_most": 3}):
        with pytest.raises(ConfigError):
            ControllerConfig(**broken)
    for broken in (
        {"prior_rate": 1.0},
        {"prior_strength": 0.0},
        {"pool_memory": 0.0},
        {"shrinkage_rounds": 0.0},
    ):
        with pytest.raises(ConfigError):
            TrackerConfig(**broken)
    with pytest.raises(InvariantError):
        RowChoice(2, "none")
    with pytest.raises(InvariantError):
        RowChoice(0, "draft")


# Simulated service.


def test_the_simulation_keeps_its_books():
    requests = poisson_requests(40, 20.0, (0.9, 0.3), (0.5, 0.5), output_tokens=30, seed=2)
    result = simulate(requests, EAGLE, StaticPolicy(3))
    again = simulate(requests, EAGLE, StaticPolicy(3))
    assert result == again
    assert len(result.latencies_s) == 40
    assert all(latency > 0 for latency in result.latencies_s)
    assert 0 < result.accepted < result.drafted
    plain = simulate(requests, EAGLE, StaticPolicy(0))
    assert plain.drafted == 0
    # Plain decoding at batch 1 costs the plain step per token.
    alone = simulate(requests[:1], EAGLE, StaticPolicy(0))
    tokens = requests[0].output_tokens
    assert alone.num_steps == tokens
    assert alone.token_times_s[0] == pytest.approx(EAGLE.plain_s(1, 0), rel=0.1)
    with pytest.raises(ConfigError, match="no requests"):
        simulate([], EAGLE, StaticPolicy(0))


def test_the_controller_is_not_worse_than_static_lengths():
    requests = poisson_requests(
        120, 30.0, (0.9, 0.7, 0.3), (0.3, 0.4, 0.3), output_tokens=60, seed=1
    )
    policies = {
        "plain": StaticPolicy(0),
        "three": StaticPolicy(3),
        "five": StaticPolicy(5),
        "schedule": SchedulePolicy(((1, 16, 5), (17, 64, 3), (65, 256, 1))),
        "controller": GoodputController(EAGLE),
    }
    mean = {
        name: float(np.mean(simulate(requests, EAGLE, policy).latencies_s))
        for name, policy in policies.items()
    }
    # Deterministic: the load and all coins are fixed.
    assert mean["controller"] <= min(mean.values()) * 1.02
    assert mean["controller"] < mean["plain"]


def test_the_controller_costs_next_to_nothing_where_drafts_never_pay():
    requests = poisson_requests(30, 50.0, (0.5,), (1.0,), output_tokens=60, seed=1)
    dear = RoundCost(AffineCost(1e-3, 2e-3), ParallelDraft(5e-3))
    plain = simulate(requests, dear, StaticPolicy(0)).tokens_per_s
    found = simulate(requests, dear, GoodputController(dear)).tokens_per_s
    assert found >= 0.98 * plain
