"""Prompt lookup: what is proposed, from where, and that it stays within the request."""

import pytest

from draftproof.backends.table import FunctionTable, MarkovTable, TableBackend
from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.errors import ConfigError
from draftproof.proposers import NgramProposer
from draftproof.testing.scripted import FixedProposer

GREEDY = SamplingParams(temperature=0.0)


def request(tokens, kappa=4, name="a"):
    coins = CoinSource(1).round(len(tokens))
    return ProposalRequest(name, tokens, kappa, GREEDY, History(tokens), coins)


def propose(tokens, kappa=4, **options):
    return NgramProposer(**options).propose([request(tokens, kappa)])[0]


@pytest.mark.parametrize(
    ("tokens", "options", "expected"),
    [
        # The match of three beats the newer match of two.
        ([1, 2, 3, 7, 8, 9, 2, 3, 5, 5, 1, 2, 3], {"min_n": 2, "max_n": 3}, (7, 8, 9, 2)),
        # With matches of at most two, the newer one wins.
        ([1, 2, 3, 7, 8, 9, 2, 3, 5, 5, 1, 2, 3], {"min_n": 2, "max_n": 2}, (5, 5, 1, 2)),
        # Of equal matches the most recent one.
        ([4, 5, 1, 4, 5, 2, 4, 5], {"min_n": 2, "max_n": 5}, (2, 4, 5, 2)),
        # The suffix itself is no match.
        ([1, 2, 3, 4], {"min_n": 1, "max_n": 4}, ()),
        # A match that reaches the end runs on with its period.
        ([9, 6, 7, 6, 7], {"min_n": 2, "max_n": 2}, (6, 7, 6, 7)),
        ([7, 7, 7], {"min_n": 1, "max_n": 3}, (7, 7, 7, 7)),
        # Too short a match, too short a text.
        ([1, 2, 1], {"min_n": 2, "max_n": 3}, ()),
        ([1], {"min_n": 1, "max_n": 3}, ()),
        # Token 0 is a token.
        ([0, 0, 3, 0, 0], {"min_n": 2, "max_n": 2}, (3, 0, 0, 3)),
    ],
)
def test_what_is_proposed(tokens, options, expected):
    draft = propose(tokens, **options)
    assert draft.token_ids == expected
    assert draft.laws is None
    assert (draft.note == "") == bool(expected)


@pytest.mark.parametrize("kappa", [1, 2, 3, 9])
def test_the_budget_is_filled_and_kept(kappa):
    assert len(propose([1, 2, 3, 1, 2], kappa)) == kappa


@pytest.mark.parametrize(("low", "high"), [(0, 3), (4, 3), (-1, 2)])
def test_empty_ranges_are_refused(low, high):
    with pytest.raises(ConfigError, match=f"{low}..{high}"):
        NgramProposer(low, high)


def test_other_list_object_and_rewritten_text_are_noticed():
    proposer = NgramProposer(1, 3)
    text = [1, 2, 3, 1, 2]
    proposer.propose([request(text)])
    assert proposer.propose([request([1, 2, 9, 1, 2])])[0].token_ids == (9, 1, 2, 9)
    assert proposer.propose([request([1, 2])])[0].token_ids == ()
    text[:] = [5, 6, 5]
    assert proposer.propose([request(text)])[0].token_ids == (6, 5, 6, 5)


def test_ng1_short_request_after_a_long_one_sees_only_itself():
    secret = list(range(100, 160)) * 3
    proposer = NgramProposer(1, 4)
    proposer.propose([request(secret, name="slot")])
    proposer.release("slot")
    assert proposer.num_requests == 0
    own = [1, 100, 2, 1, 100]
    for _ in range(20):
        draft = proposer.propose([request(own, name="slot")])[0]
        assert draft.token_ids
        windows = [tuple(own[i : i + 2]) for i in range(len(own) - 1)]
        assert all(
            pair in windows for pair in zip(draft.token_ids, draft.token_ids[1:], strict=False)
        )
        assert draft == NgramProposer(1, 4).propose([request(list(own))])[0]
        own += draft.token_ids[:1]
    assert not set(own) & set(range(101, 160))


def test_ng1_concurrent_requests_keep_apart():
    proposer = NgramProposer(1, 4)
    drafts = proposer.propose([request([1, 2, 3, 1], name="a"), request([1, 5, 6, 1], name="b")])
    assert [draft.token_ids for draft in drafts] == [(2, 3, 1, 2), (5, 6, 1, 5)]


def test_ng2_work_does_not_grow_with_the_range():
    # Timings are in the benchmarks. What a test can pin down: the index holds the same arrays
    # for every range, and only new tokens are ingested.
    from draftproof.proposers import _suffix_match

    seen = []

    class Counting(_suffix_match.SuffixMatchIndex):
        def extend(self, token_ids):
            seen.append(len(token_ids))
            super().extend(token_ids)

        def _survivors(self, ends, length):
            seen_lengths.append(length)
            return super()._survivors(ends, length)

    text = [t % 7 for t in range(5000)] + [8] + [t % 7 for t in range(300)]
    for high in (4, 64, 500):
        index, seen_lengths = Counting(2, high), []
        index.extend(text)
        index.extend([9, 0, 1, 2])
        assert index.longest() is not None
        assert len(seen_lengths) <= 12
    assert seen == [5301, 4] * 3


def test_ng3_the_first_draft_is_verified(loop):
    # Prompt [7, 7, 7] proposes 7; the target never wants it.
    def never_seven(held):
        return [0.0 if token == 7 else 1 / 7 for token in range(8)]

    table = FunctionTable(8, never_seven)
    for kappa in range(1, 9):
        for params in (GREEDY, SamplingParams()):
            plain = loop(TableBackend(table), None, [7, 7, 7], params=params, seed=3)
            plain.rounds(12, 0)
            run = loop(TableBackend(table), NgramProposer(1, 3), [7, 7, 7], params=params, seed=3)
            first, verdict = run.round(kappa)
            assert first.token_ids == (7,) * kappa
            assert verdict.num_accepted == 0
            assert 7 not in run.run.tokens[3:]
            if params.is_greedy:
                run.rounds(11, kappa)
                assert run.run.tokens[:15] == plain.run.tokens


@pytest.mark.parametrize("kappa", range(1, 9))
def test_ng3_junk_of_zero_mass_changes_nothing_under_greedy(loop, kappa):
    table = MarkovTable(6, None, seed=4, rows={(): [0.2, 0.2, 0.2, 0.2, 0.2, 0.0]}, zeros=0.4)
    plain = loop(TableBackend(table), None, [1, 2], params=GREEDY)
    plain.rounds(30, 0)
    worst = int(table.probs(*_context([1, 2])).argmin())
    junk = loop(TableBackend(table), FixedProposer([worst]), [1, 2], params=GREEDY)
    while len(junk.run.tokens) < 32:
        junk.round(kappa)
    assert junk.run.tokens[:32] == plain.run.tokens
    assert junk.run.accepted[0] == 0


def _context(tokens):
    import numpy as np

    return np.asarray(tokens), np.arange(len(tokens))
