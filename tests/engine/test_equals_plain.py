"""With speculation on, greedy text is the text of plain decoding: caches, edges, ties.

Every check compares with the same request at kappa 0, and faults are planted to show
that it can fail.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from engine_kit import (
    DRAFTERS,
    GREEDY,
    NEAR,
    TABLE,
    VOCAB,
    answers,
    check_equal,
    corrupt_every,
    drafter,
    held,
    ids,
    make_core,
    plain,
    requests,
    run,
    run_alone,
)

from draftproof.backends.table import (
    ArrayTable,
    MarkovTable,
    PagedStore,
    PositionTable,
    TableBackend,
)
from draftproof.core.params import GREEDY_TEMPERATURE, SamplingParams
from draftproof.engine import EngineCore, GenerateRequest, SchedulerConfig
from draftproof.engine.session import Session
from draftproof.errors import PromptError
from draftproof.proposers import DraftModelProposer
from draftproof.testing.scripted import FixedProposer, OracleProposer, ScriptedProposer
from draftproof.verify import executor as executor_module


@pytest.mark.parametrize("kappa", [1, 2, 4, 8])
@pytest.mark.parametrize("name", DRAFTERS)
def test_no_drafter_changes_greedy_text(name, kappa):
    batch = requests(3, 1, 9, 6, max_tokens=40)
    results = check_equal(batch, DRAFTERS[name], kappa)
    drafted = sum(result.stats.num_draft_tokens for result in results.values())
    assert (drafted == 0) == (name == "declining")


class KeepsRejected(TableBackend):
    """Rolls back one token less than it says: a rejected draft stays in the cache."""

    def truncate(self, sequence_id, length):
        tokens = self.store.cache.tokens(sequence_id)
        super().truncate(sequence_id, length)
        if len(tokens) > length > 0:
            super().truncate(sequence_id, length - 1)
            self.store.append(
                sequence_id, tokens[length : length + 1], np.array([length - 1]), [], 1
            )


class RightForTheFirstRow(KeepsRejected):
    """Rolls back as it should for one row only, as with one offset for all."""

    first = None

    def truncate(self, sequence_id, length):
        self.first = self.first or sequence_id
        if sequence_id == self.first:
            TableBackend.truncate(self, sequence_id, length)
        else:
            super().truncate(sequence_id, length)


@pytest.mark.parametrize("fault", [KeepsRejected, RightForTheFirstRow])
def test_a_cache_that_keeps_rejected_drafts_is_seen(fault):
    batch = requests(3, 7, 12, max_tokens=60)
    known = answers(batch)
    faulty = EngineCore(fault(TABLE), proposers=[OracleProposer(known, corrupt_every(3))], kappa=4)
    assert ids(run(faulty, batch)) != ids(plain(batch))


# Ties (GR-2) --------------------------------------------------------------------------------


TIED = ArrayTable([0.1, 0.4, 0.4, 0.1])


@pytest.mark.parametrize("draft", [(1,), (2,), (3,), (1, 2), (2, 1), (1, 1, 1)])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(top_k=1), SamplingParams(top_p=1e-9)])
def test_a_tie_goes_to_the_first_index_everywhere(params, draft):
    core = make_core(TIED, proposers=[FixedProposer(draft)], kappa=3)
    result = run(core, [GenerateRequest((0,), params, max_tokens=12)])["request-0"]
    assert result.token_ids == [1] * 12


def test_a_drafter_breaks_ties_as_its_target_does():
    core = make_core(TIED, proposers=[DraftModelProposer(TableBackend(TIED))], kappa=3)
    result = run(core, [GenerateRequest((0,), GREEDY, max_tokens=13)])["request-0"]
    assert result.token_ids == [1] * 13
    assert result.stats.acceptance_rate == 1.0


def test_a_verifier_that_takes_the_last_of_equals_is_seen(monkeypatch):
    original = executor_module.target_law

    def backwards(logits, params, history, extra=(), allowed=None, **options):
        turned = original(np.ascontiguousarray(logits[::-1]), params, history, extra)
        return type(turned)(len(logits) - 1 - turned.token, len(logits))

    monkeypatch.setattr(executor_module, "target_law", backwards)
    core = make_core(TIED, proposers=[FixedProposer((1,))], kappa=3)
    assert (
        run(core, [GenerateRequest((0,), GREEDY, max_tokens=4)])["request-0"].token_ids != [1] * 4
    )


# Bookkeeping of both caches (KV-1, KV-3, KV-4) -------------------------------------------------


def test_a_drafter_that_is_the_target_is_always_right():
    """200 rounds; the law depends on absolute positions, so a shifted position shows."""
    for table in (TABLE, PositionTable(VOCAB, seed=5, spread=1.5)):
        batch = requests(5, max_tokens=1001)
        core = make_core(
            table,
            store=PagedStore(600),
            context_length=2048,
            proposers=[
                DraftModelProposer(TableBackend(table, PagedStore(600), context_length=2048))
            ],
            kappa=4,
        )
        result = run(core, batch)["a"]
        assert result.stats.num_drafts == 200
        assert result.stats.acceptance_rate == 1.0
        assert {record.num_accepted for record in result.records[1:]} == {4}


@pytest.mark.parametrize("rule", ["standard", "block", "coupled"])
def test_a_drafter_that_is_the_target_is_right_when_it_samples_too(rule):
    """Under ``coupled`` only if both race over the same noise."""
    batch = requests(5, 8, params=SamplingParams(temperature=0.9), max_tokens=101, rule=rule)
    core = make_core(proposers=[DraftModelProposer(TableBackend(TABLE))], kappa=4)
    for result in run(core, batch).values():
        assert result.stats.num_draft_tokens == 80
        assert result.stats.acceptance_rate == 1.0


class Corrupted(DraftModelProposer):
    """A perfect drafter whose every third proposal is changed on its way out."""

    count = 0

    def propose(self, requests):
        drafts = []
        for draft in super().propose(requests):
            tokens = []
            for token in draft.token_ids:
                self.count += 1
                tokens.append((token + 1) % VOCAB if self.count % 3 == 0 else token)
            drafts.append(replace(draft, token_ids=tuple(tokens)))
        return drafts


def test_what_precedes_a_wrong_draft_is_always_accepted():
    batch = requests(5, max_tokens=300)
    core = make_core(proposers=[Corrupted(TableBackend(TABLE))], kappa=4)
    result = run(core, batch)["a"]
    truth = [*batch[0].prompt_ids, *plain(batch)["a"].token_ids]
    kept = []
    for record in result.records:
        right = truth[record.position : record.position + len(record.drafted)]
        agreeing = 0
        while agreeing < len(right) and record.drafted[agreeing] == right[agreeing]:
            agreeing += 1
        assert record.num_accepted == agreeing
        kept.append(agreeing)
    assert set(kept) >= {0, 1, 2}


def scripted_counts(known, counts):
    """An oracle that is right for ``counts[row][round]`` tokens, then wrong."""
    rounds = dict.fromkeys(known, 0)

    def script(request):
        answer = known[request.request_id]
        begin = len(request.token_ids)
        ahead = answer[begin : begin + request.kappa]
        cycle = counts[request.request_id]
        right = cycle[rounds[request.request_id] % len(cycle)]
        rounds[request.request_id] += 1
        return [t if i < right else (t + 1) % VOCAB for i, t in enumerate(ahead)]

    return ScriptedProposer(script)


def lengths_after(core, batch, num_steps):
    """Step, noting after each step how far each row's cache is behind its tokens."""
    for request in batch:
        core.submit(request)
    seen, tokens = [], {request.request_id: len(request.prompt_ids) for request in batch}
    for _ in range(num_steps):
        for output in core.step():
            tokens[output.request_id] += len(output.tokens)
        sessions = core._sessions.values()
        seen.append(
            [
                (session.request_id, core.target.length(session.sequence_id) - len(session.tokens))
                for session in sessions
                if session.num_generated
            ]
        )
    return seen


