"""Tree drafters: shapes, laws after each path, passes, rollback, room and failures."""

import numpy as np
import pytest
from draft_model_kit import GREEDY, OTHER, TABLE, VOCAB
from tree_faults import GoesOnBelowItsSibling

from draftproof.backends.table import (
    PagedStore,
    PositionTable,
    RecurrentStore,
    TableBackend,
    WindowStore,
)
from draftproof.core.policy import History, SamplingParams, target_law
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import BackendError, ConfigError
from draftproof.proposers import DraftModelProposer, DraftModelTreeProposer, NgramTreeProposer
from draftproof.proposers.tree_shapes import depth_of, pruned_paths, shape_of, size_of

TEXT = [1, 2, 3, 4, 5, 6]
POLICY = SamplingParams(temperature=0.9, frequency_penalty=0.5)


def request(tokens, kappa=8, *, name="a", params=POLICY, seed=3, coupled=False):
    coins = CoinSource(seed).round(len(tokens))
    return ProposalRequest(name, tokens, kappa, params, History(tokens), coins, coupled)


def drafter(cls=DraftModelTreeProposer, store=None, table=TABLE, **options):
    backend = TableBackend(
        table, store or PagedStore(400, 4), context_length=options.pop("limit", 4096),
        fail_calls=options.pop("fail_calls", None), fail_late=options.pop("fail_late", False),
    )  # fmt: skip
    return cls(backend, **options), backend


def law_after(tokens, params, extra, table=TABLE, store=None):
    """Return the drafter's law after some drafts, from a fresh model."""
    _, backend = drafter(table=table, store=store)
    row = Row(backend.open(), [*tokens, *extra], 0, 1)
    logits = backend.forward(FlatBatch.from_rows([row]))[0]
    return target_law(logits, params, History(tokens), extra)


# -- shapes ---------------------------------------------------------------------------


def test_widths_give_the_whole_fan_when_the_budget_allows():
    shape = shape_of(99, 0.6, (2, 2, 1))
    assert (size_of(shape), depth_of(shape)) == (10, 3)
    assert shape == ((((),), ((),)), (((),), ((),)))


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.9])
def test_shapes_have_the_worthiest_nodes_of_their_size(acceptance):
    def worths(shape, worth=1.0):
        left = 1.0
        for below in shape:
            mine = worth * left * acceptance
            yield mine
            yield from worths(below, mine)
            left *= 1 - acceptance

    for budget in range(1, 20):
        shape = shape_of(budget, acceptance)
        assert size_of(shape) == budget
        # No node that is left out is worth more than one that is not: a bigger tree holds it.
        bigger = sorted(worths(shape_of(budget + 1, acceptance)), reverse=True)
        assert sorted(worths(shape), reverse=True) == pytest.approx(bigger[:budget])


def test_a_sure_drafter_gets_a_chain_and_an_unsure_one_a_fan():
    assert depth_of(shape_of(6, 0.95)) == 6
    assert depth_of(shape_of(6, 0.1)) == 1
    assert size_of(shape_of(6, 0.95, (1, 1))) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((3, 0.0), "acceptance 0.0"), ((3, 1.0), "acceptance 1.0"), ((3, 0.5, ()), "widths"),
     ((3, 0.5, (2, 0)), "widths")],
)  # fmt: skip
def test_numbers_of_no_shape_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        shape_of(*arguments)


def test_paths_are_cut_to_a_budget_of_distinct_prefixes():
    paths = [(1, 2, 3, 4), (1, 2, 5, 6), (7, 8, 9, 9)]
    for budget in range(1, 11):
        cut = pruned_paths(paths, budget, 0.6)
        assert len({path[:n] for path in cut for n in range(1, len(path) + 1)}) == budget
    assert pruned_paths(paths, 4, 0.95) == [(1, 2, 3, 4), (1, 2)]
    assert pruned_paths(paths, 99, 0.6) == paths


# -- prompt lookup --------------------------------------------------------------------


def test_each_occurrence_is_a_candidate_longest_match_first():
    tokens = [7, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2, 3, 5, 0, 1, 2]
    draft = NgramTreeProposer(1, 8, acceptance=0.5).propose([request(tokens, 9)])[0]
    assert draft.child_laws is None
    roots = [draft.token_ids[node] for node in draft.children()[0]]
    assert roots == [3, 4]  # newest first; 3 follows twice
    below = [draft.token_ids[node] for node in draft.children()[draft.children()[0][0] + 1]]
    assert below == [5, 9]
    assert len(draft) <= 9


