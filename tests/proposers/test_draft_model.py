"""The draft model: true laws, caches that follow the text, limits and failures."""

import numpy as np
import pytest
from draft_model_kit import GREEDY, OTHER, TABLE, VOCAB, drafter, target

from draftproof.backends.table import (
    MarkovTable,
    PagedStore,
    RecurrentStore,
    TableBackend,
    WindowStore,
)
from draftproof.core.policy import SamplingParams
from draftproof.core.types import Draft
from draftproof.proposers import draft_model
from draftproof.testing.scripted import FlickeringProposer

RULES = ("standard", "block", "coupled")

STORES = {
    "paged": lambda: PagedStore(2000, 4),
    "window": lambda: WindowStore(6),
    "recurrent": lambda: RecurrentStore(),
    "snapshots": lambda: RecurrentStore(4),
}


@pytest.mark.parametrize("rule", [*RULES, "sample-match"])
@pytest.mark.parametrize("store", STORES)
def test_kv1_a_drafter_equal_to_its_target_is_always_accepted(loop, rule, store):
    table = MarkovTable(VOCAB, None, seed=1) if store == "recurrent" else TABLE
    main = TableBackend(table, STORES[store](), context_length=4096)
    if not main.info.rewindable:
        main = TableBackend(table, RecurrentStore(3), context_length=4096)
    proposer, backend = drafter(table, STORES[store]())
    if rule == "sample-match":  # accepts where two independent draws agree: only greedy is sure
        run = loop(main, proposer, [1, 2, 3], rule=rule, params=GREEDY)
    else:
        run = loop(main, proposer, [1, 2, 3], rule=rule, seed=7)
    for _ in range(60):
        draft, verdict = run.round(4)
        assert draft.note == ""
        assert len(draft) == 4
        assert verdict.num_accepted == 4
        assert backend.length(proposer._sequences._held["a"].sequence_id) <= len(run.run.tokens) - 1


def test_kv1_two_hundred_rounds_at_full_acceptance_cost_one_pass_per_draft(loop):
    proposer, backend = drafter()
    run = loop(target(), proposer, [1, 2, 3], seed=7).rounds(200, 4)
    assert run.accepted == [4] * 200
    assert backend.num_calls == 800
    # After the prompt: four new tokens a round and the last draft that was not fed before.
    assert backend.num_tokens == 3 + 3 + 199 * 5


def test_kv1_every_third_proposal_corrupted(loop):
    proposer, _ = drafter()
    run = loop(target(), proposer, [1, 2, 3], params=GREEDY)
    count = 0
    for _ in range(200):
        draft = proposer.propose([run.request(4)])[0]
        assert draft.note == ""
        tokens, leading = list(draft.token_ids), None
        for i in range(4):
            count += 1
            if count % 3 == 0:
                tokens[i] = (tokens[i] + 1) % VOCAB
                leading = i if leading is None else leading
        _, verdict = run.round(4, Draft(tuple(tokens)))
        assert verdict.num_accepted == (4 if leading is None else leading)


def test_kv4_positions_have_no_gap_in_any_kind_of_round(loop):
    # Without a prefix cache, so that a resumed sequence starts at 0 in the log.
    proposer, backend = drafter(store=PagedStore(2000, 4, prefix_caching=False))
    other, _ = drafter(OTHER)
    run = loop(target(), proposer, [1, 2, 3], seed=11)
    foreign = loop(target(), other, [1, 2, 3], seed=11)
    for turn in range(60):
        kind = turn % 5
        if kind == 0:  # no drafts: the drafter has to catch up later
            run.round(0)
        elif kind == 1:  # drafts that are not the target's: rejections
            foreign.run.tokens[:] = run.run.tokens
            draft = other.propose([run.request(4)])[0]
            run.round(4, draft)
        elif kind == 2 and turn % 3 == 0:  # resumed after its sequence was dropped
            proposer.release("a")
            assert run.round(3)[1].num_accepted == 3
        else:
            draft, verdict = run.round(4)
            assert draft.note == ""
            assert verdict.num_accepted == 4
    expected = {}
    for record in backend.passes:
        start = record.positions[0]
        assert list(record.positions) == list(range(start, start + len(record.positions)))
        assert start <= expected.get(record.sequence_id, 0)
        expected[record.sequence_id] = record.positions[-1] + 1


def test_the_recorded_law_is_the_object_drawn_from(monkeypatch):
    # DI-5: no tolerance can separate a law from its bf16 twin; identity can.
    proposer, _ = drafter()
    drawn = []
    original = draft_model.target_law

    def spy(*args):
        law = original(*args)
        draw = law.draw

        class Watched(type(law)):
            __slots__ = ()

            def draw(self, u):
                drawn.append(self)
                return draw(u)

        law.__class__ = Watched
        return law

    monkeypatch.setattr(draft_model, "target_law", spy)
    draft = proposer.propose([_request([1, 2, 3], 6)])[0]
    assert len(draft.laws) == 6
    assert all(law is used for law, used in zip(draft.laws, drawn, strict=True))


def test_withheld_drafts_do_no_harm(loop):
    proposer, _ = drafter()
    run = loop(target(), FlickeringProposer(proposer, (True, False, False)), [1, 2], seed=3)
    run = run.rounds(60, 4)
    assert set(run.accepted[::3]) == {4}
    assert all(len(draft) == 0 for draft in run.drafts[1::3])


def test_greedy_requests_draft_the_likeliest_token_without_laws():
    for options in ({}, {"temperature": 1.3}):
        proposer, _ = drafter(**options)
        draft = proposer.propose([_request([1, 2, 3], 4, GREEDY)])[0]
        assert draft.laws is None
        assert draft.token_ids[0] == int(TABLE.probs(*_context([1, 2, 3])).argmax())


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_draft_temperature_is_the_law_that_is_recorded(temperature):
    proposer, _ = drafter(temperature=temperature)
    draft = proposer.propose([_request([1, 2, 3], 3, SamplingParams(temperature=0.7))])[0]
    probs = TABLE.probs(*_context([1, 2, 3]))
    if temperature == 0:
        assert draft.laws is None
        return
    expected = probs ** (1 / temperature)
    np.testing.assert_allclose(draft.laws[0].dense(), expected / expected.sum(), rtol=1e-5)


def test_policy_sees_the_drafts_before_each_position():
    params = SamplingParams(frequency_penalty=100.0)
    proposer, _ = drafter()
    draft = proposer.propose([_request([1, 2, 3], VOCAB, params)])[0]
    assert len(set(draft.token_ids)) == VOCAB


def test_coupled_drafts_win_the_race_over_shared_noise():
    proposer, _ = drafter()
    request = _request([1, 2, 3], 5, coupled=True)
    draft = proposer.propose([request])[0]
    for i, law in enumerate(draft.laws):
        assert draft.token_ids[i] == law.race(request.coins.noise(i, VOCAB))


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