def test_the_cache_is_one_token_behind_after_every_round():
    batch = requests(3, 7, 12, max_tokens=400)
    known = answers(batch)
    counts = {"a": (3, 4, 1, 0, 4, 2), "b": (0, 2, 4), "c": (4, 0, 1)}
    core = make_core(proposers=[scripted_counts(known, counts)], kappa=4)
    seen = lengths_after(core, batch, 30)
    assert all(lag == -1 for row in seen for _, lag in row)
    assert sum(map(len, seen)) >= 80


def test_ragged_rows_roll_back_by_their_own_amounts_for_50_rounds():
    batch = requests(3, 7, 12, max_tokens=151)
    known = answers(batch)
    counts = {"a": (0, 2, 4), "b": (2, 4, 0), "c": (4, 0, 2)}
    core = make_core(proposers=[scripted_counts(known, counts)], kappa=4)
    together = run(core, batch)
    alone = run_alone(lambda: make_core(proposers=[scripted_counts(known, counts)], kappa=4), batch)
    for name, result in together.items():
        assert result.token_ids == alone[name].token_ids == plain(batch)[name].token_ids
        assert [r.num_accepted for r in result.records] == [
            r.num_accepted for r in alone[name].records
        ]
        assert len(result.records) >= 50
        assert {r.num_accepted for r in result.records[1:-2]} == {0, 2, 4}


# Edges of the context (CR-1) --------------------------------------------------------------------


@pytest.mark.parametrize("length", range(26, 32))
@pytest.mark.parametrize("name", ["oracle", "junk", "ngram", "self", "over budget"])
def test_the_context_of_the_target_is_a_limit_for_drafts(name, length):
    batch = requests(length, max_tokens=100)
    known = {k: [*v, *[0] * 20] for k, v in answers(batch, context_length=32).items()}
    core = make_core(context_length=32, proposers=[drafter(name, known)], kappa=8)
    result = run(core, batch)["a"]
    assert result.token_ids == plain(batch, context_length=32)["a"].token_ids
    assert result.finish_reason == "length"
    assert len(result.token_ids) == 32 - length
    again = requests(4, max_tokens=10)
    assert ids(run(core, again)) == ids(plain(again))


