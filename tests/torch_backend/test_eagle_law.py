"""The law of the whole output with a published head, by every branch of every coin."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import eagle_kit as kit
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'draftproof[torch]'")

import torch

from draftproof.backends.torch_hf import load_torch, load_torch_head
from draftproof.core.law import SparseLaw
from draftproof.core.rng import CoinSource
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.proposers.draft_head import DraftHeadProposer
from draftproof.testing.branching import BranchingCoins, exact_law

SMALL, SMALL_DRAFTED, PROMPT, HORIZON = 3, 2, (0, 1, 0), 4


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a target of three tokens, a head that drafts two of them, and its plain law."""
    folder = tmp_path_factory.mktemp("small")
    held = kit.tensors(vocab=SMALL, drafted=SMALL_DRAFTED)
    kit.write_speculators(folder, held, layers=(0, 1, 2), layer={"vocab_size": SMALL})
    plain = kit.target_model(vocab=SMALL, layers=2)
    expected = {}

    def walk(outcome, prob):
        if len(outcome) == HORIZON:
            expected[outcome] = prob
            return
        with torch.inference_mode():
            logits = plain(input_ids=torch.tensor([[*PROMPT, *outcome]])).logits[0, -1].double()
        for token, share in enumerate(torch.softmax(logits, 0).tolist()):
            walk((*outcome, token), prob * share)

    walk((), 1.0)
    target = load_torch(
        kit.target_model(vocab=SMALL, layers=2), kv_cache_bytes=1 << 18, hidden_layers=(0, 1, 2)
    )
    return target, load_torch_head(folder, target), expected


class Lying(DraftHeadProposer):
    """Reports a flatter law than it drew from."""

    def propose(self, requests):
        return [
            replace(draft, laws=tuple(flatter(law) for law in draft.laws)) if draft.laws else draft
            for draft in super().propose(requests)
        ]


def flatter(law):
    row = law.dense()
    ids = np.flatnonzero(row)
    return SparseLaw(ids, row[ids] ** 0.5, len(row))


def distance(small, rule, proposer_of, horizon=HORIZON):
    """Total variation of the joint law from that of plain decoding, and most drafts of a run."""
    target, head, whole = small
    expected = defaultdict(float)
    for outcome, prob in whole.items():
        expected[outcome[:horizon]] += prob
    drafted = []

    def program(brancher):
        def coins(seed, stream):
            return BranchingCoins(brancher) if seed == 77 else CoinSource(seed, stream)

        core = EngineCore(
            target, proposers=[proposer_of(head)], coin_source=coins, kappa=2, rule=rule
        )
        core.submit(GenerateRequest(PROMPT, max_tokens=horizon, seed=77, request_id="studied"))
        result = core.run()["studied"]
        drafted.append(result.stats.num_draft_tokens)
        return tuple(result.token_ids)

    law = exact_law(program)
    differences = [abs(law.get(key, 0.0) - prob) for key, prob in expected.items()]
    assert law.keys() <= expected.keys()
    return 0.5 * sum(differences), max(drafted)


@pytest.mark.exact
@pytest.mark.parametrize(("rule", "horizon"), [("standard", 4), ("sample-match", 3)])
def test_the_joint_law_is_the_targets(small, rule, horizon):
    gap, most = distance(small, rule, DraftHeadProposer, horizon)
    assert most >= horizon - 2  # the first token is plain, the last one a bonus
    assert gap < 1e-4


@pytest.mark.exact
def test_a_wrong_law_of_drafts_is_seen(small):
    assert distance(small, "standard", Lying, horizon=3)[0] > 1e-3
