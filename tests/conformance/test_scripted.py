"""The scripted drafters do what their names say."""

import time

import pytest

from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.errors import BackendError
from draftproof.testing.scripted import (
    DecliningProposer,
    FixedProposer,
    FlickeringProposer,
    OracleProposer,
    OverBudgetProposer,
    RaisingProposer,
    SlowProposer,
)


def request(tokens, kappa=3, name="a"):
    coins = CoinSource(1).round(len(tokens))
    return ProposalRequest(name, tokens, kappa, SamplingParams(), History(tokens), coins)


def drafts(proposer, *requests):
    return [draft.token_ids for draft in proposer.propose(requests or [request([1, 2])])]


def test_oracle_tells_the_answer_while_the_text_follows_it():
    oracle = OracleProposer({"a": [1, 2, 3, 4, 5, 6]})
    assert drafts(oracle, request([1, 2]), request([1, 3]), request([1], name="b")) == [
        (3, 4, 5),
        (),
        (),
    ]
    assert drafts(oracle, request([1, 2, 3, 4, 5])) == [(6,)]
    wrong = OracleProposer({"a": [1, 2, 3, 4]}, corrupt=lambda at, t: 0 if at == 3 else t)
    assert drafts(wrong, request([1, 2])) == [(3, 0)]


def test_fixed_and_unlawful_ids_are_passed_on():
    assert drafts(FixedProposer([-1, 9])) == [(-1, 9, -1)]
    fixed = FixedProposer([4])
    drafts(fixed, request([1, 2], 2, "x"))
    fixed.release("x")
    assert fixed.calls == [("x", 2, 2)]
    assert fixed.released == ["x"]


def test_wrappers():
    fixed = FixedProposer([4])
    assert [drafts(FlickeringProposer(fixed, p)) for p in ((True,), (False,))] == [
        [(4, 4, 4)],
        [()],
    ]
    flicker = FlickeringProposer(fixed)
    assert [drafts(flicker)[0] for _ in range(4)] == [(4, 4, 4), (), (4, 4, 4), ()]
    assert drafts(OverBudgetProposer(fixed, 2)) == [(4,) * 5]
    assert DecliningProposer("why").propose([request([1])])[0].note == "why"
    raising = RaisingProposer(fixed, BackendError("no"), calls=[2])
    assert drafts(raising) == [(4, 4, 4)]
    with pytest.raises(BackendError):
        drafts(raising)
    assert drafts(raising) == [(4, 4, 4)]
    begin = time.perf_counter()
    assert drafts(SlowProposer(fixed, 0.02)) == [(4, 4, 4)]
    assert time.perf_counter() - begin >= 0.02
    assert raising.name == "fixed"
    raising.release("a")
    assert fixed.released == ["a"]
