"""Which rows travel together: shared prefixes, tight caches, budgets, fairness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_kit import (
    GREEDY,
    NEAR,
    TABLE,
    VOCAB,
    WARM,
    drafter,
    ids,
    make_core,
    plain,
    prompts,
    requests,
    run,
    run_alone,
)

from draftproof.backends.table import PagedStore, TableBackend
from draftproof.engine import EngineCore, GenerateRequest, SchedulerConfig
from draftproof.engine.scheduler import Scheduler
from draftproof.errors import ConfigError
from draftproof.proposers import DraftModelProposer


def sharing(num_requests, length=40, tail=3, max_tokens=6):
    """Requests with one long prefix and tails of their own."""
    (prefix,) = prompts(length)
    tails = prompts(*[tail] * num_requests, seed=9)
    return [
        GenerateRequest((*prefix, *t), WARM, max_tokens=max_tokens, seed=i, request_id=f"r{i}")
        for i, t in enumerate(tails)
    ]


# Shared prefixes --------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [4, 16, 256])
def test_a_shared_prefix_is_computed_once(chunk):
    batch = sharing(8)
    config = SchedulerConfig(prefill_chunk=chunk)
    core = make_core(scheduler=config)
    results = run(core, batch)
    assert ids(results) == ids(run_alone(lambda: make_core(scheduler=config), batch))
    first, others = 43 + 5, 3 + 5  # prompt and all outputs but the last are forwarded
    assert core.target.num_tokens == first + 7 * others
    unshared = make_core(scheduler=config, store=PagedStore(prefix_caching=False))
    assert ids(run(unshared, batch)) == ids(results)
    assert unshared.target.num_tokens == 8 * first


def test_a_scheduler_that_does_not_wait_computes_the_prefix_again(monkeypatch):
    monkeypatch.setattr(Scheduler, "_is_computing_prefix_of", lambda self, other, session: False)
    core = make_core()
    run(core, sharing(8))
    assert core.target.num_tokens == 8 * (43 + 5)


def test_waiting_for_a_prefix_ends_when_its_owner_leaves():
    for leave in ("abort", "fail"):
        batch = sharing(3)
        faults = {"nan_after": (batch[0].prompt_ids[-1],)} if leave == "fail" else {}
        core = make_core(scheduler=SchedulerConfig(prefill_chunk=8), faults=faults)
        for request in batch:
            core.submit(request)
        core.step()
        if leave == "abort":
            core.abort("r0")
        results = core.run()
        assert results["r0"].error is not None
        assert set(results) == {"r0", "r1", "r2"}
        assert core.target.num_open == 0


def test_requests_without_a_common_page_do_not_wait():
    batch = requests(9, 10, 11, max_tokens=3)
    core = make_core()
    for request in batch:
        core.submit(request)
    assert len(core.step()) == 3


# Preemption -------------------------------------------------------------------------------------


def tight(num_pages, **options):
    return make_core(
        store=PagedStore(num_pages),
        proposers=[DraftModelProposer(TableBackend(NEAR))],
        kappa=3,
        **options,
    )


@pytest.mark.parametrize("num_pages", [9, 11, 16, 24])
@pytest.mark.parametrize("chunk", [4, 256])
def test_every_request_ends_however_tight_the_cache_is(num_pages, chunk):
    """Livelock would show as steps without end; each pass must move the oldest row."""
    batch = requests(*[5, 17, 3, 9, 12, 1] * 4, params=WARM, max_tokens=15, rule="coupled")
    core = tight(num_pages, scheduler=SchedulerConfig(prefill_chunk=chunk, prefill_budget=8))
    for request in batch:
        core.submit(request)
    results, steps = {}, 0
    while core.has_work:
        calls = core.target.num_calls
        outputs = core.step()
        steps += 1
        assert core.target.num_calls == calls + 1
        for output in outputs:
            if output.result is not None:
                results[output.request_id] = output.result
        assert steps < 2000
    assert ids(results) == ids(plain(batch))
    assert core.num_preemptions > 0 or num_pages == 24
    core.target.store.cache.check_integrity()
    assert core.target.num_open == 0


class Watched(Scheduler):
    """Checks each victim: nobody younger may run on."""

    def _preempt(self, session):
        assert session.arrival == max(other.arrival for other in self.running)
        super()._preempt(session)


@pytest.mark.parametrize("num_pages", [9, 11, 13])
@pytest.mark.parametrize("max_pass_tokens", [None, 1, 9])
def test_only_the_youngest_gives_its_pages_back(num_pages, max_pass_tokens):
    """So the oldest always moves on, and a queue of requests cannot chase itself."""
    config = SchedulerConfig(prefill_chunk=4, prefill_budget=8, max_pass_tokens=max_pass_tokens)
    core = tight(num_pages)
    core._scheduler = Watched(core.target, config)
    batch = requests(*[5, 17, 3, 9, 12, 1] * 4, params=WARM, max_tokens=15, rule="coupled")
    assert ids(run(core, batch)) == ids(plain(batch))
    assert core.num_preemptions > 0 or max_pass_tokens == 1
    if max_pass_tokens:
        assert all(sum(row) <= max_pass_tokens or len(row) == 1 for row in passes(core))


def test_requests_end_in_the_order_in_which_they_came():
    batch = [
        GenerateRequest(prompt, GREEDY, max_tokens=20, request_id=f"{index:02}")
        for index, prompt in enumerate(prompts(*[8] * 10))
    ]
    core = make_core(store=PagedStore(16))
    order = []
    for request in batch:
        core.submit(request)
    while core.has_work:
        order += [output.request_id for output in core.step() if output.result is not None]
    assert core.num_preemptions > 0
    assert order == sorted(order)


def test_an_old_request_is_not_starved_by_a_stream_of_new_ones():
    """A long prompt that was sent away comes back before anyone who came later."""
    core = make_core(store=PagedStore(14), scheduler=SchedulerConfig(prefill_chunk=4))
    core.submit(requests(6, max_tokens=30)[0])
    core.step()
    old = GenerateRequest(prompts(30)[0], GREEDY, max_tokens=10, request_id="old")
    core.submit(old)
    steps = 0
    done = {}
    while "old" not in done:
        newcomer = GenerateRequest(prompts(5, seed=steps)[0], GREEDY, max_tokens=8)
        core.submit(newcomer)
        for output in core.step():
            if output.result is not None:
                done[output.request_id] = output.result
        steps += 1
        assert steps < 200
    assert done["old"].token_ids == plain([old])["old"].token_ids


def test_preempted_requests_use_what_the_cache_still_holds():
    batch = requests(20, 20, 20, max_tokens=25)
    core = make_core(store=PagedStore(20))
    run(core, batch)
    counters = core.target.store.cache.counters()
    assert core.num_preemptions > 0
    assert counters.prefix_hit_tokens > 0


# Budgets ----------------------------------------------------------------------------------------


def passes(core):
    """Tokens of each row of each pass."""
    rows = {}
    for record in core.target.passes:
        rows.setdefault(record.call, []).append(len(record.token_ids))
    return list(rows.values())


@pytest.mark.parametrize(
    ("rows", "chunk", "budget"), [(3, 4, 8), (1, 6, 6), (8, 16, 4), (4, 5, 100)]
)
def test_passes_stay_within_their_limits(rows, chunk, budget):
    batch = requests(23, 40, 7, 16, 31, max_tokens=9)
    config = SchedulerConfig(max_rows=rows, prefill_chunk=chunk, prefill_budget=budget)
    core = make_core(scheduler=config, proposers=[drafter("junk")], kappa=3)
    assert ids(run(core, batch)) == ids(plain(batch))
    for row_lengths in passes(core):
        assert len(row_lengths) <= rows
        assert max(row_lengths) <= max(chunk, 1 + 3)
        prefill = [n for n in row_lengths if n > 1 + 3]
        assert sum(prefill[:-1]) < budget  # the last chunk may pass the mark, never two


def test_prefill_is_cut_alike_alone_and_in_a_crowd():
    batch = requests(23, 40, 17, max_tokens=2)
    config = SchedulerConfig(prefill_chunk=8, prefill_budget=8)

    def cuts(core):
        found = {}
        for record in core.target.passes:
            found.setdefault(record.sequence_id, []).append(record.positions[0])
        return sorted(map(tuple, found.values()))

    together = make_core(scheduler=config)
    run(together, batch)
    alone = []
    for request in batch:
        core = make_core(scheduler=config)
        run(core, [request])
        alone += cuts(core)
    assert cuts(together) == sorted(alone)


def test_a_warm_prefix_does_not_shift_the_cuts():
    """The cache holds 12 tokens, the chunks are of 8: the first cut is at 16, not at 20."""
    (prompt,) = prompts(40)
    core = make_core(scheduler=SchedulerConfig(prefill_chunk=8, prefill_budget=8))
    run(core, [GenerateRequest(prompt[:13], GREEDY, max_tokens=1)])
    before = len(core.target.passes)
    run(core, [GenerateRequest(prompt, GREEDY, max_tokens=1)])
    assert [r.positions[0] for r in core.target.passes[before:]] == [12, 16, 24, 32]


def test_decoding_goes_on_while_a_long_prompt_is_read():
    core = make_core(scheduler=SchedulerConfig(prefill_chunk=4, prefill_budget=4))
    core.submit(requests(3, max_tokens=50)[0])
    core.step()
    core.submit(GenerateRequest(prompts(60)[0], GREEDY, max_tokens=3, request_id="long"))
    got = 0
    for _ in range(10):
        got += sum(len(output.tokens) for output in core.step() if output.request_id == "a")
    assert got == 10


@pytest.mark.parametrize(
    "field", ["max_rows", "prefill_chunk", "prefill_budget", "max_pass_tokens"]
)
def test_limits_below_one_are_refused(field):
    with pytest.raises(ConfigError, match=f"{field} is 0"):
        SchedulerConfig(**{field: 0})


def test_many_waiting_requests_cost_little():
    """Work per step may not grow with the queue: every comparison of prefixes is counted."""
    asked = 0
    original = Scheduler._is_computing_prefix_of

    class Counting(Scheduler):
        def _is_computing_prefix_of(self, other, session):
            nonlocal asked
            asked += 1
            return original(self, other, session)

    core = make_core(scheduler=SchedulerConfig(max_rows=2))
    core._scheduler = Counting(core.target, SchedulerConfig(max_rows=2))
    for index in range(300):
        prompt = prompts(6, seed=index)[0]
        core.submit(GenerateRequest(prompt, GREEDY, max_tokens=4))
    core.run()
    assert asked < 3 * 300


def test_the_same_passes_whatever_the_order_of_submission():
    """Rows of one pass are independent: B rows give what B passes give."""
    rng = np.random.default_rng(1)
    batch = requests(*rng.integers(1, 30, 8), params=WARM, max_tokens=10, rule="block")
    core = EngineCore(TableBackend(TABLE), proposers=[drafter("model")], kappa=4)
    expected = ids(run(core, batch))
    for _ in range(3):
        order = rng.permutation(len(batch))
        core = EngineCore(TableBackend(TABLE), proposers=[drafter("model")], kappa=4)
        assert ids(run(core, [batch[i] for i in order])) == expected
    seeds = [replace(request, seed=request.seed + 1) for request in batch]
    assert ids(run(core, seeds)) != expected
    assert TABLE.vocab_size == VOCAB
