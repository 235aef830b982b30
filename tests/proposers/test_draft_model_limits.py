"""The draft model at its limits: vocabularies, context, room, confidence, failures."""

import numpy as np
import pytest
from draft_model_kit import GREEDY, OTHER, TABLE, VOCAB, drafter, target

from draftproof.backends.table import (
    MarkovTable,
    PagedStore,
    TableBackend,
)
from draftproof.core.policy import SamplingParams
from draftproof.errors import BackendError, ConfigError
from draftproof.proposers import DraftModelProposer

# -- vocabularies (CR-2) ---------------------------------------------------------------


def test_cr2_padding_of_the_drafter_is_never_proposed():
    # All but a little of the drafter's mass is on ids that the target does not have.
    row = [0.02] * 5 + [0.45, 0.45]
    rows = {(): row, **{(t,): row for t in range(7)}}
    proposer, _ = drafter(MarkovTable(7, 1, rows=rows), target_vocab_size=5)
    for seed in range(40):
        draft = proposer.propose([_request([1, 2, 3], 8, seed=seed, name=str(seed))])[0]
        assert max(draft.token_ids) < 5
        for law in draft.laws:
            assert law.vocab_size == 5
            np.testing.assert_allclose(law.dense(), [0.2] * 5, rtol=1e-6)


def test_cr2_target_ids_that_the_drafter_lacks_have_no_mass():
    proposer, backend = drafter(MarkovTable(5, None, seed=1), target_vocab_size=8)
    draft = proposer.propose([_request([1, 2, 3], 6)])[0]
    assert all(law.vocab_size == 8 and law.dense()[5:].sum() == 0 for law in draft.laws)
    # A text that holds such an id cannot be fed: no draft, a reason, nothing indexed.
    draft = proposer.propose([_request([1, 2, 3, 7], 6)])[0]
    assert draft.token_ids == ()
    assert "token 7" in draft.note
    assert backend.num_open == 0


# -- limits (CR-1) ---------------------------------------------------------------------


def test_cr1_past_the_drafters_context_nothing_is_drafted_and_nothing_held():
    proposer, backend = drafter(limit=16)
    for length in range(10, 41):
        tokens = [1 + t % 5 for t in range(length)]
        draft = proposer.propose([_request(tokens, 8)])[0]
        assert len(draft) == max(0, min(8, 16 - length + 1))
        assert bool(draft.note) == (len(draft) < 8)
    assert backend.num_open == 0
    assert len(proposer.propose([_request([1, 2, 3], 8, name="next")])[0]) == 8


def test_cr1_decoding_across_the_drafters_limit_equals_plain(loop):
    plain = loop(target(64), None, [1, 2, 3], params=GREEDY).rounds(40, 0)
    proposer, _ = drafter(limit=16)
    run = loop(target(64), proposer, [1, 2, 3], params=GREEDY)
    while len(run.run.tokens) < 43:
        run.round(min(5, 64 - len(run.run.tokens) - 1))
    assert run.run.tokens[:43] == plain.tokens[:43]
    assert run.run.drafts[0].token_ids
    assert not run.run.drafts[-1].token_ids


def test_pages_are_taken_from_requests_that_do_not_draft():
    proposer, backend = drafter(store=PagedStore(6, 4))
    for name in "abcd":
        draft = proposer.propose([_request(list(range(1, 9)), 4, name=name)])[0]
        assert draft.note == ""
        assert len(draft) == 4
    assert backend.num_open == 2
    backend.store.cache.check_integrity()


def test_without_room_there_is_no_draft_and_the_pages_are_given_back():
    proposer, backend = drafter(store=PagedStore(2, 4))
    draft = proposer.propose([_request([1] * 9, 4)])[0]
    assert draft.token_ids == ()
    assert "room" in draft.note
    assert backend.num_open == 0
    assert len(proposer.propose([_request([1] * 8, 4)])[0]) == 1


def test_long_texts_are_fed_in_pieces_that_end_at_multiples():
    proposer, backend = drafter(max_tokens_per_pass=8)
    texts = [[1 + t % 5 for t in range(length)] for length in (21, 3, 16, 30)]
    requests = [_request(text, 2, name=str(len(text))) for text in texts]
    drafts = proposer.propose(requests)
    assert [len(draft) for draft in drafts] == [2] * 4
    calls = {}
    for record in backend.passes:
        calls.setdefault(record.call, 0)
        calls[record.call] += len(record.token_ids)
        begin, end = record.positions[0], record.positions[-1] + 1
        assert begin // 8 == (end - 1) // 8
    assert max(calls.values()) <= 8
    for text, draft in zip(texts, drafts, strict=True):
        alone, _ = drafter()
        assert alone.propose([_request(text, 2)])[0].token_ids == draft.token_ids


# -- confidence (ME-4) -------------------------------------------------------------------