def test_one_occurrence_gives_the_chain_of_prompt_lookup():
    draft = NgramTreeProposer().propose([request([1, 2, 3, 4, 5, 1, 2], 4)])[0]
    assert (draft.token_ids, draft.parents) == ((3, 4, 5, 1), (-1, 0, 1, 2))


def test_no_occurrence_gives_a_note_and_settings_are_checked():
    draft = NgramTreeProposer().propose([request([1, 2, 3])])[0]
    assert (len(draft), draft.note) == (0, "no earlier n-gram matches")
    with pytest.raises(ConfigError, match="max_paths 0"):
        NgramTreeProposer(max_paths=0)
    with pytest.raises(ConfigError, match="acceptance"):
        NgramTreeProposer(acceptance=1.0)


# -- the draft model ------------------------------------------------------------------


@pytest.mark.parametrize("store", [None, WindowStore(5), RecurrentStore()])
def test_the_law_of_each_node_is_the_drafters_law_after_its_path(store):
    proposer, _ = drafter(store=store, widths=(3, 2, 2))
    draft = proposer.propose([request(TEXT, 21)])[0]
    assert len(draft) == 21
    fresh = {WindowStore: lambda: WindowStore(5), RecurrentStore: RecurrentStore}.get(
        type(store), lambda: None
    )
    for node in range(-1, len(draft)):
        law = draft.child_law(node)
        assert (law is None) == (not draft.children()[node + 1])
        if law is not None:
            path = [draft.token_ids[at] for at in draft.path(node)]
            expected = law_after(TEXT, POLICY, path, store=fresh())
            assert np.array_equal(law.dense(), expected.dense())


def test_a_drafter_that_mixes_its_branches_up_is_seen():
    proposer, _ = drafter(GoesOnBelowItsSibling, widths=(2, 2))
    draft = proposer.propose([request(TEXT, 6)])[0]
    expected = [law_after(TEXT, POLICY, [token]).dense() for token in draft.token_ids[:2]]
    found = [draft.child_law(node).dense() for node in (0, 1)]
    assert not np.array_equal(found[0], expected[0])
    assert not np.array_equal(found[1], expected[1])


def test_one_pass_for_each_depth_whatever_the_number_of_rows():
    proposer, backend = drafter(widths=(2, 2, 1))
    rows = [request([*TEXT, row], 10, name=str(row)) for row in range(3)]
    drafts = proposer.propose(rows)
    assert [len(draft) for draft in drafts] == [10] * 3
    assert backend.num_calls == 3
    # The texts, then 2 and 4 nodes of each row: the deepest are never fed.
    assert backend.num_tokens == 3 * (7 + 2 + 4)


def test_greedy_requests_get_the_likeliest_tokens_and_no_law():
    proposer, _ = drafter(widths=(3, 2))
    draft = proposer.propose([request(TEXT, 9, params=GREEDY)])[0]
    assert draft.child_laws is None
    for node in range(-1, 3):
        path = [draft.token_ids[at] for at in draft.path(node)]
        probs = law_after(TEXT, SamplingParams(), path).dense()
        children = [draft.token_ids[at] for at in draft.children()[node + 1]]
        assert children == np.argsort(-probs, kind="stable")[: len(children)].tolist()
    other = proposer.propose([request(TEXT, 9, params=GREEDY, seed=4)])[0]
    assert other.token_ids == draft.token_ids


def test_coupled_requests_get_the_first_finishers_of_each_race():
    proposer, _ = drafter(widths=(3, 2))
    asked = request(TEXT, 9, coupled=True)
    draft = proposer.propose([asked])[0]
    assert draft.child_laws is None
    for node in (-1, 0, 2):
        path = [draft.token_ids[at] for at in draft.path(node)]
        law = law_after(TEXT, POLICY, path)
        children = [draft.token_ids[at] for at in draft.children()[node + 1]]
        assert children[0] == law.race(asked.coins.noise(len(path), VOCAB))
        assert len(set(children)) == len(children)


def test_a_tree_without_branches_is_the_chain_drafter_coin_by_coin():
    chain, _ = drafter(DraftModelProposer)
    tree, _ = drafter(widths=(1,) * 5)
    for seed in range(5):
        left = chain.propose([request(TEXT, 5, seed=seed)])[0]
        right = tree.propose([request(TEXT, 5, seed=seed)])[0]
        assert left.token_ids == right.token_ids


