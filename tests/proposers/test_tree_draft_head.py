"""Trees from a draft head: the law of each node, rows and branches that keep apart, exactness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from head_kit import SHAPE, SMALL, VOCAB, HiddenTable, distance_from_target, joint_law, numpy_head

from draftproof.backends.table import MarkovTable
from draftproof.core.law import DenseLaw
from draftproof.core.policy import History, SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.core.rng import CoinSource
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import BackendError
from draftproof.proposers import DraftHeadProposer, DraftHeadTreeProposer

WARM = SamplingParams(temperature=0.9, frequency_penalty=0.3)
GREEDY = SamplingParams(temperature=0.0)
TEXT = [1, 2, 3, 4, 5, 6, 0, 2]


def request(tokens=TEXT, kappa=9, *, name="a", params=WARM, seed=3, coupled=False):
    history = History(tokens[:3])
    for token in tokens[3:]:
        history.append(token)
    coins = CoinSource(seed).round(len(tokens))
    return ProposalRequest(name, tokens, kappa, params, history, coins, coupled)


def told(proposer, *asked):
    """Tell a drafter the hidden states of all tokens but the last, as an engine does."""
    for each in asked:
        tokens = np.asarray(each.token_ids[:-1])
        angles = np.outer(tokens, np.arange(1, SHAPE.hidden_size + 1))
        hidden = np.cos(angles + np.arange(len(tokens))[:, None]).astype(np.float32)
        proposer.observe(each.request_id, 0, hidden)
    return proposer


def tree(*asked, runner=None, **options):
    return told(DraftHeadTreeProposer(runner or numpy_head(), **options), *asked).propose(asked)


def law_after(asked, path):
    """The law of a chain drafter that was made to take a path."""
    longer = replace(asked, kappa=len(path) + 1)
    (draft,) = told(DraftHeadProposer(numpy_head()), asked).propose_after([longer], [path])
    return draft.laws[0]


def test_the_law_of_each_node_is_the_heads_law_after_its_path():
    # Rows of other lengths and of smaller trees beside them; paths outgrow the window.
    rows = [request(), request([*TEXT, 3, 1, 1], 4, name="b"), request(TEXT[:5], 9, name="c")]
    drafts = tree(*rows, widths=(2, 2, 1, 1, 1))
    assert [len(draft) for draft in drafts] == [9, 4, 9]
    for asked, draft in zip(rows, drafts, strict=True):
        for node in range(-1, len(draft)):
            law = draft.child_law(node)
            assert (law is None) == (not draft.children()[node + 1])
            if law is not None:
                path = [draft.token_ids[at] for at in draft.path(node)]
                np.testing.assert_allclose(law.dense(), law_after(asked, path).dense(), atol=2e-6)


def test_a_tree_without_branches_is_the_chain_drafter_coin_by_coin():
    for seed in range(5):
        asked = request(kappa=5, seed=seed)
        (chain,) = told(DraftHeadProposer(numpy_head()), asked).propose([asked])
        assert tree(asked, widths=(1,) * 5)[0].token_ids == chain.token_ids


def test_greedy_requests_get_the_likeliest_tokens_and_no_law():
    asked = request(params=GREEDY)
    (draft,) = tree(asked, widths=(3, 2))
    assert (len(draft), draft.child_laws) == (9, None)
    warm = request(params=SamplingParams())
    for node in (-1, 0, 1, 2):
        path = [draft.token_ids[at] for at in draft.path(node)]
        children = [draft.token_ids[at] for at in draft.children()[node + 1]]
        order = np.argsort(-law_after(warm, path).dense(), kind="stable")
        assert children == order[: len(children)].tolist()


def test_coupled_requests_get_the_first_finishers_of_each_race():
    asked = request(coupled=True)
    (draft,) = tree(asked, widths=(3, 2))
    assert draft.child_laws is None
    for node in (-1, 0, 2):
        path = [draft.token_ids[at] for at in draft.path(node)]
        children = [draft.token_ids[at] for at in draft.children()[node + 1]]
        noise = asked.coins.noise(len(path), VOCAB)
        assert children[0] == law_after(asked, path).race(noise)
        assert len(set(children)) == len(children)


def test_an_unknown_state_drafts_nothing_and_a_failed_pass_keeps_what_was_drawn():
    (draft,) = DraftHeadTreeProposer(numpy_head()).propose([request()])
    assert (len(draft), draft.note) == (0, "the target's hidden state is not known yet")

    class FailsLater:
        def __init__(self, head):
            self.head, self.calls = head, 0
            self.shape, self.draft_ids = head.shape, head.draft_ids

        def run(self, *arguments):
            self.calls += 1
            if self.calls > 1:
                raise BackendError("out of breath")
            return self.head.run(*arguments)

    (draft,) = tree(request(), runner=FailsLater(numpy_head()), widths=(2, 2))
    assert draft.parents == (-1, -1)
    assert "out of breath" in draft.note
    assert draft.child_law(-1) is not None


def test_rounds_in_an_engine_remember_and_forget():
    proposer = DraftHeadTreeProposer(numpy_head(), widths=(2, 1, 1))
    table = MarkovTable(VOCAB, None, seed=3, spread=1.5)
    core = EngineCore(HiddenTable(table), proposers=[proposer], kappa=6)
    for number in range(3):
        text = tuple(TEXT[: 4 + number])
        core.submit(GenerateRequest(text, WARM, max_tokens=20, seed=number))
    results = core.run()
    for result in results.values():
        assert result.error is None
        assert not result.notes
        assert 0 < result.stats.num_accepted_tokens < result.stats.num_draft_tokens
    assert proposer.num_requests == 0


@pytest.mark.exact
@pytest.mark.parametrize("rule", ["standard", "block", "coupled", "sample-match"])
def test_the_joint_law_is_the_targets(rule):
    law = joint_law(
        lambda: DraftHeadTreeProposer(numpy_head(SMALL), widths=(2, 1)), rule, kappa=3, horizon=3
    )
    assert distance_from_target(law, 3) < 1e-6


class Flat(DraftHeadTreeProposer):
    """Reports the uniform law for draws from the head's."""

    def propose(self, requests):
        return [
            replace(
                draft,
                child_laws=tuple(
                    None if law is None else DenseLaw(np.ones(law.vocab_size) / law.vocab_size)
                    for law in draft.child_laws
                ),
            )
            if draft.child_laws
            else draft
            for draft in super().propose(requests)
        ]


@pytest.mark.exact
@pytest.mark.parametrize("rule", ["standard", "block"])
def test_a_wrong_law_of_nodes_is_seen(rule):
    law = joint_law(lambda: Flat(numpy_head(SMALL), widths=(1, 1)), rule, kappa=2, horizon=3)
    assert distance_from_target(law, 3) > 1e-3
