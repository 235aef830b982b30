"""Drafters that return no drafts, stall, or fail again and again: who pays, and for how long."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from engine_kit import GREEDY, VOCAB, answers, ids, make_core, plain, requests, run

from draftproof.core.types import Draft, TreeDraft
from draftproof.testing.scripted import FixedProposer, OracleProposer


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
