"""What goes wrong in one place stays there: drafters, passes, rows, callers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_kit import (
    DRAFTERS,
    GREEDY,
    NEAR,
    TABLE,
    VOCAB,
    WARM,
    answers,
    drafter,
    held,
    ids,
    make_core,
    plain,
    requests,
    run,
    run_alone,
)

from draftproof.backends.table import PagedStore, RecurrentStore, TableBackend
from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw
from draftproof.core.params import SamplingParams
from draftproof.core.types import Draft
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.engine import step as step_module
from draftproof.errors import (
    BackendError,
    CapacityError,
    NonFiniteLogitsError,
)
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.scripted import (
    FixedProposer,
    RaisingProposer,
    SlowProposer,
)


class Odd(FixedProposer):
    """A drafter whose drafts are made by a function of the row; every row gets one."""

    def __init__(self, make, name="odd"):
        super().__init__((1,), name)
        self._make = make
        self.num_asked = 0

    def propose(self, requests):
        self.num_asked += 1
        return self._make(requests)


def laws(*tokens, size=VOCAB):
    return Draft(tokens, tuple(DenseLaw(np.full(size, 1.0)) for _ in tokens), "odd")


#: Drafters that break their contract, and what the user is told.
BROKEN = {
    "id too large": (lambda rows: [Draft((1, VOCAB), None, "odd") for _ in rows], "token id 7"),
    "negative id": (lambda rows: [Draft((-1,), None, "odd") for _ in rows], "token id -1"),
    "no mass": (
        lambda rows: [Draft((2,), (OneHotLaw(3, VOCAB),), "odd") for _ in rows],
        "token id 2, which has no mass",
    ),
    "no mass in a short list": (
        lambda rows: [Draft((2,), (SparseLaw([0, 1], [0.5, 0.5], VOCAB),), "odd") for _ in rows],
        "token id 2, which has no mass",
    ),
    "another vocabulary": (
        lambda rows: [laws(1, 1, size=VOCAB + 3) for _ in rows],
        "a law over 10 tokens, expected 7",
    ),
    "too few drafts": (lambda rows: [], "0 drafts, expected"),
    "too many drafts": (lambda rows: [Draft()] * (len(rows) + 1), "drafts, expected"),
    "None": (lambda rows: None, "failed: TypeError"),
    "no draft at all": (lambda rows: [None for _ in rows], "failed: AttributeError"),
    "no number": (lambda rows: [Draft(("a",), None, "odd") for _ in rows], "failed: TypeError"),
    "law of another kind": (
        lambda rows: [Draft((1,), ([0.5] * VOCAB,), "odd") for _ in rows],
        "failed: AttributeError",
    ),
}


@pytest.mark.parametrize("rule", [None, "standard", "block", "sample-match"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_drafter_that_breaks_its_contract_changes_nothing_but_a_note(name, rule):
    make, told = BROKEN[name]
    batch = requests(3, 6, 4, params=WARM, max_tokens=15, rule=rule)
    batch[1] = replace(batch[1], proposer="ngram")
    odd = Odd(make)
    core = make_core(proposers=[odd, NgramProposer(1, 3)], kappa=3)
    results = run(core, batch)
    if not told.startswith(("failed", "drafts", "0 drafts")):
        assert odd.num_asked <= 2  # once for each of its requests, then it is switched off
    expected = ids(plain(batch))
    assert results["a"].token_ids == expected["a"]
    assert results["c"].token_ids == expected["c"]
    for key in "ac":
        assert results[key].stats.num_draft_tokens == 0
        assert any(told in note for note in results[key].notes), results[key].notes
        assert any("never drafted" in note for note in results[key].notes)
    sane = make_core(proposers=[NgramProposer(1, 3)], kappa=3)
    assert results["b"].token_ids == run(sane, [batch[1]])["b"].token_ids
    assert not any("odd" in note for note in results["b"].notes)


@pytest.mark.parametrize("calls", [None, {1}, {2, 3, 5}])
@pytest.mark.parametrize("error", [RuntimeError("boom"), BackendError("gone"), KeyError("x")])
def test_a_drafter_that_raises_costs_its_drafts_only(error, calls):
    batch = requests(3, 6, max_tokens=20)
    inner = DraftModelProposer(TableBackend(NEAR))
    core = make_core(proposers=[RaisingProposer(inner, error, calls)], kappa=3)
    results = run(core, batch)
    assert ids(results) == ids(plain(batch))
    for result in results.values():
        (note,) = [note for note in result.notes if note.startswith("drafter draft-model failed")]
        assert repr(error) in note
        assert f"(in {len(calls)} of " in note if calls else True
        assert (result.stats.num_draft_tokens > 0) == (calls is not None)
    # A drafter that comes back drafts again.
    again = run(core, batch)
    if calls:
        assert all(result.stats.acceptance_rate > 0 for result in again.values())


def test_a_drafter_that_fails_on_release_is_noted_and_the_result_stands():
    class Clinging(FixedProposer):
        def release(self, request_id):
            raise OSError("cannot let go")

    batch = requests(3, 6, max_tokens=5)
    core = make_core(proposers=[Clinging((1,))], kappa=2)
    results = run(core, batch)
    assert ids(results) == ids(plain(batch))
    assert all("failed to release" in result.notes[0] for result in results.values())
    assert held(core)[0] == 0


def test_a_slow_drafter_changes_nothing():
    batch = requests(3, 6, max_tokens=6)
    core = make_core(proposers=[SlowProposer(FixedProposer((1,)), 0.002)], kappa=3)
    assert ids(run(core, batch)) == ids(plain(batch))
    assert core.clock.draft_s >= 0.002


def test_notes_do_not_grow_with_the_text():
    """A drafter that words its reason anew in every round."""
    rounds = iter(range(10**6))
    talker = Odd(lambda rows: [Draft((), None, "odd", f"reason {next(rounds)}") for _ in rows])
    result = run(make_core(proposers=[talker], kappa=3), requests(3, max_tokens=300))["a"]
    assert len(result.notes) < 12
    assert sum(map(len, result.notes)) < 1000


# Stop criteria (a raising one fails its request) ------------------------------------------------


def test_a_criterion_that_raises_fails_its_request_only():
    def criterion(output):
        if len(output) == 5:
            raise ZeroDivisionError("mine")
        return False

    for kappa in (0, 4):
        batch = requests(3, 6, 9, max_tokens=20)
        batch[1] = replace(batch[1], stop_criterion=criterion)
        core = make_core(proposers=[drafter("ngram")], kappa=kappa)
        results = run(core, batch, check=False)
        expected = plain(requests(3, 6, 9, max_tokens=20))
        assert isinstance(results["b"].error, ZeroDivisionError)
        assert results["b"].finish_reason == "error"
        assert results["a"].token_ids == expected["a"].token_ids
        assert results["c"].token_ids == expected["c"].token_ids
        assert core.target.num_open == 0


# Rows that fail (NU-1) --------------------------------------------------------------------------


def with_nan(kappa, rule=None):
    """Three requests; the second meets a row of NaN somewhere on its way."""
    batch = requests(3, 6, 4, params=WARM, max_tokens=25, rule=rule)
    batch[1] = replace(batch[1], params=replace(WARM, logit_bias={6: 100.0}), prompt_ids=(1, 2, 3))
    for index in (0, 2):
        batch[index] = replace(batch[index], params=replace(WARM, banned_token_ids=(6,)))

    def make():
        return make_core(proposers=[drafter("model")], kappa=kappa, faults={"nan_after": (6,)})

    batch = [replace(r, prompt_ids=tuple(t % 6 for t in r.prompt_ids)) for r in batch]
    return batch, make


@pytest.mark.parametrize("kappa", [0, 1, 4])
@pytest.mark.parametrize("rule", [None, "coupled", "sample-match"])
def test_a_row_of_nan_fails_its_request_only_and_names_it(kappa, rule):
    batch, make = with_nan(kappa, rule)
    core = make()
    results = run(core, batch, check=False)
    error = results["b"].error
    assert isinstance(error, NonFiniteLogitsError)
    assert str(error).startswith("request b, position 4: largest logit nan")
    alone = run_alone(make, [batch[0], batch[2]])
    for name in "ac":
        assert results[name].error is None
        assert results[name].token_ids == alone[name].token_ids
    assert core.target.num_open == 0
    again = requests(3, max_tokens=5, params=replace(GREEDY, banned_token_ids=(6,)))
    assert ids(run(core, again)) == ids(plain(again))


def test_a_policy_that_leaves_no_token_is_one_clear_error():
    request = GenerateRequest(
        (1, 2),
        SamplingParams(allowed_token_ids=(3, 4), banned_token_ids=(3, 4)),
        request_id="empty",
    )
    for kappa in (0, 3):
        core = make_core(proposers=[drafter("ngram")], kappa=kappa)
        core.submit(request)
        core.submit(requests(3, max_tokens=5)[0])
        results = core.run()
        assert str(results["empty"].error).startswith("request empty, position 2: largest logit")
        assert results["a"].error is None


# Passes that fail -------------------------------------------------------------------------------


class RefusesRow(TableBackend):
    """Fails every pass that brings token 6, and says so with a given error."""

    def __init__(self, *args, error, late=False, **options):
        super().__init__(*args, **options)
        self.error, self.late = error, late

    def forward(self, batch):
        bad = 6 in batch.token_ids.tolist()
        if bad and not self.late:
            raise self.error
        logits = super().forward(batch)
        if bad:
            raise self.error
        return logits


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [BackendError("no"), CapacityError("full"), RuntimeError("oh")])
@pytest.mark.parametrize("kappa", [0, 3])
def test_a_row_that_the_runtime_refuses_leaves_its_neighbours_untouched(kappa, error, late):
    batch, _ = with_nan(kappa)

    def make():
        backend = RefusesRow(TABLE, PagedStore(60), error=error, late=late)
        return EngineCore(backend, proposers=[drafter("ngram")], kappa=kappa)

    core = make()
    results = run(core, batch, check=False)
    assert results["b"].error is error
    alone = run_alone(make, [batch[0], batch[2]])
    for name in "ac":
        assert results[name].error is None
        assert results[name].token_ids == alone[name].token_ids
    core.target.store.cache.check_integrity()
    assert core.target.num_open == 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("call", [1, 2, 7])
def test_a_pass_that_fails_once_is_made_up_row_by_row(call, late):
    batch = requests(3, 6, 9, max_tokens=20)
    known = answers(batch)
    core = make_core(
        proposers=[DRAFTERS["half-wrong"](known)],
        kappa=4,
        faults={"fail_calls": {call: BackendError("hiccup")}, "fail_late": late},
    )
    assert ids(run(core, batch)) == ids(plain(batch))
    core.target.store.cache.check_integrity()


def test_a_state_that_died_in_a_pass_fails_its_rows():
    """Nothing can be taken back, so those rows end; later requests work."""
    core = make_core(
        store=RecurrentStore(),
        faults={"fail_calls": {3: BackendError("hiccup")}, "fail_late": True},
    )
    results = run(core, requests(3, 6, max_tokens=8), check=False)
    assert all(isinstance(result.error, BackendError) for result in results.values())
    batch = requests(4, max_tokens=8)
    assert ids(run(core, batch)) == ids(plain(batch, store=RecurrentStore()))


def test_a_failed_pass_that_takes_everything_down_is_seen(monkeypatch):
    """Were one bad row not tried alone, its neighbours would fail with it."""

    def give_up(plan, *_):
        yield step_module._Scored([plan], 0.0, error=BackendError("all of you"))

    monkeypatch.setattr(step_module, "_score_alone", give_up)
    batch, _ = with_nan(0)
    core = EngineCore(RefusesRow(TABLE, error=BackendError("no")))
    results = run(core, batch, check=False)
    assert all(result.error is not None for result in results.values())


def test_what_can_never_fit_fails_and_the_rest_goes_on():
    batch = requests(40, 6, 5, max_tokens=10)
    core = make_core(store=PagedStore(8), proposers=[drafter("junk")], kappa=2)
    results = run(core, batch, check=False)
    assert isinstance(results["a"].error, CapacityError)
    assert "the KV cache is smaller than that" in str(results["a"].error)
    expected = ids(plain(batch[1:]))
    assert {name: results[name].token_ids for name in "bc"} == expected


def test_a_request_that_outgrows_the_cache_fails_at_the_token_that_does_not_fit():
    for kappa in (0, 4):
        core = make_core(store=PagedStore(4), proposers=[drafter("ngram")], kappa=kappa)
        result = run(core, requests(6, max_tokens=40), check=False)["a"]
        assert isinstance(result.error, CapacityError)
        assert len(result.token_ids) == 16 - 6 + 1
        assert result.token_ids == plain(requests(6, max_tokens=40))["a"].token_ids[:11]


@pytest.mark.parametrize("kappa", [12, 20])
def test_drafts_that_do_not_fit_do_not_end_a_request_that_would_fit_without(kappa):
    """Sent away and with nothing else running, a request resumes plainly rather than fail."""
    batch = requests(2, 13, max_tokens=100, stop_criterion=lambda output: len(output) == 9)
    core = make_core(store=PagedStore(6), proposers=[drafter("junk")], kappa=kappa)
    assert ids(run(core, batch)) == ids(plain(batch))
    assert core.num_preemptions > 0
