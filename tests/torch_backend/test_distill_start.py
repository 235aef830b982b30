"""A training may start from a trained head of the same model, and from no other."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from draftproof.backends.borrowed import borrow
from draftproof.backends.torch_hf import load_torch
from draftproof.cli.app import app
from draftproof.cli.context import CliContext
from draftproof.distill.corpus import Corpus
from draftproof.distill.network import DraftHead
from draftproof.distill.run import DistillPlan, distill
from draftproof.distill.start import read_start
from draftproof.distill.target_head import TargetHead
from draftproof.distill.train import TrainingPlan, train
from draftproof.errors import ConfigError, IncompatibleModelsError
from draftproof.models.head_files import read_head


def quiet(_line):
    """Hear nothing."""


class Letters:
    """A tokenizer of one token per letter."""

    vocab_size = 96
    eos_token_ids = frozenset()

    def encode(self, text, *, add_special=True):
        return [ord(letter) % 96 for letter in text]


@pytest.fixture(scope="module")
def target(build_model):
    return load_torch(build_model("llama"), kv_cache_bytes=1 << 22, with_hidden=True)


@pytest.fixture(scope="module")
def other(build_model):
    """The same shape, other weights."""
    model = build_model("llama")
    for each in model.parameters():
        each.data.copy_(each.data.flip(0))
    return load_torch(model, kv_cache_bytes=1 << 22, with_hidden=True)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 40)
    return path


@pytest.fixture(scope="module")
def first(target, texts, tmp_path_factory):
    """Return the folder of a head that was trained for a moment."""
    folder = tmp_path_factory.mktemp("first")
    distill(target, Letters(), DistillPlan(0.02, texts, draft_vocab_size=64), folder,
            progress=quiet)  # fmt: skip
    return folder


def test_training_begins_at_the_weights_that_are_given(target, first):
    start = read_head(first)
    head = DraftHead(start.shape)
    borrowed = borrow(target)
    shared = TargetHead.of(borrowed.embedding, borrowed.output, start.draft_ids)
    corpus = Corpus(first / "work" / "corpus")

    def trained(weights, folder):
        folder.mkdir()
        return train(
            head, shared, corpus, TrainingPlan(1e-9), folder=folder, progress=quiet, start=weights
        ).weights

    for weights, is_start in ((start.tensors, True), (None, False)):
        found = trained(weights, first / f"from-start-{is_start}")
        same = all(np.array_equal(found[name], start.tensors[name]) for name in found)
        assert same == is_start


def test_another_draft_vocabulary_may_go_on_from_a_head(target, texts, first, tmp_path):
    start = read_start(str(first))
    plan = DistillPlan(0.02, texts, draft_vocab_size=32, start=start)
    lines = []
    made = distill(target, Letters(), plan, tmp_path, progress=lines.append)
    assert (made.head.shape.draft_vocab_size, start.head.shape.draft_vocab_size) == (32, 64)
    assert made.head.notes["start"] == start.name
    for changed in (None, read_start(str(tmp_path))):
        with pytest.raises(ConfigError, match=r"--start was .* now"):
            distill(target, Letters(), DistillPlan(0.02, texts, draft_vocab_size=32,
                    start=changed), tmp_path, progress=quiet)  # fmt: skip
    distill(target, Letters(), plan, tmp_path, progress=lines.append)
    assert any("going on after" in line for line in lines)


def test_a_start_may_be_given_once_there_is_text_and_no_training(target, texts, first, tmp_path):
    distill(target, Letters(), DistillPlan(0.02, texts, draft_vocab_size=64), tmp_path,
            progress=quiet)  # fmt: skip
    (tmp_path / "work" / "training.pt").unlink()
    plan = DistillPlan(0.02, texts, draft_vocab_size=64, start=read_start(str(first)))
    assert distill(target, Letters(), plan, tmp_path, progress=quiet).head.notes["start"]


def test_a_head_of_another_model_is_no_start(other, texts, first, tmp_path):
    plan = DistillPlan(0.02, texts, draft_vocab_size=64, start=read_start(str(first)))
    with pytest.raises(IncompatibleModelsError, match="whose weights are not those"):
        distill(other, Letters(), plan, tmp_path / "a", progress=quiet)
    small = DistillPlan(0.02, texts, draft_vocab_size=64, start=read_start("smollm2-head"))
    with pytest.raises(IncompatibleModelsError, match=r"hidden_size=576.*expected one of.*=64"):
        distill(other, Letters(), small, tmp_path / "b", progress=quiet)
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_what_is_no_start_is_refused_before_a_model_is_loaded(tmp_path):
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    (published / "model.safetensors").write_bytes(b"")
    cases = (("nowhere", 1, "nowhere: no draft head"), (published, 2, "a published head"))
    for ref, code, words in cases:
        result = CliRunner().invoke(
            app, ["distill", "-m", "none", "--start", str(ref), "-o", str(tmp_path / "head")],
            obj=CliContext(),
        )  # fmt: skip
        assert result.exit_code == code
        assert words in " ".join(result.output.split())
