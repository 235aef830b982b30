"""Training draft heads: what trains is what drafts, and an interruption costs little."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from draftproof.backends.numpy_head import NumpyHead
from draftproof.distill.batches import held_out_batches, padded, split, training_batches
from draftproof.distill.corpus import Corpus, Recording
from draftproof.distill.measure import HeldOut, measure_head, score
from draftproof.distill.network import DraftHead
from draftproof.distill.optimiser import Optimiser
from draftproof.distill.shortlist import Shortlister, draft_loss
from draftproof.distill.target_head import TargetHead
from draftproof.distill.train import CHECKPOINT, TrainingPlan, train
from draftproof.distill.vocabulary import draft_vocabulary, expected_counts, observed_counts
from draftproof.errors import ModelFileError
from draftproof.models.head_files import HeadShape, HeadWeights, read_head, write_head

SHAPE = HeadShape(
    hidden_size=16, num_heads=4, num_kv_heads=2, head_dim=8, ffn_size=24, vocab_size=12,
    draft_vocab_size=8, window=6,
)  # fmt: skip
IDS = np.array([0, 1, 2, 4, 5, 7, 8, 11])
MATRIX = np.random.default_rng(1).normal(size=(12, 16)).astype(np.float32)
TARGET = TargetHead.of(MATRIX, MATRIX, IDS)


def recording(length, seed):
    """Text of a little model: the hidden state turns the token before and the one now."""
    generator = np.random.default_rng(seed)
    turn = np.random.default_rng(7).normal(size=(16, 16)) / 4
    tokens, hidden, state = [int(generator.integers(12))], [], np.zeros(16)
    for _ in range(length):
        state = np.tanh(0.5 * state @ turn + MATRIX[tokens[-1]] @ turn) * 1.5
        hidden.append(state)
        scores = MATRIX @ state
        law = np.exp(scores - scores.max())
        tokens.append(int(generator.choice(12, p=law / law.sum())))
    return Recording.of(tokens, [np.array(hidden, dtype=np.float32)])


class Ticks:
    """A clock that moves when it is read: as many updates on any machine."""

    now = 0.0

    def __call__(self):
        self.now += 0.01
        return self.now


def trained(head, corpus, plan, folder, say=lambda _line: None):
    return train(head, TARGET, corpus, plan, folder=folder, progress=say, clock=Ticks())


@pytest.fixture
def corpus(tmp_path):
    found = Corpus(tmp_path / "corpus")
    for shard in range(13):
        found.add([recording(20 + index, 100 * shard + index) for index in range(8)])
    return found


def drafted(head, batch, steps):
    """Draft along recorded tokens with the runner that decodes, position by position."""
    tensors = {name: value.detach().numpy() for name, value in head.state_dict().items()}
    runner = NumpyHead(HeadWeights(SHAPE, tensors, IDS, "", {}), MATRIX, MATRIX)
    ids, features = batch.token_ids[:1].numpy(), batch.features[:1].numpy()
    length = ids.shape[1]
    found = {}
    for place in range(length - steps + 1):
        first = max(0, place + 1 - SHAPE.window)
        count = place + 1 - first
        empty = np.zeros((1, SHAPE.num_kv_heads, 0, SHAPE.head_dim), np.float32)
        causal = np.where(np.tril(np.ones((count, count))), 0.0, -1e9)[None].astype(np.float32)
        places = np.arange(first, place + 1)[None]
        feature, _logits, keys, values = runner.run(
            features[:, first : place + 1], ids[:, first : place + 1], places, empty, empty, causal
        )
        found[0, place] = feature[0]
        for step in range(1, steps):
            # A window counts positions: what was drafted pushes out what is oldest.
            keys, values = keys[:, :, 1 - SHAPE.window :], values[:, :, 1 - SHAPE.window :]
            mask = np.zeros((1, 1, keys.shape[2] + 1), np.float32)
            at = np.array([[place + step]])
            feature, _logits, key, value = runner.run(
                feature[:, None], ids[:, place + step : place + step + 1], at, keys, values, mask
            )
            keys, values = np.concatenate([keys, key], 2), np.concatenate([values, value], 2)
            found[step, place + step] = feature[0]
    return found


def test_unrolled_training_predicts_what_drafting_does():
    torch.manual_seed(0)
    head = DraftHead(SHAPE)
    batch = padded([recording(17, 1), recording(9, 2)])
    with torch.no_grad():
        unrolled = head.unroll(batch.features, torch.from_numpy(MATRIX)[batch.token_ids], 4)
    expected = drafted(head, batch, 4)
    assert len(expected) > 50
    for (step, place), feature in expected.items():
        np.testing.assert_allclose(unrolled[step][0, place], feature, atol=2e-5)


def test_padding_changes_no_prediction():
    head = DraftHead(SHAPE)
    long, short = recording(17, 1), recording(9, 2)
    with torch.no_grad():
        both, alone = (
            head.unroll(batch.features, torch.from_numpy(MATRIX)[batch.token_ids], 3)
            for batch in (padded([long, short]), padded([short]))
        )
    for left, right in zip(both, alone, strict=True):
        np.testing.assert_allclose(left[1, :8], right[0], atol=1e-5)


def test_acceptance_is_the_overlap_of_the_laws():
    head = DraftHead(SHAPE)
    batch = padded([recording(17, 1)])
    found = measure_head(head, TARGET, score(TARGET, [batch]), 1)
    with torch.no_grad():
        (features,) = head.unroll(batch.features, torch.from_numpy(MATRIX)[batch.token_ids], 1)
    overlaps = []
    for wanted, guessed in zip(batch.wanted[0].numpy(), features[0].numpy(), strict=True):
        p, scores = np.exp(MATRIX @ wanted), MATRIX[IDS] @ guessed
        q = np.zeros(12)
        q[IDS] = np.exp(scores) / np.exp(scores).sum()
        overlaps.append(np.minimum(p / p.sum(), q).sum())
    assert found.sampled[0] == pytest.approx(np.mean(overlaps), abs=1e-5)
    assert found.counts == (16,)


def test_held_out_shards_are_never_trained_on(corpus):
    training, held = split(corpus)
    assert len(training) == 12
    assert [path.stem for path in held] == ["shard-00011"]
    batches = training_batches(corpus, 100, np.random.default_rng(0))
    seen = {tuple(row[:9].tolist()) for _ in range(40) for row in next(batches).token_ids}
    unseen = {
        tuple(row[:9].tolist())
        for batch in held_out_batches(corpus, 10_000, 100)
        for row in batch.token_ids
    }
    assert len(unseen) == 8
    assert not seen & unseen


def test_training_raises_acceptance_and_goes_on_after_an_interruption(corpus, tmp_path):
    lines = []

    def run(seconds, seed=0):
        torch.manual_seed(seed)
        plan = TrainingPlan(seconds, batch_tokens=200, rate=5.0, measure_every_s=0.4, seed=seed)
        return trained(DraftHead(SHAPE), corpus, plan, tmp_path, lines.append)

    text = score(TARGET, held_out_batches(corpus, 900, 200))
    start = measure_head(DraftHead(SHAPE), TARGET, text, 3)
    first = run(1.5)
    assert first.held_out.sampled[0] > start.sampled[0] + 0.1
    assert (tmp_path / CHECKPOINT).is_file()
    second = run(0.5, seed=1)  # other weights at first, which the checkpoint replaces
    assert second.num_updates > first.num_updates
    assert second.seconds > first.seconds
    assert second.held_out.score >= first.held_out.score - 1e-6
    assert any("going on after" in line for line in lines)
    write_head(tmp_path / "head", HeadWeights(SHAPE, second.weights, IDS, "tiny", {}))
    assert read_head(tmp_path / "head").shape == SHAPE


def test_a_checkpoint_of_another_head_is_refused(corpus, tmp_path):
    plan = TrainingPlan(0.05, batch_tokens=200)
    trained(DraftHead(SHAPE), corpus, plan, tmp_path)
    with pytest.raises(ModelFileError, match="does not fit this training"):
        trained(DraftHead(replace(SHAPE, ffn_size=32)), corpus, plan, tmp_path)


def test_training_ends_where_nothing_is_gained(corpus, tmp_path):
    plan = TrainingPlan(30, batch_tokens=200, measure_every_s=1e-6, patience=2, rate=1e-9)
    found = trained(DraftHead(SHAPE), corpus, plan, tmp_path)
    assert found.reason == "no gain in 2 measurements"


def test_a_run_that_goes_on_may_be_worse_than_where_it_started(corpus, tmp_path, monkeypatch):
    # A fresh rate throws a good head back; it is over where this run gains nothing.
    rates = iter([0.5, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.45, 0.45, 0.45, 0.5])

    def measured(head, target, batches, steps):
        return HeldOut((next(rates),), (0.0,), (1,))

    monkeypatch.setattr("draftproof.distill.train.measure_head", measured)
    plan = TrainingPlan(60, batch_tokens=200, measure_every_s=1e-6, patience=2)
    head = DraftHead(SHAPE)
    before = {name: each.clone() for name, each in head.state_dict().items()}
    found = trained(head, corpus, plan, tmp_path)
    assert found.reason == "no gain in 2 measurements"
    assert found.num_updates == 8
    assert found.held_out.sampled == (0.5,)
    # What is written is the best of all runs, here that of the first measurement.
    start = before["transformer.mlp.up_proj.weight"].numpy()
    assert np.array_equal(found.weights["transformer.mlp.up_proj.weight"], start)


def test_the_vocabulary_knows_tokens_that_were_expected_and_never_seen(tmp_path):
    held = Corpus(tmp_path)
    state = MATRIX[9]  # after it token 9 is the likely one
    held.add([Recording.of([0] * 40, [np.tile(state, (39, 1))])])
    ids, coverage = draft_vocabulary(held, MATRIX, 3)
    law = np.exp(MATRIX @ state) / np.exp(MATRIX @ state).sum()
    assert observed_counts(held, 12).tolist() == [40.0] + [0.0] * 11
    assert {0, 9} < set(ids.tolist())
    assert coverage == pytest.approx(law[ids].sum(), abs=1e-3)
    np.testing.assert_allclose(expected_counts(held, MATRIX), 39 * law, rtol=0.02)


def whole_loss(wanted, features, overlap_weight):
    """The loss over the whole draft vocabulary, written again."""
    law = (wanted @ TARGET.drafted.T).softmax(-1)
    draft = (features @ TARGET.drafted.T).log_softmax(-1)
    kept = torch.minimum(law, draft.exp()).sum(-1)
    return (-(law * draft).sum(-1) + overlap_weight * (1 - kept)).mean()


@pytest.mark.parametrize("num_near", [1, 3, 8])
@pytest.mark.parametrize("frequent", [[], [0, 5], [1, 2, 3, 4, 6]])
def test_a_shortlist_of_all_tokens_is_the_whole_loss(num_near, frequent):
    torch.manual_seed(1)
    wanted, features = torch.randn(7, 16), torch.randn(7, 16, requires_grad=True)
    shortlister = Shortlister(
        TARGET, torch.tensor(frequent, dtype=torch.int64), num_near=num_near, num_drawn=8
    )
    shortlist = shortlister.draw(wanted).at(torch.tensor([0, 2, 3, 6]))
    found = draft_loss(shortlist, features[[0, 2, 3, 6]], 0.7)
    expected = whole_loss(wanted[[0, 2, 3, 6]], features[[0, 2, 3, 6]], 0.7)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each, features)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_drawn_tokens_stand_for_the_rest():
    """The sums of exponentials and of overlaps are right on average (300 draws, 5 sigma)."""
    torch.manual_seed(2)
    wanted, features = torch.randn(5, 16) / 2, torch.randn(5, 16) / 2
    shortlister = Shortlister(TARGET, torch.tensor([3]), num_near=2, num_drawn=3)
    whole = (features @ TARGET.drafted.T).exp().sum(-1)
    totals = []
    for _ in range(300):
        held = shortlister.draw(wanted)
        near = torch.bmm(held.near, features.unsqueeze(-1)).squeeze(-1).exp().sum(-1)
        shared = (features @ held.shared.T + held.log_weight).exp().sum(-1)
        totals.append(near + shared)
    drawn = torch.stack(totals)
    error = drawn.std(0) / len(drawn) ** 0.5
    assert (error > 0).all()
    assert ((drawn.mean(0) - whole).abs() < 5 * error).all()


def test_long_recordings_are_cut_and_nothing_is_lost(tmp_path):
    held = Corpus(tmp_path)
    whole = recording(250, 3)
    held.add([whole])
    batches = training_batches(held, 60, np.random.default_rng(0))
    seen = set()
    for _ in range(3):
        batch = next(batches)
        assert batch.token_ids.shape[1] < 100
        for ids, count in zip(batch.token_ids, batch.lengths, strict=True):
            seen.add(tuple(ids[:count].tolist()))
    assert sum(map(len, seen)) == 250 - 3
    assert {len(each) for each in seen} == {95, 57}


def test_the_optimiser_cuts_large_gradients_and_slows_what_it_is_told_to():
    torch.manual_seed(0)
    layer = torch.nn.Linear(6, 4)
    slow = copy.deepcopy(layer)
    before = layer.weight.detach().clone()
    for each in (layer, slow):
        (1e6 * each(torch.ones(50, 6))).pow(2).sum().backward()
    Optimiser(layer, 1.0).step(1.0)
    assert layer.weight.grad.norm() <= 1.0
    Optimiser(slow, 1.0, {"weight": 0.25}).step(1.0)
    moved, fourth = (each.weight.detach() - before for each in (layer, slow))
    assert moved.abs().max() > 1e-4
    torch.testing.assert_close(fourth, moved / 4, rtol=1e-3, atol=1e-7)
