"""What a run says about itself: counters, log probabilities, notes, labels, costs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from engine_kit import (
    DRAFTERS,
    GREEDY,
    NEAR,
    RULES,
    TABLE,
    VOCAB,
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

from draftproof.backends.table import ArrayTable, TableBackend
from draftproof.core.law import OneHotLaw
from draftproof.core.params import SamplingParams
from draftproof.core.stats import SpecDecodeStats, format_rate
from draftproof.engine import GenerateRequest
from draftproof.engine import step as step_module
from draftproof.engine.session import Session
from draftproof.proposers import DraftModelProposer, NgramProposer
from draftproof.testing.scripted import (
    DecliningProposer,
    FixedProposer,
    FlickeringProposer,
    OracleProposer,
)
from draftproof.verify import executor as executor_module

# Log probabilities (LP-1) -----------------------------------------------------------------------


def logprobs_of(result):
    return [(t.token_id, t.logprob, dict(t.top_logprobs)) for t in result.tokens]


def check_logprobs(results, expected):
    sources = Counter()
    for name, result in results.items():
        pairs = zip(logprobs_of(result), logprobs_of(expected[name]), strict=True)
        for (token, logprob, top), (plain_token, plain_logprob, plain_top) in pairs:
            assert token == plain_token
            assert abs(logprob - plain_logprob) < 1e-4
            assert logprob < 0.0
            assert top.keys() == plain_top.keys()
            assert token not in top or top[token] == logprob
            assert max(top.values()) >= logprob
        sources += Counter(t.source for t in result.tokens)
    return sources


@pytest.mark.parametrize("params", [GREEDY, WARM, SamplingParams(temperature=0.7, top_k=2)])
def test_logprobs_are_raw_and_the_same_in_both_modes(params):
    batch = requests(3, 9, 5, params=params, max_tokens=40, rule="sample-match", logprobs=3)
    core = make_core(proposers=[OracleProposer(answers(batch), corrupt_every(3))], kappa=4)
    results = run(core, batch)
    sources = check_logprobs(results, plain(batch))
    assert min(sources[kind] for kind in ("accepted", "recovered", "bonus", "sampled")) > 0
    for request in batch:
        held = list(request.prompt_ids)
        for token in results[request.request_id].tokens:
            law = TABLE.probs(np.array(held), np.arange(len(held)))
            assert token.logprob == pytest.approx(math.log(law[token.token_id]), abs=1e-5)
            held.append(token.token_id)


def test_logprobs_of_the_wrong_row_are_seen(monkeypatch):
    commit = step_module.commit_row

    def faulty(plan, row, verdict, executor, logits, target):
        wrong = np.broadcast_to(logits[row.first_row], logits.shape)
        return commit(plan, row, verdict, executor, wrong, target)

    batch = requests(3, 9, 5, max_tokens=40, logprobs=3)
    expected = plain(batch)
    monkeypatch.setattr(step_module, "commit_row", faulty)
    core = make_core(proposers=[OracleProposer(answers(batch), corrupt_every(3))], kappa=4)
    with pytest.raises(AssertionError):
        check_logprobs(run(core, batch), expected)


def test_zero_top_logprobs_still_give_the_tokens_own():
    (result,) = run(make_core(), requests(3, max_tokens=4, logprobs=0)).values()
    assert all(token.logprob < 0.0 and token.top_logprobs == () for token in result.tokens)
    (silent,) = run(make_core(), requests(3, max_tokens=4)).values()
    assert all(token.logprob is None and token.top_logprobs is None for token in silent.tokens)


# Counters (ME-1, ME-2, ME-4) --------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("rule", [None, *RULES])
def test_counters_add_up(name, rule):
    batch = requests(3, 9, 5, params=WARM, max_tokens=23, rule=rule)
    core = make_core(
        proposers=[drafter(name, answers(batch))], kappa=4, eos_token_ids=frozenset({6})
    )
    results = run(core, batch)
    total = SpecDecodeStats()
    for result in results.values():
        stats = result.stats
        assert stats == SpecDecodeStats.from_records(result.records)
        assert stats.num_emitted_tokens == len(result.tokens)
        assert sum(stats.num_emitted_per_source.values()) == len(result.tokens)
        position = len(result.prompt_ids)
        for record in result.records:
            assert record.position == position
            assert len(record.emitted) >= 1
            assert record.num_accepted <= len(record.drafted) <= 4
            assert len(record.emitted) <= record.num_accepted + 1
            cut = record.emitted[: record.num_accepted]
            assert cut == record.drafted[: len(cut)]
            position += len(record.emitted)
        assert [t for record in result.records for t in record.emitted] == result.token_ids
        assert stats.num_rounds == len(result.records)
        total = total.merge(stats)
    assert total == core.stats


@pytest.mark.parametrize("silent", [DecliningProposer("nothing fits"), FixedProposer((1,))])
def test_a_drafter_that_never_drafts_is_said_to_be_silent_not_bad(silent):
    if isinstance(silent, FixedProposer):
        silent._script = lambda request: []
    core = make_core(proposers=[silent], kappa=4)
    (result,) = run(core, requests(3, max_tokens=6)).values()
    stats = result.stats
    assert stats.num_draft_tokens == stats.num_drafts == 0
    assert math.isnan(stats.acceptance_rate)
    assert math.isnan(stats.mean_acceptance_length)
    assert format_rate(stats.acceptance_rate) == "n/a"
    assert stats.drafted_per_emitted == 0.0
    assert {token.source for token in result.tokens} == {"sampled"}
    assert {record.proposer for record in result.records} == {"none"}
    assert result.notes[0] == f"drafter {silent.name} never drafted in 4 rounds"
    if isinstance(silent, DecliningProposer):
        assert result.notes[1:] == ["nothing fits (in 4 of 4 rounds)"]


def test_a_cut_by_confidence_is_reported_with_its_volume():
    model = DraftModelProposer(TableBackend(NEAR), min_confidence=0.5)
    (result,) = run(make_core(proposers=[model], kappa=4), requests(3, max_tokens=60)).values()
    assert 0 < result.stats.drafted_per_emitted < 0.5
    assert any(note.startswith("confidence below 0.5 (in ") for note in result.notes)


def test_token_zero_is_a_genuine_draft():
    table = ArrayTable([0.9, 0.1])
    core = make_core(table, proposers=[FixedProposer((0,))], kappa=3)
    (result,) = run(core, [GenerateRequest((1,), GREEDY, max_tokens=9)]).values()
    assert result.token_ids == [0] * 9
    assert result.stats.acceptance_rate == 1.0
    assert result.stats.num_draft_tokens == 6


def test_silence_in_some_rounds_is_counted():
    batch = requests(3, max_tokens=30)
    flicker = FlickeringProposer(OracleProposer(answers(batch)), (True, False))
    result = run(make_core(proposers=[flicker], kappa=2), batch)["a"]
    asked = flicker.num_calls
    assert result.notes == [f"silent round (in {asked // 2} of {asked} rounds)"]


# Labels (SO-10, DI-6) ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_the_label_names_the_rule_that_ran(rule, monkeypatch):
    ran = Counter()
    original = executor_module.verify

    def noting(name, *parts):
        ran[name] += 1
        return original(name, *parts)

    monkeypatch.setattr(executor_module, "verify", noting)
    for kappa in (0, 3):
        core = make_core(proposers=[drafter("model")], kappa=kappa, rule=rule)
        (result,) = run(core, requests(3, params=WARM, max_tokens=9)).values()
        assert result.rule == rule
        own = requests(3, params=WARM, max_tokens=9, rule=rule)
        (result,) = run(make_core(proposers=[drafter("model")], kappa=kappa), own).values()
        assert result.rule == rule
    assert set(ran) == {rule}


def test_the_label_of_a_chosen_rule_says_which_was_chosen():
    for name, label in (("model", "block"), ("junk", "standard"), ("declining", "none")):
        core = make_core(proposers=[drafter(name)], kappa=3)
        (result,) = run(core, requests(3, params=WARM, max_tokens=20)).values()
        assert result.rule == label
    assert run(make_core(), requests(3, max_tokens=2))["a"].rule == "none"

    class Alternating(FixedProposer):
        """Says every other time which law its certain draft came from."""

        def propose(self, requests):
            drafts = super().propose(requests)
            laws = (OneHotLaw(1, VOCAB),) if len(self.calls) % 2 else None
            return [replace(draft, token_ids=(1,), laws=laws) for draft in drafts]

    mixed = make_core(proposers=[Alternating((1,))], kappa=1)
    (result,) = run(mixed, requests(3, params=WARM, max_tokens=20)).values()
    assert result.rule == "block+standard"


# What speculation costs when it is off, and what stays the same (PF-1, PF-4) ---------------------


def passes(core):
    return [(r.call, r.token_ids, r.positions) for r in core.target.passes]


def test_kappa_zero_is_plain_decoding_pass_by_pass():
    batch = requests(3, 40, 7, params=WARM, max_tokens=20)
    junk = FixedProposer((1,))
    core = make_core(proposers=[junk, NgramProposer()], kappa=0)
    bare = make_core()
    assert ids(run(core, batch)) == ids(run(bare, batch))
    assert passes(core) == passes(bare)
    assert junk.calls == []
    per_request = make_core(proposers=[junk], kappa=5)
    off = requests(3, 40, 7, params=WARM, max_tokens=20, kappa=0)
    assert ids(run(per_request, off)) == ids(run(bare, batch))
    assert passes(per_request) == passes(bare)[: len(passes(per_request))]
    assert junk.calls == []
    assert core.stats.num_drafts == 0


def test_an_off_switch_that_still_drafts_is_seen(monkeypatch):
    monkeypatch.setattr(Session, "kappa_for_round", lambda self: min(2, self.num_remaining - 1))
    junk = FixedProposer((1,))
    core, bare = make_core(proposers=[junk], kappa=0), make_core()
    batch = requests(3, max_tokens=20)
    run(core, batch)
    monkeypatch.undo()
    run(bare, batch)
    assert passes(core) != passes(bare)


@pytest.mark.parametrize("name", ["model", "ngram", "half-wrong"])
def test_two_equal_calls_take_the_same_rounds(name):
    batch = requests(5, 9, params=WARM, max_tokens=30)
    core = make_core(proposers=[drafter(name, answers(batch))], kappa=4)
    first, second = run(core, batch), run(core, batch)
    for key, result in first.items():
        assert result.records == second[key].records
        assert result.notes == second[key].notes


def test_kappa_is_a_limit_for_each_request():
    batch = [
        GenerateRequest((1, 2, 3), GREEDY, max_tokens=30, kappa=kappa, request_id=str(kappa))
        for kappa in (0, 1, 2, 5, 9)
    ]
    results = run(make_core(proposers=[FixedProposer((1,))], kappa=3), batch)
    for name, result in results.items():
        widths = {len(record.drafted) for record in result.records}
        assert max(widths) == int(name)
        assert result.token_ids == results["0"].token_ids


def test_the_clock_counts_every_pass():
    batch = requests(3, 9, max_tokens=12)
    core = make_core(proposers=[drafter("model")], kappa=3)
    run(core, batch)
    assert core.clock.num_passes == core.target.num_calls
    assert core.clock.num_pass_tokens == core.target.num_tokens
    parts = (core.clock.draft_s, core.clock.target_s, core.clock.verify_s, core.clock.other_s)
    assert min(parts) > 0.0
    assert core.clock.total_s == pytest.approx(sum(parts))
