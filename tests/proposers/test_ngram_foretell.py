"""What the n-gram drafter tells before it drafts."""

from __future__ import annotations

import pytest

from draftproof.core.params import SamplingParams
from draftproof.core.policy import History
from draftproof.core.protocols import Foreteller, ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.proposers import DraftModelProposer, NgramProposer


@pytest.mark.parametrize(
    ("tokens", "sign"),
    [
        ([1, 2, 3, 4, 5, 6], 0),
        ([7, 8, 1, 2, 3, 7, 8], 1),
        ([6, 7, 8, 1, 2, 3, 6, 7, 8], 2),
        ([5, 6, 7, 8, 1, 2, 5, 6, 7, 8], 2),
        ([4, 5, 6, 7, 8, 1, 4, 5, 6, 7, 8], 3),
    ],
)
def test_the_longer_the_match_the_firmer(tokens, sign):
    drafter = NgramProposer(2, 5)
    assert isinstance(drafter, Foreteller)
    assert drafter.foretell("a", tokens) == sign
    request = ProposalRequest(
        "a", tokens, 3, SamplingParams(temperature=0.0), History(()), CoinSource(0).round(0), False
    )
    assert bool(drafter.propose([request])[0].token_ids) == (sign > 0)


def test_the_longest_that_is_looked_for_is_firm():
    assert NgramProposer(2, 2).foretell("a", [7, 8, 1, 7, 8]) == 3


def test_requests_are_told_apart_and_forgotten():
    drafter = NgramProposer(2, 5)
    assert drafter.foretell("a", [7, 8, 1, 7, 8]) == 1
    assert drafter.foretell("b", [1, 7, 8]) == 0
    drafter.release("a")
    drafter.release("b")
    assert drafter.num_requests == 0


def test_a_drafter_that_cannot_know_does_not_tell():
    assert not hasattr(DraftModelProposer, "foretell")
