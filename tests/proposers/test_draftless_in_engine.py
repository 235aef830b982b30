"""Drafters without a model in the engine: tight caches, aborts, reused names, failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_kit import NEAR, WARM, ids, make_core, plain, requests, run

from draftproof.backends.table import PagedStore, TableBackend
from draftproof.engine import reads
from draftproof.proposers import (
    DraftModelProposer,
    HybridProposer,
    PredictionProposer,
    SuffixProposer,
    prediction_usage,
)

DRAFTERS = {
    "suffix": lambda: SuffixProposer(min_score=0.02),
    "sharing": lambda: SuffixProposer(min_score=0.02, tenant_tokens=200),
    "small window": lambda: SuffixProposer(min_score=0.02, window=6),
    "prediction": PredictionProposer,
    "hybrid": lambda: HybridProposer(
        [PredictionProposer(), SuffixProposer(min_score=0.2)],
        DraftModelProposer(TableBackend(NEAR)),
    ),
}


def predicted(batch, name):
    """Each request with its own text as prediction, where it is read, with changes."""
    told = []
    for request in batch:
        text = plain([request])[request.request_id].token_ids
        wrong = [(token + 1) % 7 if i % 9 == 4 else token for i, token in enumerate(text)]
        prediction = tuple(wrong) if reads(DRAFTERS[name](), "prediction") else ()
        told.append(replace(request, prediction=prediction, tenant="t"))
    return told


@pytest.mark.parametrize("name", DRAFTERS)
def test_texts_survive_preemptions_and_reused_names(name):
    lengths = (5, 17, 3, 9, 12, 1)
    batch = predicted(requests(*lengths, params=WARM, max_tokens=20, rule="coupled"), name)
    core = make_core(store=PagedStore(12, 4), proposers=[DRAFTERS[name]()], kappa=4)
    expected = ids(plain(batch))
    for _ in range(2):  # the second time with the same names
        results = run(core, batch)
        assert ids(results) == expected
        assert sum(result.stats.num_accepted_tokens for result in results.values()) > 0
    assert core.num_preemptions > 0
    assert core.target.num_open == 0


@pytest.mark.parametrize("name", DRAFTERS)
def test_aborted_requests_leave_nothing_and_harm_nobody(name):
    batch = predicted(requests(5, 17, 3, 9, max_tokens=24), name)
    proposer = DRAFTERS[name]()
    core = make_core(proposers=[proposer], kappa=4)
    for request in batch:
        core.submit(request)
    results = {}
    for turn in range(200):
        if turn == 4:
            core.abort("b")
            core.abort("c")
        for output in core.step():
            if output.result is not None:
                results[output.request_id] = output.result
        if not core.has_work:
            break
    assert {name for name, result in results.items() if result.finish_reason == "abort"} == {
        "b", "c",
    }  # fmt: skip
    expected = ids(plain(batch))
    assert all(results[name].token_ids == expected[name] for name in "ad")
    parts = [proposer] if name != "hybrid" else [*proposer._draftless, proposer._model]
    assert all(part.num_requests == 0 for part in parts)


def test_rounds_without_drafts_between_are_caught_up_with():
    # The kappa of a request is fixed; what varies in an engine is the token budget and the
    # room, so that a drafter is asked again after rounds in which it was not.
    batch = predicted(requests(5, 17, params=WARM, max_tokens=40, rule="coupled"), "prediction")

    class Sometimes(PredictionProposer):
        turn = 0

        def propose(self, asked):
            self.turn += 1
            drafts = super().propose(asked) if self.turn % 5 in (0, 3) else None
            if drafts is None:
                raise ValueError("not now")
            return drafts

    results = run(make_core(proposers=[Sometimes()], kappa=4), batch)
    assert ids(results) == ids(plain(batch))
    for result in results.values():
        assert result.stats.num_accepted_tokens > 0
        assert any("not now" in note for note in result.notes)


def test_sources_and_usage_reach_the_records():
    (request,) = predicted(requests(12, max_tokens=60), "hybrid")
    core = make_core(proposers=[DRAFTERS["hybrid"]()], kappa=5)
    records = run(core, [request])["a"].records
    drafted = [record for record in records if record.drafted]
    assert all(len(record.draft_sources) == len(record.drafted) for record in drafted)
    assert {source for record in drafted for source in record.draft_sources} >= {"prediction"}
    usage = prediction_usage(records)
    count = sum(record.draft_sources.count("prediction") for record in drafted)
    assert usage.accepted_prediction_tokens + usage.rejected_prediction_tokens == count
    assert usage.accepted_prediction_tokens > 20
    assert usage.rejected_prediction_tokens > 0