@pytest.mark.parametrize("kept", ["first", "last", "none"])
def test_the_kept_path_is_not_read_again(kept):
    proposer, backend = drafter(widths=(2, 2, 1))
    tokens = list(TEXT)
    draft = proposer.propose([request(tokens, 10)])[0]
    leaves = sorted(set(range(10)) - set(draft.parents))
    path = {"first": draft.path(leaves[0]), "last": draft.path(leaves[-1]), "none": ()}[kept]
    tokens += [*(draft.token_ids[node] for node in path), 0]
    backend.passes.clear()
    again = proposer.propose([request(tokens, 10)])[0]
    # The deepest node was never fed, and the last token is new.
    assert len(backend.passes[0].token_ids) == (2 if path else 1)
    fresh = drafter(widths=(2, 2, 1))[0].propose([request(tokens, 10)])[0]
    assert again.token_ids == fresh.token_ids
    assert backend.num_open == 4  # the sequence, and one fork for each other branch
    proposer.release("a")
    assert (backend.num_open, backend.num_held, proposer.num_requests) == (0, 0, 0)


def test_little_room_makes_smaller_trees_and_says_so():
    proposer, backend = drafter(store=PagedStore(5, 2), widths=(2, 2, 2))
    draft = proposer.propose([request(TEXT, 14)])[0]
    assert "no room" in draft.note
    assert 2 <= len(draft) < 14
    for node in range(-1, len(draft)):
        if draft.child_law(node) is not None:
            path = [draft.token_ids[at] for at in draft.path(node)]
            expected = law_after(TEXT, POLICY, path)
            assert np.array_equal(draft.child_law(node).dense(), expected.dense())
    proposer.release("a")
    assert backend.num_held == 0


def test_idle_requests_and_their_branches_make_room():
    proposer, backend = drafter(store=PagedStore(12, 2, prefix_caching=False), widths=(2, 2, 2))
    proposer.propose([request(TEXT, 14, name="idle")])
    draft = proposer.propose([request([*TEXT[::-1], 0, 1, 2, 3, 4, 5, 6], 14, name="busy")])[0]
    assert len(draft) > 2
    assert proposer.num_requests == 1
    proposer.release("busy")
    assert backend.num_held == 0


def test_a_full_context_still_drafts_one_level():
    proposer, _ = drafter(limit=len(TEXT), widths=(2, 2))
    draft = proposer.propose([request(TEXT, 6)])[0]
    assert draft.parents == (-1, -1)
    assert "no room in the drafter" in draft.note
    late = proposer.propose([request([*TEXT, 1], 6)])[0]
    assert "past the drafter's context" in late.note


@pytest.mark.parametrize("late", [False, True])
def test_a_failed_pass_keeps_the_nodes_drawn_so_far(late):
    error = BackendError("runtime died")
    proposer, backend = drafter(
        fail_calls=dict.fromkeys(range(2, 9), error), fail_late=late, widths=(2, 2)
    )
    rows = [request(TEXT, 6, name="a"), request(TEXT[::-1], 6, name="b")]
    drafts = proposer.propose(rows)
    for draft in drafts:
        assert draft.parents == (-1, -1)
        assert "runtime died" in draft.note or "starts at" in draft.note
        assert draft.child_law(-1) is not None
    assert proposer.num_requests == 0
    assert backend.num_open == 0


def test_tokens_that_the_drafter_lacks_and_settings_out_of_range():
    proposer, _ = drafter(table=PositionTable(4, seed=1), target_vocab_size=VOCAB)
    assert "lacks token 6" in proposer.propose([request(TEXT)])[0].note
    draft = proposer.propose([request([1, 2, 3])])[0]
    assert max(draft.token_ids) < 4
    assert draft.child_law(-1).vocab_size == VOCAB
    for options, message in (
        ({"widths": ()}, "widths"),
        ({"acceptance": 2.0}, "acceptance"),
        ({"max_tokens_per_pass": 0}, "max_tokens_per_pass"),
        ({"target_vocab_size": 0}, "target_vocab_size"),
        ({"temperature": -1.0}, "temperature"),
    ):
        with pytest.raises(ConfigError, match=message):
            drafter(table=OTHER, **options)


def test_a_law_of_few_tokens_gives_fewer_siblings():
    proposer, _ = drafter(widths=(5,))
    draft = proposer.propose([request(TEXT, 5, params=SamplingParams(top_k=2))])[0]
    assert len(draft) == 2
    assert len(set(draft.token_ids)) == 2