def test_a_prompt_that_fills_the_context_is_refused():
    core = make_core(context_length=32)
    with pytest.raises(PromptError, match="32 tokens; the context of table is 32"):
        core.submit(requests(32)[0])
    (result,) = run(core, requests(31)).values()
    assert len(result.token_ids) == 1


def test_drafts_past_the_context_are_seen(monkeypatch):
    monkeypatch.setattr(Session, "kappa_for_round", lambda self: self.kappa)
    batch = requests(29, max_tokens=100)
    core = make_core(context_length=32, proposers=[FixedProposer((1,))], kappa=8)
    assert run(core, batch, check=False)["a"].error is not None


@pytest.mark.parametrize("length", [10, 14, 15, 16, 17, 30, 40])
def test_the_context_of_the_drafter_ends_drafting_and_nothing_else(length):
    batch = requests(length, max_tokens=24)
    model = DraftModelProposer(TableBackend(TABLE, context_length=16))
    core = make_core(context_length=64, proposers=[model], kappa=8)
    result = run(core, batch)["a"]
    assert ids({"a": result}) == ids(plain(batch, context_length=64))
    assert result.finish_reason == "length"
    for record in result.records:
        if record.position > 16:
            assert record.drafted == ()
    assert (result.stats.num_draft_tokens > 0) == (length < 16)
    assert any("past the drafter's context of 16 tokens" in note for note in result.notes)
    assert ids(run(core, requests(4, max_tokens=6))) == ids(plain(requests(4, max_tokens=6)))


# Cold temperatures (CR-3) -----------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-6, 1e-4, 1e-2])
def test_tiny_temperatures_draft_and_stay_finite(temperature):
    params = SamplingParams(temperature=temperature)
    batch = requests(5, 9, params=params, max_tokens=30)
    model = DraftModelProposer(TableBackend(NEAR))
    core = make_core(proposers=[model], kappa=4, rule="sample-match")
    results = run(core, batch)
    assert all(r.stats.num_draft_tokens > 0 for r in results.values())
    assert ids(results) == ids(plain(batch, rule="sample-match"))
    if temperature < GREEDY_TEMPERATURE:
        cold = [replace(request, params=GREEDY) for request in batch]
        assert ids(results) == ids(plain(cold))
        assert all(r.exactness == "greedy" for r in results.values())


# Ragged rows (RB-1) and unverified drafts (NG-3) ------------------------------------------------


@pytest.mark.parametrize("order", list(permutations((0, 1, 3, 5)))[::5])
def test_rows_with_unequal_drafts_equal_their_solo_runs(order):
    """The last token is certain: reading a -1 pad as an index would accept it."""
    rows = {(token,): [*[0.0] * (VOCAB - 1), 1.0] for token in range(VOCAB)}
    for table in (TABLE, MarkovTable(VOCAB, 1, rows=rows)):
        batch = requests(4, 5, 6, 7, max_tokens=25)
        widths = dict(zip("abcd", order, strict=True))
        core = make_core(
            table,
            proposers=[ScriptedProposer(lambda r, w=widths: [2] * min(w[r.request_id], r.kappa))],
            kappa=5,
        )
        results = run(core, batch)
        assert ids(results) == ids(plain(batch, table))
        for name, result in results.items():
            assert {len(r.drafted) for r in result.records[1:-5]} == {widths[name]}
            assert all(0 <= token < VOCAB for token in result.token_ids)


@pytest.mark.parametrize("kappa", range(1, 9))
def test_junk_is_never_committed(kappa):
    rows = {(token,): [1 / 3, 1 / 3, 1 / 3, 0.0] for token in range(4)}
    table = MarkovTable(4, 1, rows=rows)
    core = make_core(table, proposers=[FixedProposer((3,))], kappa=kappa)
    for params in (GREEDY, SamplingParams()):
        for length in (1, kappa):
            core.proposers["fixed"]._script = lambda r, n=length: [3] * min(n, r.kappa)
            request = GenerateRequest((3, 3, 3), params, max_tokens=30, seed=1)
            (result,) = run(core, [request]).values()
            assert 3 not in result.token_ids
            assert result.stats.num_accepted_tokens == 0
            assert result.stats.num_draft_tokens > 0


def test_nothing_is_held_after_all_requests_ended():
    batch = requests(3, 9, 20, max_tokens=30)
    core = make_core(
        store=PagedStore(prefix_caching=False),
        proposers=[DraftModelProposer(TableBackend(NEAR))],
        kappa=4,
        scheduler=SchedulerConfig(prefill_chunk=4),
    )
    run(core, batch)
    assert held(core) == (0, 0)
    assert core.proposers["draft-model"].num_requests == 0