def test_confidence_cut_does_not_look_at_the_token():
    # Whether a position is drafted is decided by the tokens before it alone.
    proposer, _ = drafter(min_confidence=0.9 * TABLE.probs(*_context([1, 2])).max())
    by_prefix = {}
    for seed in range(300):
        draft = proposer.propose([_request([1, 2], 3, seed=seed, name=str(seed))])[0]
        proposer.release(str(seed))
        for i in range(len(draft) + 1):
            by_prefix.setdefault(draft.token_ids[:i], set()).add(i < len(draft))
    assert all(len(goes_on) == 1 for prefix, goes_on in by_prefix.items() if len(prefix) < 3)
    assert {True} in by_prefix.values()
    assert {False} in by_prefix.values()


def test_me4_a_cut_that_is_never_reached_says_so():
    proposer, _ = drafter(min_confidence=1.0)
    draft = proposer.propose([_request([1, 2], 3)])[0]
    assert draft.token_ids == ()
    assert "confidence" in draft.note


# -- failures ----------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", [BackendError("runtime died"), ValueError("bad shape")])
def test_a_failing_pass_costs_drafts_and_nothing_else(loop, late, error):
    # Passes 3, 9 and 14 die, before or after they wrote. The text stays the target's,
    # acceptance returns to all, and nothing stays held.
    calls = {3: error, 9: error, 14: error}
    proposer, backend = drafter(fail_calls=calls, fail_late=late)
    run = loop(target(), proposer, [1, 2, 3], seed=5)
    notes = []
    for _ in range(20):
        draft, verdict = run.round(4)
        assert verdict.num_accepted == len(draft)
        assert (len(draft) < 4) == bool(draft.note)
        notes += [draft.note] if draft.note else []
    assert len(notes) == 3
    assert all(str(error) in note for note in notes)
    proposer.release("a")
    assert backend.num_open == 0
    backend.store.cache.check_integrity()


def test_a_failing_row_does_not_take_its_neighbours_along():
    class FailsOn(TableBackend):
        def _check(self, batch):
            super()._check(batch)
            if 8 in batch.token_ids:
                raise BackendError("token 8")

    proposer = DraftModelProposer(FailsOn(OTHER, PagedStore(200, 4)))
    requests = [_request([1, 2], 1, name="a"), _request([8, 2], 1, name="b")]
    good, bad = proposer.propose([*requests, _request([3, 2], 1, name="c")])[:2]
    assert len(good) == 1
    assert good.note == ""
    assert bad.token_ids == ()
    assert "token 8" in bad.note
    assert proposer.num_requests == 2


def test_a_law_that_is_not_finite_ends_the_draft_after_the_token_that_led_there(loop):
    backend = TableBackend(TABLE, PagedStore(200, 4), nan_after=[4])
    proposer = DraftModelProposer(backend)
    assert proposer.propose([_request([1, 4], 3)])[0].token_ids == ()
    lengths = set()
    for seed in range(40):
        draft = proposer.propose([_request([1, 2], 5, seed=seed, name=str(seed))])[0]
        assert 4 not in draft.token_ids[:-1]
        assert len(draft) == 5 or draft.token_ids[-1] == 4
        assert len(draft) == len(draft.laws or draft.token_ids)
        lengths.add(len(draft))
    assert len(lengths) > 1


def test_kv5_drafts_never_reach_the_prefix_cache_of_the_drafter(loop):
    # B shares A's text up to a token that A only drafted and that was rejected.
    store = PagedStore(500, 2)
    proposer, _ = drafter(OTHER, store)
    run = loop(target(), proposer, [1, 2, 3, 4], seed=2).rounds(20, 5)
    assert 0 < sum(run.accepted) < run.num_drafted
    for cut in range(3, len(run.tokens)):
        text = [*run.tokens[:cut], (run.tokens[cut] + 1) % VOCAB, 1, 2]
        warm = proposer.propose([_request(text, 4, name="b")])[0]
        cold = drafter(OTHER)[0].propose([_request(text, 4)])[0]
        assert warm.token_ids == cold.token_ids
        proposer.release("b")
    assert store.cache.counters().prefix_hit_tokens > 0


def test_cache_hit_equals_miss_after_release(loop):
    proposer, backend = drafter()
    first = loop(target(), proposer, list(range(8)) * 3, seed=9).rounds(5, 4)
    proposer.release("a")
    assert backend.num_open == 0
    before = backend.num_tokens
    second = loop(target(), proposer, list(range(8)) * 3, seed=9).rounds(5, 4)
    assert second.tokens == first.tokens
    assert [d.token_ids for d in second.drafts] == [d.token_ids for d in first.drafts]
    assert backend.num_tokens - before < before


@pytest.mark.parametrize(
    "options",
    [
        {"min_confidence": 1.5},
        {"min_confidence": -0.1},
        {"max_tokens_per_pass": 0},
        {"temperature": -1.0},
        {"target_vocab_size": 0},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ConfigError):
        drafter(**options)


def _request(tokens, kappa, params=None, *, seed=1, name="a", coupled=False):
    from draftproof.core.policy import History
    from draftproof.core.protocols import ProposalRequest
    from draftproof.core.rng import CoinSource

    return ProposalRequest(
        name,
        tokens,
        kappa,
        params or SamplingParams(),
        History(tokens),
        CoinSource(seed).round(len(tokens)),
        coupled,
    )


def _context(tokens):
    return np.asarray(tokens), np.arange(len(tokens))
