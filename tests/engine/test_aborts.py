"""Aborts at any moment, names, and what one request may never leave to the next."""

from __future__ import annotations

import numpy as np
import pytest
from engine_kit import (
    GREEDY,
    NEAR,
    VOCAB,
    WARM,
    held,
    ids,
    make_core,
    requests,
    run,
)

from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.engine import GenerateRequest, SchedulerConfig
from draftproof.engine.scheduler import Scheduler
from draftproof.errors import RequestAbortedError
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.scripted import ScriptedProposer

# Aborts (SV-1) ----------------------------------------------------------------------------------


def counters(stats):
    return (
        stats.num_rounds,
        stats.num_drafts,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
        stats.num_emitted_tokens,
    )


def abort_many(core, num_requests, seed=0):
    """Submit requests and abort each after a random number of steps; return the results."""
    rng = np.random.default_rng(seed)
    left = {}
    results, submitted = [], 0
    before = counters(core.stats)
    while submitted < num_requests or core.has_work:
        while submitted < num_requests and len(left) < 12:
            prompt = tuple(rng.integers(0, VOCAB, rng.integers(1, 30)).tolist())
            request = GenerateRequest(prompt, WARM, max_tokens=40, seed=submitted)
            left[core.submit(request)] = int(rng.integers(0, 9))
            submitted += 1
        for output in core.step():
            if output.result is not None:
                left.pop(output.request_id, None)
                results.append(output.result)
        for name in [name for name, steps in left.items() if steps == 0]:
            core.abort(name)
        left = {name: steps - 1 for name, steps in left.items()}
        now = counters(core.stats)
        assert all(a <= b for a, b in zip(before, now, strict=True))
        before = now
    return results


def leaky_core(num_pages=40):
    return make_core(
        store=PagedStore(num_pages),
        proposers=[DraftModelProposer(TableBackend(NEAR, PagedStore(30)))],
        kappa=4,
        scheduler=SchedulerConfig(max_rows=6, prefill_chunk=8, prefill_budget=16),
    )


def check_everything_is_given_back(core):
    drafter_ = core.proposers["draft-model"]
    assert held(core) == (0, 0)
    assert drafter_.num_requests == 0
    assert drafter_._backend.num_open == 0
    assert core._sessions == {}
    assert core._results == {}
    core.target.store.cache.check_integrity()


def test_five_hundred_aborts_leave_nothing_behind():
    core = leaky_core()
    results = abort_many(core, 500)
    assert len(results) == 500
    assert sum(result.finish_reason == "abort" for result in results) > 400
    for result in results:
        if result.finish_reason == "abort":
            assert isinstance(result.error, RequestAbortedError)
            assert result.request_id in str(result.error)
        assert min(counters(result.stats)) >= 0
        assert result.stats.num_emitted_tokens == len(result.tokens)
    check_everything_is_given_back(core)
    batch = requests(12, 3, params=WARM, max_tokens=20)
    assert ids(run(core, batch)) == ids(run(leaky_core(), batch))


def test_a_scheduler_that_keeps_aborted_sequences_is_seen(monkeypatch):
    monkeypatch.setattr(Scheduler, "_close", lambda self, session: None)
    core = leaky_core(400)
    abort_many(core, 30)
    with pytest.raises(AssertionError):
        check_everything_is_given_back(core)


def test_an_abort_of_the_unknown_the_finished_and_the_renamed_is_nothing():
    core = make_core()
    core.abort("nobody")
    batch = requests(3, max_tokens=3)
    run(core, batch)
    core.abort("a")
    core.submit(batch[0])
    assert core.run()["a"].finish_reason == "length"
    core.submit(batch[0])
    core.abort("a")
    core.abort("a")
    assert core.run()["a"].finish_reason == "abort"
    core.submit(batch[0])
    assert core.run()["a"].finish_reason == "length"


def test_an_abort_that_comes_too_late_does_not_hit_the_next_of_that_name():
    """Aborted inside the very step that ends it, from another thread or a criterion."""
    core = make_core()

    def criterion(output):
        core.abort("a")
        return len(output) == 1

    request = GenerateRequest((1, 2), GREEDY, request_id="a", stop_criterion=criterion)
    assert run(core, [request])["a"].finish_reason == "stop"
    again = GenerateRequest((1, 2), GREEDY, request_id="a", max_tokens=3)
    assert run(core, [again])["a"].finish_reason == "length"


def test_ids_must_differ_while_they_run_and_made_up_ones_do_not_collide():
    core = make_core()
    core.submit(GenerateRequest((1,), request_id="request-2"))
    with pytest.raises(ValueError, match="'request-2' is in use"):
        core.submit(GenerateRequest((1,), request_id="request-2"))
    made_up = [core.submit(GenerateRequest((1,), GREEDY, max_tokens=2)) for _ in range(4)]
    assert len({"request-2", *made_up}) == 5
    assert len(core.run()) == 5


# The drafter's state ----------------------------------------------------------------------------


def test_ngrams_of_one_request_are_never_proposed_to_another():
    """NG-1: a long request, then a short one of the same name on the same engine."""
    letters = MarkovTable(20, 1, seed=2)
    core = make_core(letters, proposers=[NgramProposer(1, 4)], kappa=6)
    long = GenerateRequest(tuple(range(10, 20)) * 12, max_tokens=60, seed=1, request_id="a")
    short = GenerateRequest((1, 2, 3, 1, 2), max_tokens=60, seed=2, request_id="a")
    run(core, [long])
    result = run(core, [short])["a"]
    fresh = run(make_core(letters, proposers=[NgramProposer(1, 4)], kappa=6), [short])["a"]
    assert [r.drafted for r in result.records] == [r.drafted for r in fresh.records]
    tokens = [*short.prompt_ids, *result.token_ids]
    assert any(record.drafted for record in result.records)
    for record in result.records:
        assert set(record.drafted) <= set(tokens[: record.position])


def test_a_drafter_that_keeps_its_table_is_seen():
    class Hoarder(ScriptedProposer):
        """Proposes what followed the last token in whatever it saw first."""

        seen = None

        def __init__(self):
            super().__init__(self.follow, "hoarder")

        def follow(self, request):
            self.seen = self.seen or list(request.token_ids)
            return self.seen[: request.kappa]

    core = make_core(MarkovTable(20, 1, seed=2), proposers=[Hoarder()], kappa=3)
    run(core, [GenerateRequest(tuple(range(10, 20)), max_tokens=6, seed=1)])
    short = GenerateRequest((1, 2, 3), max_tokens=6, seed=2)
    (result,) = run(core, [short]).values()
    tokens = [*short.prompt_ids, *result.token_ids]
    assert any(not set(r.drafted) <= set(tokens[: r.position]) for r in result.records)
