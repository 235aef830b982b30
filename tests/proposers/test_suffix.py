"""Suffix drafts: what is proposed, how far, from where, and what is forgotten."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from suffix_kit import reference_draft, request

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.policy import SamplingParams
from draftproof.errors import ConfigError
from draftproof.proposers import SuffixProposer
from draftproof.testing import check_proposer

EAGER = 1e-9
ALL = 10**9

texts = st.integers(1, 4).flatmap(lambda v: st.lists(st.integers(0, v), min_size=1, max_size=70))
scores = st.sampled_from([EAGER, 0.05, 0.15, 0.4, 0.7])


def propose(tokens, kappa=8, **options):
    return SuffixProposer(**options).propose([request(tokens, kappa)])[0]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        # The match of three beats the newer match of two.
        ([1, 2, 3, 7, 8, 9, 2, 3, 5, 5, 1, 2, 3], (7, 8, 9, 2)),
        # Two of three say 6; the third is newer.
        ([4, 5, 6, 0, 4, 5, 6, 1, 4, 5, 8, 3, 4, 5], (6, 1, 4, 5)),
        # Of equally frequent ones the newest: 6 was seen last.
        ([4, 5, 8, 0, 4, 5, 6, 1, 4, 5, 8, 2, 4, 5, 6, 3, 4, 5], (6, 3, 4, 5)),
        # A match that reaches the end runs on with its period.
        ([9, 6, 7, 6, 7], (6, 7, 6, 7)),
        ([7, 7, 7], (7, 7, 7, 7)),
        # Nothing occurred before.
        ([1, 2, 3, 4], ()),
        ([1], ()),
        # Token 0 is a token.
        ([0, 0, 3, 0, 0], (3, 0, 0, 3)),
    ],
)
def test_what_is_proposed(tokens, expected):
    draft = propose(tokens, 4, min_score=EAGER)
    assert draft.token_ids == expected
    assert draft.laws is None
    assert (draft.note == "") == bool(expected)


@given(texts, st.integers(1, 9), scores, st.integers(1, 3), st.integers(3, 12))
def test_drafts_are_those_of_an_exhaustive_search(tokens, kappa, score, min_match, max_match):
    options = {"min_match": min_match, "max_match": max_match, "min_score": score}
    draft = propose(tokens, kappa, max_votes=ALL, **options)
    assert draft.token_ids == reference_draft(tokens, kappa, **options)


@given(texts, st.lists(texts, max_size=4), st.integers(1, 9), scores)
def test_shared_outputs_are_searched_exhaustively_too(tokens, outputs, kappa, score):
    proposer = SuffixProposer(max_votes=ALL, min_score=score, tenant_tokens=1000)
    for number, output in enumerate(outputs):
        name = f"earlier-{number}"
        earlier = request([77, *output], name=name, prompt=1, tenant="t", seed=2 + number)
        proposer.propose([earlier])
        proposer.release(name)
    draft = proposer.propose([request(tokens, kappa, tenant="t")])[0]
    assert draft.token_ids == reference_draft(tokens, kappa, min_score=score, shared=outputs)


@given(texts, st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_growing_in_pieces_gives_what_a_fresh_drafter_gives(tokens, sizes):
    # Rounds without drafts, long accepted drafts and resumed requests look like this.
    proposer, held = SuffixProposer(min_score=0.05), []
    for number in range(len(tokens)):
        size = sizes[number % len(sizes)]
        held += tokens[len(held) : len(held) + size]
        if held:
            fresh = propose(list(held), min_score=0.05)
            assert proposer.propose([request(held)])[0] == fresh


# -- how far -----------------------------------------------------------------------------


def test_a_longer_match_buys_a_longer_draft():
    lengths = []
    for match in (1, 2, 4, 8, 16, 32):
        text = list(range(100, 200))
        tokens = [*text, *text[:match]]
        lengths.append(len(propose(tokens, 64)))
    assert lengths == sorted(lengths)
    assert len(set(lengths)) == len(lengths)
    assert lengths[0] <= 2
    assert lengths[-1] >= 30


def test_a_split_vote_buys_a_shorter_draft_than_an_agreed_one():
    said = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 40, 50, 60], [1, 2, 3, 41, 51, 61]]
    agreed = propose([*said[0], *said[0], *said[0], 1, 2, 3], 6)
    split = propose([*said[1], *said[2], *said[0], 1, 2, 3], 6)
    assert len(split) < len(agreed)


def test_matches_that_are_too_short_draft_nothing():
    tokens = [1, 2, 3, 4, 9, 3, 4]
    assert propose(tokens, min_match=3).note == "no earlier match"
    assert propose(tokens, min_match=2, min_score=EAGER).token_ids
    draft = propose(tokens, min_score=0.99)
    assert draft.token_ids == ()
    assert "0.99" in draft.note


# -- whose text --------------------------------------------------------------------------


def test_other_list_object_and_rewritten_text_are_noticed():
    proposer = SuffixProposer(min_score=EAGER)
    text = [1, 2, 3, 1, 2]
    proposer.propose([request(text)])
    assert proposer.propose([request([1, 2, 9, 1, 2], 4)])[0].token_ids == (9, 1, 2, 9)
    assert proposer.propose([request([1, 2])])[0].token_ids == ()
    text[:] = [5, 6, 5]
    assert proposer.propose([request(text, 4)])[0].token_ids == (6, 5, 6, 5)
    assert proposer.num_requests == 1


def test_a_history_that_was_replaced_beyond_the_end_is_noticed():
    proposer = SuffixProposer(min_score=EAGER)
    text = list(range(50)) * 2
    proposer.propose([request(text)])
    replaced = [7, *text[1:], 3, 3]
    expected = propose(list(replaced), min_score=EAGER)
    assert proposer.propose([request(replaced)])[0] == expected


def test_ng1_short_request_after_a_long_one_sees_only_itself():
    for options in ({}, {"tenant_tokens": 1000}):
        proposer = SuffixProposer(min_score=EAGER, **options)
        proposer.propose([request(list(range(100, 160)) * 3, name="slot", prompt=1)])
        proposer.release("slot")
        assert proposer.num_requests == 0
        assert proposer.num_bytes == 0
        own = [1, 100, 2, 1, 100]
        for _ in range(20):
            draft = proposer.propose([request(own, name="slot")])[0]
            assert draft.token_ids
            assert set(draft.token_ids) <= set(own)
            own += draft.token_ids[:1]


def test_requests_that_run_at_once_keep_apart():
    proposer = SuffixProposer(min_score=EAGER, tenant_tokens=100)
    drafts = proposer.propose(
        [request([1, 2, 3, 1], 4, name="a", tenant="t"), request([9, 8, 1], name="b", tenant="t")]
    )
    assert [draft.token_ids for draft in drafts] == [(2, 3, 1, 2), ()]


SECRET = [50, 51, 52, 53, 54]


def learned(tenant="t", prompt=1, **options):
    """A drafter that saw one finished request of a tenant."""
    proposer = SuffixProposer(**{"min_score": EAGER, "tenant_tokens": 100, **options})
    tokens = [9, *SECRET[:2]]
    proposer.propose([request(tokens, name="first", prompt=prompt, tenant=tenant, seed=2)])
    tokens += SECRET[2:]  # committed after the last round in which it drafted
    proposer.release("first")
    return proposer


def test_outputs_are_shared_within_a_tenant_only():
    asked = [1, 50, 51]
    assert learned().propose([request(asked, 4, tenant="t")])[0].token_ids == (52, 53, 54)
    for tenant in ("", "other"):
        assert learned().propose([request(asked, 4, tenant=tenant)])[0].token_ids == ()
    assert learned(tenant="").propose([request(asked, 4, tenant="")])[0].token_ids == ()
    assert learned(tenant_tokens=0).propose([request(asked, 4, tenant="t")])[0].token_ids == ()


def test_prompts_are_not_shared():
    assert learned(prompt=3).propose([request([1, 50, 51], tenant="t")])[0].token_ids == ()


def test_outputs_made_with_the_coins_that_would_judge_are_not_used_while_they_are_held():
    # The draft would tell the coin, and a coin that is known judges nothing.
    proposer = learned()
    asked = request([1, 50, 51], name="again", tenant="t", seed=2)
    assert proposer.propose([asked])[0].token_ids == ()
    # With their separators, 6 and 100 tokens fill the 100 that are kept and push out the first.
    for length, expected in ((98, ()), (99, (3,))):
        held = learned()
        output = [*range(200, 200 + length - 2), 8, 3]
        held.propose([request([9, *output], name="x", prompt=1, tenant="t", seed=3)])
        held.release("x")
        asked = request([8], name="again", tenant="t", seed=2)
        assert held.propose([asked])[0].token_ids == expected


def test_a_shared_draft_ends_where_the_output_ended():
    proposer = learned()
    proposer.propose([request([9, 1, 2, 3], name="second", prompt=1, tenant="t", seed=3)])
    proposer.release("second")
    assert proposer.propose([request([52, 53], 8, tenant="t")])[0].token_ids == (54,)


def test_the_own_text_wins_where_both_match_equally_long():
    asked = [50, 51, 60, 50, 51]
    assert learned().propose([request(asked, 1, tenant="t")])[0].token_ids == (60,)


def test_what_is_shared_keeps_to_its_bound_where_outputs_are_short():
    """Each output has coins to be remembered, beside its tokens: one of one token at worst."""
    proposer = SuffixProposer(tenant_tokens=2000)
    texts = [[9, number % 50] for number in range(1200)]
    tracemalloc.start()
    begin = tracemalloc.get_traced_memory()[0]
    for number, text in enumerate(texts):
        proposer.propose([request(text, name="x", prompt=1, tenant="t", seed=number)])
        proposer.release("x")
    taken = tracemalloc.get_traced_memory()[0] - begin
    tracemalloc.stop()
    assert taken <= 24 * 2000 + 8192
    assert 0.6 * taken <= proposer.num_bytes <= 24 * 2000


def test_a_tenant_can_be_forgotten():
    proposer = learned()
    proposer.forget_tenant("t")
    proposer.forget_tenant("never heard of")
    assert proposer.propose([request([1, 50, 51], tenant="t")])[0].token_ids == ()


def test_the_tenant_that_was_used_least_recently_is_forgotten_first():
    proposer = SuffixProposer(min_score=EAGER, tenant_tokens=100, max_tenants=2)
    for number in range(2):
        proposer.propose([request([9, 1, number], name="x", prompt=1, tenant=f"t{number}", seed=2)])
        proposer.release("x")
    assert proposer.propose([request([1], tenant="t0")])[0].token_ids == (0,)
    proposer.release("a")
    proposer.propose([request([9, 1, 2], name="x", prompt=1, tenant="t2", seed=2)])
    proposer.release("x")
    for tenant, expected in (("t0", (0,)), ("t1", ()), ("t2", (2,))):
        draft = proposer.propose([request([1], 1, name=tenant, tenant=tenant)])[0]
        assert draft.token_ids == expected


def test_memory_is_bounded_whatever_passes_through():
    # 24 bytes per token and 16 KiB per index: one running request, two tenants.
    proposer = SuffixProposer(max_match=8, window=500, tenant_tokens=300, max_tenants=2)
    for number in range(12):
        tokens = [number]
        for turn in range(20):
            tokens += [(number * turn + t) % 97 for t in range(100)]
            proposer.propose([request(tokens, name="x", prompt=1, tenant=f"t{number % 5}")])
            assert proposer.num_bytes <= 24 * (500 + 2 * 300) + 3 * 16384
        proposer.release("x")
    assert proposer.num_requests == 0


# -- the whole path ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"min_score": EAGER}, {"window": 8, "max_match": 4}, {"tenant_tokens": 50}],
)
def test_it_conforms(options):
    report = check_proposer(
        lambda: SuffixProposer(**options), vocab_size=9, num_draws=200, tolerance=0.0
    )
    report.require()
    skipped = {result.name for result in report if result.status == "skipped"}
    assert skipped == {"laws_are_those_drawn_from", "laws_hold_at_their_edges"}


@pytest.mark.parametrize("rule", ["standard", "block", "coupled", "sample-match"])
def test_greedy_text_is_that_of_plain_decoding(loop, rule):
    table = MarkovTable(5, 2, seed=4, spread=2.0)
    greedy = SamplingParams(temperature=0.0)
    plain = loop(TableBackend(table), None, [1, 2], params=greedy).rounds(60, 0)
    proposer = SuffixProposer(min_score=0.05)
    run = loop(TableBackend(table), proposer, [1, 2], params=greedy, rule=rule)
    while len(run.run.tokens) < 62:
        run.round(5)
    assert run.run.tokens[:62] == plain.tokens
    assert sum(run.run.accepted) > 20


@pytest.mark.parametrize(
    "options",
    [
        {"min_match": 0},
        {"min_match": 9, "max_match": 8},
        {"min_score": 0.0},
        {"min_score": 1.1},
        {"window": 0},
        {"max_votes": 0},
        {"tenant_tokens": -1},
        {"max_tenants": 0},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=str(next(iter(options.values())))):
        SuffixProposer(**options)
