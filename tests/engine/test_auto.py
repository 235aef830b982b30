"""Draft lengths that a policy chooses: the law, the limits, the seeds, and what may fail."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_kit import (
    GREEDY,
    NEAR,
    RULES,
    WARM,
    answers,
    corrupt_every,
    drafter,
    ids,
    make_core,
    plain,
    requests,
    run,
)

from draftproof.backends.table import PagedStore, TableBackend
from draftproof.core.kappa_policy import RowChoice
from draftproof.core.rng import CoinSource
from draftproof.engine import GenerateRequest
from draftproof.planner.controller import GoodputController
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import ParallelDraft, RoundCost
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.scripted import OracleProposer


class Scripted:
    """Draft lengths by a script, one for each decision; remembers what it was told."""

    def __init__(self, script=(3, 0, 0, 1, 2), name=None):
        self.script = script
        self.name = name
        self.rows, self.records, self.released = [], [], []
        self.num_resets = self.turn = 0

    def choose(self, rows):
        self.rows.append(list(rows))
        kappa = self.script[self.turn % len(self.script)]
        self.turn += 1
        return [self.choice(row, min(kappa, row.max_kappa)) for row in rows]

    def choice(self, row, kappa):
        return RowChoice(kappa, self.name or row.proposers[0]) if kappa else RowChoice(0)

    def observe(self, record):
        self.records.append(record)

    def release(self, request_id):
        self.released.append(request_id)

    def reset(self):
        self.num_resets += 1
        self.turn = 0


class Learning(Scripted):
    """One draft more after a round that kept all, none after one that kept nothing."""

    def __init__(self):
        super().__init__()
        self.next = {}

    def choose(self, rows):
        self.rows.append(list(rows))
        return [self.choice(row, min(self.next.get(row.request_id, 1), 3)) for row in rows]

    def choice(self, row, kappa):
        return super().choice(row, min(kappa, row.max_kappa))

    def observe(self, record):
        super().observe(record)
        kept_all = record.num_accepted == len(record.drafted)
        self.next[record.request_id] = len(record.drafted) + 1 if kept_all else 0

    def reset(self):
        super().reset()
        self.next.clear()


class Raising(Scripted):
    """Fails in one of its calls, on every other turn."""

    def __init__(self, where):
        super().__init__((2,))
        self.where = where
        self.num_failures = 0

    def _fail(self, where):
        if where == self.where:
            self.num_failures += 1
            if self.num_failures % 2:
                raise RuntimeError(f"number {self.num_failures}")

    def choose(self, rows):
        self._fail("choose")
        return super().choose(rows)

    def observe(self, record):
        self._fail("observe")
        super().observe(record)

    def release(self, request_id):
        self._fail("release")
        super().release(request_id)

    def reset(self):
        self._fail("reset")
        super().reset()


def auto(policy, proposers=None, *, kappa=4, **options):
    proposers = proposers or [NgramProposer(1, 3)]
    return make_core(proposers=proposers, kappa=kappa, kappa_policy=policy, **options)


# Texts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Scripted, Learning])
@pytest.mark.parametrize("temper", ["self", "model", "ngram", "half-wrong", "over budget"])
@pytest.mark.parametrize("rule", ["coupled", "sample-match", None])
def test_chosen_lengths_leave_the_text_as_it_is(rule, temper, policy):
    batch = requests(3, 9, 5, 1, max_tokens=20, params=WARM if rule else GREEDY, rule=rule)
    core = auto(policy(), [drafter(temper, answers(batch))])
    results = run(core, batch)
    assert ids(results) == ids(plain(batch))
    assert core.target.num_open == 0
    lengths = {len(record.drafted) for result in results.values() for record in result.records}
    assert len(lengths) > 1, "nothing was varied"


def test_a_drafter_is_right_again_after_rounds_without_it():
    """A model that drafts what the target writes is always accepted, also after a pause."""
    batch = requests(3, 9, max_tokens=40)
    results = run(auto(Scripted((3, 0, 0, 0, 0, 0, 2)), [drafter("self")]), batch)
    for result in results.values():
        drafted = [record for record in result.records if record.drafted]
        assert len(drafted) > 3
        assert all(record.num_accepted == len(record.drafted) for record in drafted)


@pytest.mark.parametrize("rule", [None, *RULES])
def test_equal_calls_give_equal_texts(rule):
    batch = requests(3, 9, 5, 1, max_tokens=25, params=WARM, rule=rule)
    core = auto(Learning(), [DraftModelProposer(TableBackend(NEAR))])
    first, second = run(core, batch), run(core, batch)
    assert ids(first) == ids(second)
    assert ids(first) == ids(run(auto(Learning(), [DraftModelProposer(TableBackend(NEAR))]), batch))


@pytest.mark.parametrize("rule", [None, *RULES])
def test_the_controller_decides_alike_in_equal_calls(rule):
    """Its decisions are a function of counts and costs, never of a clock."""
    cost = RoundCost(AffineCost(1.0, 0.05), ParallelDraft(0.01))
    batch = requests(3, 9, 5, 1, max_tokens=30, params=WARM, rule=rule)
    core = auto(GoodputController(cost), [DraftModelProposer(TableBackend(NEAR))], kappa=6)
    first, second = run(core, batch), run(core, batch)
    assert ids(first) == ids(second)
    for name, result in first.items():
        assert result.records == second[name].records
    lengths = {len(record.drafted) for result in first.values() for record in result.records}
    assert len(lengths) > 2


def test_company_may_change_a_text_of_the_rules_that_divide_by_the_drafters_law():
    """Why the seed contract is weaker there: the policy minds the whole batch."""

    class ByBatch(Scripted):
        def choose(self, rows):
            return [self.choice(row, min(len(rows), row.max_kappa)) for row in rows]

    batch = requests(3, 9, 5, 1, max_tokens=25, params=WARM, rule="standard")
    proposers = [DraftModelProposer(TableBackend(NEAR))]
    together = run(auto(ByBatch(), proposers), batch)
    alone = run(auto(ByBatch(), proposers), batch[:1])
    assert ids(together)["a"] != ids(alone)["a"]


# Coins ------------------------------------------------------------------------------------------


def test_requests_of_one_seed_do_not_share_coins_that_the_policy_would_see():
    used = []

    def coins(seed, stream):
        used.append(seed)
        return CoinSource(seed, stream)

    prompt = (0, 1, 2)
    same = [GenerateRequest(prompt, WARM, max_tokens=4, seed=9) for _ in range(3)]
    core = auto(Scripted(), coin_source=coins)
    run(core, [*same, replace(same[0], kappa=2), replace(same[0], rule="coupled")])
    assert len(set(used[:3])) == 3
    assert used[3:] == [9, 9]  # its own length; a rule that any choice leaves alone
    before = list(used)
    run(core, same)
    assert used[5:] == before[:3]  # a call like the one before


# Limits -----------------------------------------------------------------------------------------


def test_choices_stay_within_request_engine_and_budget():
    batch = requests(3, 9, 5, 4, max_tokens=12)
    batch[0] = replace(batch[0], max_kappa=2)
    batch[1] = replace(batch[1], kappa=3)
    batch[2] = replace(batch[2], kappa=0)
    known = answers(batch)
    policy = Scripted((9,))
    results = run(auto(policy, [OracleProposer(known)], kappa=5), batch)
    longest = {
        name: max(len(record.drafted) for record in result.records)
        for name, result in results.items()
    }
    assert longest == {"a": 2, "b": 3, "c": 0, "d": 5}
    for rows in policy.rows:
        for row in rows:
            most = {"a": 2, "b": 0, "c": 0, "d": 5}[row.request_id]
            assert row.max_kappa <= most
            assert row.proposers == (("oracle",) if most else ())
    assert ids(results) == ids(plain(batch))


def test_a_limit_holds_without_a_policy_too():
    batch = [replace(request, max_kappa=1) for request in requests(4, max_tokens=12)]
    core = make_core(proposers=[OracleProposer(answers(batch))], kappa=5)
    result = run(core, batch)["a"]
    assert max(len(record.drafted) for record in result.records) == 1


def test_every_row_that_decodes_is_told_and_each_round_is_reported_once():
    batch = requests(3, 9, 5, max_tokens=15)
    policy = Scripted()
    results = run(auto(policy, [NgramProposer(1, 3)]), batch)
    told = [row.request_id for rows in policy.rows for row in rows]
    assert sorted(told) == sorted(record.request_id for record in policy.records)
    for name, result in results.items():
        # The first token comes with the prompt: nothing is chosen for that row.
        assert [r for r in policy.records if r.request_id == name] == result.records[1:]
    cached = {row.request_id: row.kv_tokens for row in policy.rows[0]}
    assert cached == {"a": 3, "b": 9, "c": 5}
    assert sorted(policy.released) == ["a", "b", "c"]
    assert policy.num_resets == 1


def test_the_policy_may_choose_the_drafter():
    batch = requests(3, 9, max_tokens=20)
    batch[1] = replace(batch[1], proposer="ngram")
    known = answers(batch)
    policy = Scripted((2,))
    core = auto(policy, [NgramProposer(1, 3), OracleProposer(known, corrupt_every(5))])
    policy.choice = lambda row, kappa: (
        RowChoice(kappa, row.proposers[-1]) if kappa else RowChoice(0)
    )
    results = run(core, batch)
    proposers = {name: {r.proposer for r in results[name].records} for name in results}
    assert "oracle" in proposers["a"]
    assert "ngram" not in proposers["a"]
    assert "oracle" not in proposers["b"]
    assert ids(results) == ids(plain(batch))


def test_a_cache_too_small_for_all_keeps_the_text():
    batch = requests(6, 6, 6, 6, max_tokens=20)
    known = answers(batch)
    core = auto(Scripted((4, 1)), [OracleProposer(known)], store=PagedStore(14, 4))
    results = run(core, batch)
    assert core.num_preemptions > 0
    assert ids(results) == ids(plain(batch))
    assert core.target.num_open == 0


# Failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["choose", "observe", "release", "reset"])
def test_a_policy_that_fails_harms_nobody(where):
    batch = requests(3, 9, max_tokens=20)
    results = run(auto(Raising(where), [drafter("self")]), batch)
    assert ids(results) == ids(plain(batch))
    noted = [note for result in results.values() for note in result.notes if "policy" in note]
    assert any("RuntimeError('number 1')" in note for note in noted)
    assert len(noted) <= len(batch), "one note per request"


@pytest.mark.parametrize(
    "answer",
    [
        lambda rows: [],
        lambda rows: None,
        lambda rows: [RowChoice(99, row.proposers[0]) for row in rows],
        lambda rows: [RowChoice(1, "nobody") for row in rows],
        lambda rows: [RowChoice(1.5, row.proposers[0]) for row in rows],
    ],
)
def test_an_answer_that_is_no_choice_means_no_drafts(answer):
    policy = Scripted()
    policy.choose = answer
    batch = requests(3, 9, max_tokens=8)
    results = run(auto(policy, [drafter("self")]), batch)
    assert ids(results) == ids(plain(batch))
    for result in results.values():
        assert result.stats.num_drafts == 0
        assert "the policy of draft lengths failed" in result.notes[0]


def test_time_of_decisions_is_counted_apart():
    core = auto(Scripted())
    run(core, requests(3, max_tokens=8))
    clock = core.clock
    assert clock.policy_s > 0.0
    parts = clock.draft_s + clock.target_s + clock.verify_s + clock.other_s
    assert clock.total_s == pytest.approx(parts + clock.policy_s)


def test_a_request_is_told_what_the_lengths_follow():
    core = auto(Scripted(), policy_note="costs of another machine")
    batch = requests(3, 4, max_tokens=4)
    batch[1] = replace(batch[1], kappa=1)
    results = run(core, batch)
    assert "costs of another machine" in results["a"].notes
    assert "costs of another machine" not in results["b"].notes
