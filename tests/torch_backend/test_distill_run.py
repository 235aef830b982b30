"""From a model to a head that drafts for it: the whole way, on a model of two layers."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.borrowed import borrow
from draftproof.backends.torch_hf import load_torch
from draftproof.build.heads import load_head
from draftproof.core.policy import SamplingParams
from draftproof.core.types import FlatBatch, Row
from draftproof.distill.run import DistillPlan, distill
from draftproof.distill.speed import measure_speed
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.proposers.draft_head import DraftHeadProposer

VOCAB = 96


class Letters:
    """A tokenizer of one token per letter."""

    vocab_size = VOCAB
    eos_token_ids = frozenset()

    def encode(self, text, *, add_special=True):
        return [ord(letter) % VOCAB for letter in text]

    def encode_chat(self, messages):
        return self.encode(messages[-1]["content"])[:12]

    def token_bytes(self, token_id):
        return bytes([token_id])

    def decode(self, token_ids):
        return "".join(map(chr, token_ids))


@pytest.fixture(scope="module")
def target(build_model):
    model = build_model("llama")
    return load_torch(model, kv_cache_bytes=1 << 22, with_hidden=True)


@pytest.fixture(scope="module")
def folder(target, tmp_path_factory):
    """Return a head that learned for a moment from what the model wrote."""
    path = tmp_path_factory.mktemp("head")
    plan = DistillPlan(0.01, num_tokens=500, draft_vocab_size=64, rows=2)
    made = distill(target, Letters(), plan, path, progress=lambda _line: None)
    assert made.num_recorded > 100
    assert 0.3 < made.coverage <= 1.0
    return path


def test_states_come_for_all_tokens(target):
    sequence = target.open()
    logits = target.forward(FlatBatch.from_rows([Row(sequence, list(range(9)), 0, 2)])).copy()
    hidden = target.hidden()
    target.close(sequence)
    assert hidden.shape == (9, 64)
    np.testing.assert_allclose(hidden[-2:] @ borrow(target).output.T, logits, atol=1e-3)


def test_a_distilled_head_drafts_and_changes_no_seed_identical_text(target, folder):
    runner = load_head(str(folder), target)

    def texts(kappa):
        core = EngineCore(
            target, proposers=[DraftHeadProposer(runner)], kappa=kappa, rule="sample-match"
        )
        for index in range(3):
            prompt = tuple(range(5 + index, 30))
            core.submit(
                GenerateRequest(
                    prompt, SamplingParams(), max_tokens=24, seed=index, request_id=str(index)
                )
            )
        results = core.run()
        drafted = sum(result.stats.num_draft_tokens for result in results.values())
        return drafted, [results[str(index)].token_ids for index in range(3)]

    drafted, with_head = texts(2)
    assert drafted > 20
    assert with_head == texts(0)[1]


def test_the_last_table_counts_what_was_drafted(target, folder):
    rows = measure_speed(
        target, Letters(), load_head(str(folder), target), kappas=(1, 2), num_prompts=2,
        max_tokens=12,
    )  # fmt: skip
    assert [(row.temperature, row.kappa) for row in rows] == [
        (1.0, 1),
        (1.0, 2),
        (0.0, 1),
        (0.0, 2),
    ]
    for row in rows:
        assert len(row.acceptance) == len(row.asked) <= row.kappa
        assert row.asked[0] > 0
        assert row.low <= row.speedup <= row.high


def test_an_interrupted_run_goes_on(target, folder):
    lines = []
    plan = DistillPlan(0.01, num_tokens=500, draft_vocab_size=64, rows=2)
    distill(target, Letters(), plan, folder, progress=lines.append)
    assert any(line.startswith("going on after") for line in lines)


def test_text_of_the_user_is_read_instead(target, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("the quick brown fox jumps over the dog " * 40)
    lines = []
    plan = DistillPlan(0.1, tmp_path / "texts", num_tokens=1000, draft_vocab_size=32)
    made = distill(target, Letters(), plan, tmp_path / "head", progress=lines.append)
    assert made.num_recorded >= 1000
    text = set(Letters().encode("the quick brown fox jumps over the dog "))
    assert text <= set(made.head.draft_ids.tolist())
    assert made.head.notes["text"] == "the user's"


def test_a_head_of_another_model_is_refused(build_model, folder):
    other = load_torch(
        build_model("llama", vocab_size=97), kv_cache_bytes=1 << 20, with_hidden=True
    )
    with pytest.raises(IncompatibleModelsError, match="is for 96 tokens of width 64"):
        load_head(str(folder), other)


def test_texts_that_are_not_there_are_refused(target, tmp_path):
    with pytest.raises(ConfigError, match="no file that ends in"):
        distill(
            target, Letters(), DistillPlan(0.01, tmp_path), tmp_path / "head",
            progress=lambda _line: None,
        )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [{"minutes": 0.0}, {"minutes": 1.0, "num_tokens": 3}, {"minutes": 1.0, "rate": -1.0}],
)
def test_refuses_what_is_out_of_range(options):
    with pytest.raises(ConfigError):
        DistillPlan(**options)
