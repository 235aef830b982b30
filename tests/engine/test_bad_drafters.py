"""Drafters that return no drafts, stall, or fail again and again: who pays, and for how long."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from engine_kit import GREEDY, TABLE, VOCAB, WARM, answers, ids, make_core, plain, requests, run

from draftproof.backends.table import TableBackend
from draftproof.core.types import Draft, TreeDraft
from draftproof.engine import Clock, EngineCore
from draftproof.engine.patience import (
    FIRST_PAUSE,
    FLOOR_S,
    LONGEST_PAUSE,
    PLAIN_PASSES,
    ROUNDS_RUNNING,
    TOKENS_PER_PASS,
    Patience,
)
from draftproof.proposers import NgramProposer
from draftproof.testing.scripted import (
    FixedProposer,
    OracleProposer,
    RaisingProposer,
    SlowProposer,
)


class Odd(FixedProposer):
    """A drafter whose drafts are made by a function of the rows."""

    def __init__(self, make, name="odd"):
        super().__init__((1,), name)
        self._make = make
        self.num_asked = 0

    def propose(self, requests):
        self.num_asked += 1
        return self._make(requests)


#: What one row may get that is no draft, and what its request is told.
NO_DRAFTS = {
    "floats": (Draft((1.0, 2.5), None, "odd"), "failed: TypeError"),
    "whole floats": (Draft((1.0, 2.0), None, "odd"), "failed: TypeError"),
    "numpy floats": (Draft(tuple(np.array([1.0, 2.0])), None, "odd"), "failed: TypeError"),
    "None": (None, "failed: AttributeError"),
    "another kind": (SimpleNamespace(token_ids=(1,)), "failed: TypeError"),
    "a note that is no text": (Draft((1,), None, "odd", []), "failed: TypeError"),
    "a law that raises": (
        Draft((1,), (SimpleNamespace(vocab_size=VOCAB),), "odd"),
        "failed: AttributeError",
    ),
    "an id too large": (Draft((VOCAB,), None, "odd"), "token id 7"),
}


@pytest.mark.parametrize("name", NO_DRAFTS)
def test_a_bad_row_costs_its_own_drafts_and_leaves_those_of_the_others(name):
    bad, told = NO_DRAFTS[name]
    batch = requests(3, 6, 4, params=GREEDY, max_tokens=12)
    known = answers(batch)
    oracle = OracleProposer(known, name="odd")

    def make(rows):
        drafts = oracle.propose(rows)
        return [
            bad if row.request_id == "b" else draft for row, draft in zip(rows, drafts, strict=True)
        ]

    odd = Odd(make)
    results = run(make_core(proposers=[odd], kappa=3), batch)
    assert ids(results) == ids(plain(batch))
    assert results["b"].stats.num_draft_tokens == 0
    assert any(told in note for note in results["b"].notes), results["b"].notes
    assert any("switched off for this request" in note for note in results["b"].notes)
    for key in "ac":
        assert results[key].stats.num_draft_tokens > 0
        assert results[key].stats.acceptance_rate == 1.0
        assert results[key].notes == []


@pytest.mark.parametrize(
    "kind", [np.int64, np.int32, lambda token: True if token == 1 else token, "array", "list"]
)
@pytest.mark.parametrize("branches", [False, True])
def test_tokens_of_other_kinds_of_whole_numbers_come_back_as_plain_ints(kind, branches):
    batch = requests(3, 6, params=GREEDY, max_tokens=12)
    oracle = OracleProposer(answers(batch), name="odd")

    def changed(draft):
        tokens = draft.token_ids
        if kind == "array":
            tokens = np.array(tokens, dtype=np.int64)
        elif kind == "list":
            tokens = list(tokens)
        else:
            tokens = tuple(kind(token) for token in tokens)
        if not branches:
            return Draft(tokens, None, "odd")
        return TreeDraft(tokens, tuple(np.arange(-1, len(tokens) - 1)), None, "odd")

    odd = Odd(lambda rows: [changed(draft) for draft in oracle.propose(rows)])
    results = run(make_core(proposers=[odd], kappa=3), batch)
    assert ids(results) == ids(plain(batch))
    for result in results.values():
        assert result.notes == []
        assert result.stats.num_accepted_tokens > 0
        held_ints = [*result.token_ids]
        for record in result.records:
            held_ints += [*record.drafted, *record.emitted, *(record.parents or ())]
        assert {type(number) for number in held_ints} == {int}


# Stalling and failing in every round ------------------------------------------------------------

#: Longer than the floor, and than any allowance of a table model.
STALL_S = FLOOR_S + 0.05


def warnings_of(caplog):
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.mark.parametrize("rule", [None, "coupled"])
def test_a_drafter_that_stalls_is_left_alone_with_a_warning(rule, caplog):
    batch = requests(3, 6, params=GREEDY, max_tokens=14, rule=rule)
    oracle = OracleProposer(answers(batch), lambda _position, token: (token + 1) % VOCAB)
    slow = SlowProposer(oracle, STALL_S)
    batch[1] = replace(batch[1], proposer="ngram")
    core = make_core(proposers=[slow, NgramProposer(1, 3)], kappa=2)
    results = run(core, batch)
    assert ids(results) == ids(plain(batch))
    # The first call has no plain pass to be compared with yet.
    assert slow.num_calls <= ROUNDS_RUNNING + 1
    (note,) = [note for note in results["a"].notes if "in 3 rounds running" in note]
    assert note.startswith(f"drafter oracle is not asked for {FIRST_PAUSE} rounds: it took more")
    assert not any("oracle" in note for note in results["b"].notes)
    assert results["b"].stats.num_draft_tokens > 0
    assert core.clock.num_drafter_pauses == 1
    (warning,) = warnings_of(caplog)
    assert note in warning
    # Who comes next is told as well, and does not wait.
    asked = slow.num_calls
    later = run(core, [replace(batch[0], max_tokens=4)])["a"]
    assert slow.num_calls == asked
    assert later.notes == [note]


def test_a_drafter_that_always_fails_is_asked_less_and_less(caplog):
    batch = requests(3, 6, params=WARM, max_tokens=60, rule="block")
    broken = RaisingProposer(FixedProposer((1,)), RuntimeError("a secret text"))
    core = make_core(proposers=[broken], kappa=2)
    results = run(core, batch)
    assert ids(results) == ids(plain(batch))
    # 59 rounds draft: three, a pause of 16, one, a pause of 32, one, and a pause that lasts.
    assert broken.num_calls == ROUNDS_RUNNING + 2
    assert core.clock.num_drafter_pauses == 3
    for result in results.values():
        for pause in (16, 32, 64):
            told = f"drafter fixed is not asked for {pause} rounds: it failed in 3 rounds running"
            assert told in result.notes
    (warning,) = warnings_of(caplog)
    assert "secret" not in warning  # what an error quotes is for who made the request


def test_a_drafter_that_recovers_drafts_again():
    batch = requests(3, params=GREEDY, max_tokens=80)
    inner = OracleProposer(answers(batch))
    flaky = RaisingProposer(inner, RuntimeError("not yet"), {1, 2, 3})
    result = run(make_core(proposers=[flaky], kappa=1), batch)["a"]
    assert result.token_ids == plain(batch)["a"].token_ids
    assert result.stats.acceptance_rate == 1.0
    # Two in three rounds of the rest, at least: each round commits two tokens from then on.
    assert result.stats.num_drafts > 20


def test_drafts_of_no_row_that_can_be_used_count_as_failures():
    """A drafter is switched off for each request, but new ones come all the time."""
    junk = Odd(lambda rows: [Draft((VOCAB,), None, "odd") for _ in rows])
    core = make_core(proposers=[junk], kappa=2)
    for request in requests(3, 4, 5, 6, 7, params=GREEDY, max_tokens=5):
        result = run(core, [request])[request.request_id]
    assert junk.num_asked == ROUNDS_RUNNING
    assert any("odd is not asked for 16 rounds" in note for note in result.notes)


def test_the_deterministic_mode_tells_and_goes_on_asking(caplog):
    batch = requests(3, params=WARM, max_tokens=7, rule="block")
    slow = SlowProposer(FixedProposer((1,)), STALL_S)
    core = make_core(proposers=[slow], kappa=1, deterministic=True)
    result = run(core, batch)["a"]
    assert slow.num_calls == sum(1 for record in result.records if record.drafted)
    assert slow.num_calls > ROUNDS_RUNNING
    assert any("the deterministic mode obeys no clock" in note for note in result.notes)
    assert core.clock.num_drafter_pauses == 0
    assert len(warnings_of(caplog)) == 1


class WithHidden(TableBackend):
    """A table model with hidden states, all of them zero."""

    @property
    def info(self):
        return replace(super().info, hidden_size=1)

    def forward(self, batch):
        self._hidden = np.zeros((len(batch), 1), np.float32)
        return super().forward(batch)

    def hidden(self):
        return self._hidden

    def matrices(self):
        raise NotImplementedError


class Told(FixedProposer):
    """A drafter that is told hidden states, and stalls or fails over them."""

    def __init__(self, observe):
        super().__init__((1,), "told")
        self.num_told = 0
        self._observe = observe

    def observe(self, request_id, start, hidden):
        self.num_told += 1
        self._observe()


def fail():
    raise RuntimeError("no")


@pytest.mark.parametrize(
    ("observe", "told"),
    [(lambda: time.sleep(STALL_S), "to observe"), (fail, "failed to observe")],
)
def test_a_drafter_that_cannot_take_hidden_states_is_left_alone(observe, told):
    """Also where nobody drafts: it is told of every pass."""
    reader = Told(observe)
    core = EngineCore(WithHidden(TABLE), proposers=[reader], kappa=0)
    batch = requests(3, params=GREEDY, max_tokens=12)
    result = run(core, batch)["a"]
    assert result.token_ids == plain(batch)["a"].token_ids
    # Neither the prompt nor the first plain pass has one before it to be compared with.
    assert reader.num_told <= ROUNDS_RUNNING + 2
    assert any(told in note and "is not asked for" in note for note in result.notes)


# The rule itself, without a clock ---------------------------------------------------------------


def asks(patience, seconds, count, kappa=2):
    """Let a drafter take so many seconds per call; return in which rounds it was asked."""
    asked = []
    for number in range(count):
        if not patience.pause_note("x"):
            asked.append(number)
            patience.drafted("x", seconds(number), kappa, [("a", 10)])
            patience.went("x", "failed", is_bad=False)
    return asked


def test_pauses_double_up_to_a_limit_and_start_anew_after_a_recovery():
    patience = Patience(Clock())
    patience.passed(0.01)
    asked = asks(patience, lambda _: 9.0, 6000)
    gaps = np.diff(asked)
    assert asked[:3] == [0, 1, 2]
    assert gaps[2:9].tolist() == [17, 33, 65, 129, 257, 513, 1025]
    assert set(gaps[9:].tolist()) == {LONGEST_PAUSE + 1}
    for _ in range(LONGEST_PAUSE):
        patience.pause_note("x")
    # As many good rounds as the last pause had, and it is trusted as at first.
    assert len(asks(patience, lambda _: 0.0, LONGEST_PAUSE)) == LONGEST_PAUSE
    assert np.diff(asks(patience, lambda _: 9.0, 60)).tolist() == [1, 1, 17, 33]


def test_a_good_round_between_forgives():
    patience = Patience(Clock())
    patience.passed(0.01)
    assert len(asks(patience, lambda number: 9.0 if number % 3 else 0.0, 300)) == 300


@pytest.mark.parametrize(
    ("pass_s", "kappa", "length", "limit"),
    [
        (0.001, 2, 10, FLOOR_S),
        (0.1, 0, 0, PLAIN_PASSES * 0.1),
        (0.1, 4, 0, PLAIN_PASSES * 0.5),
        (0.1, 4, 10 * TOKENS_PER_PASS, PLAIN_PASSES * 1.5),
    ],
)
def test_the_allowance_is_that_of_plain_passes_and_of_what_is_read(pass_s, kappa, length, limit):
    for share, is_given_up in ((0.99, False), (1.01, True)):
        patience = Patience(Clock())
        patience.passed(pass_s)
        for number in range(ROUNDS_RUNNING):
            # Each round has a new request, which is read from its beginning.
            patience.drafted("x", limit * share, kappa, [(str(number), length)])
        assert bool(patience.pause_note("x")) is is_given_up


def test_nothing_is_judged_before_the_first_plain_pass_and_recent_ones_weigh():
    patience = Patience(Clock())
    assert len(asks(patience, lambda _: 100.0, 50)) == 50
    for _ in range(200):
        patience.passed(60.0)  # it compiled
    for _ in range(200):
        patience.passed(0.01)
    assert len(asks(patience, lambda _: 1.0, 10)) == ROUNDS_RUNNING
