"""A work folder goes on with what it was made from, and with nothing else."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from draftproof.backends.borrowed import borrow
from draftproof.backends.fingerprint import fingerprint, is_like
from draftproof.backends.torch_hf import load_torch
from draftproof.build.heads import load_head
from draftproof.distill.corpus import Corpus, Recording
from draftproof.distill.held_out import split
from draftproof.distill.origin import Origin, check_origin, read_origin, write_origin
from draftproof.distill.run import DistillPlan, distill
from draftproof.distill.texts import record_texts, text_files
from draftproof.distill.work import ORIGIN, asked_origin, open_work
from draftproof.errors import ConfigError, ModelFileError
from draftproof.models.head_files import HeadShape, HeadWeights, write_head


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


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, letter in (("a.txt", "a"), ("b.txt", "b"), ("c.txt", "c")):
        (folder / name).write_text(letter * 1024)
    return folder


def asked(target, size=64, *, has_texts=False):
    return asked_origin(target.info, borrow(target), size, has_texts=has_texts)


def read(target, texts, folder, num_tokens=100_000, is_over=lambda: False):
    """Read texts with the folder's record; return the corpus and the record."""
    origin = open_work(folder, asked(target, has_texts=True), 64, quiet)
    corpus = Corpus(folder / "work" / "corpus")
    record_texts(
        target, Letters(), texts, corpus, origin, num_tokens,
        save=lambda now: write_origin(folder / "work" / ORIGIN, now), is_over=is_over,
        progress=quiet,
    )  # fmt: skip
    return corpus, read_origin(folder / "work" / ORIGIN)


def read_tokens(corpus):
    """Return how many positions of each letter are in the corpus."""
    counts = {}
    for shard in corpus:
        for each in shard.recordings:
            name = chr(int(each.token_ids[0]) + 96 if each.token_ids[0] < 32 else 0)
            counts[name] = counts.get(name, 0) + len(each)
    return counts


def test_fingerprints_survive_rounding_and_tell_models_apart():
    matrix = np.random.default_rng(0).normal(size=(500, 64)).astype(np.float32)
    scale = np.abs(matrix).max(1, keepdims=True)
    for steps in (127, 7):
        rounded = np.round(matrix / scale * steps) * scale / steps
        assert is_like(fingerprint(matrix), fingerprint(rounded))
    assert not is_like(fingerprint(matrix), fingerprint(matrix[::-1]))
    assert not is_like(fingerprint(matrix), "no base 64")
    assert not is_like(fingerprint(matrix), fingerprint(matrix[:, :5]))


def test_another_model_is_refused_in_the_same_folder(target, other, tmp_path):
    open_work(tmp_path, asked(target), 64, quiet)
    open_work(tmp_path, asked(target), 64, quiet)
    with pytest.raises(ConfigError, match="whose output layer is not that of"):
        open_work(tmp_path, asked(other), 64, quiet)


def test_layers_count_where_the_output_layer_is_the_same(target, tmp_path):
    known = asked(target)
    moved = replace(known, state=fingerprint(borrow(target).states[:, ::-1]))
    with pytest.raises(ConfigError, match="whose hidden states are not that of"):
        check_origin(known, moved, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_vocab_size": 32}, "--draft-vocab was 64 and is 32 now"),
        ({"precision": "int4"}, "precision of the target was .* and is int4 now"),
        ({"text": "files"}, "the text was the target's own answers and is texts of --text now"),
    ],
)
def test_what_differs_is_named(target, tmp_path, change, message):
    known = asked(target)
    with pytest.raises(ConfigError, match=message):
        check_origin(known, replace(known, **change), tmp_path)


def test_an_interrupted_reading_goes_on(target, texts, tmp_path, monkeypatch):
    monkeypatch.setattr("draftproof.distill.texts._AT_ONCE", 3)
    calls = iter([False] * 4 + [True] * 9)
    corpus, origin = read(target, texts, tmp_path, is_over=lambda: next(calls))
    assert [(each.name, each.num_pieces, each.is_read) for each in origin.files] == [
        ("a.txt", 4, True),
        ("b.txt", 1, False),
    ]
    # A write that was interrupted: the shard is there, and the record does not know it.
    corpus.add([Recording.of([9] * 50, [np.zeros((49, 64), np.float32)])])
    corpus, origin = read(target, texts, tmp_path)
    assert read_tokens(corpus) == {"a": 1023, "b": 1023, "c": 1023}
    assert all(each.is_read for each in origin.files)
    # Nothing is left to read: the same command changes nothing.
    paths = corpus.paths()
    assert read(target, texts, tmp_path)[0].paths() == paths


def test_limits_hold_inside_a_file_and_shards_are_bounded(target, tmp_path, monkeypatch):
    monkeypatch.setattr("draftproof.distill.texts._AT_ONCE", 12)
    monkeypatch.setattr("draftproof.distill.texts._BLOCK", 1000)
    text = tmp_path / "big.txt"
    text.write_text("a" * 20_000)
    corpus, origin = read(target, text, tmp_path / "head", 500)
    assert corpus.num_tokens() < 800
    assert not origin.files[0].is_read
    corpus, origin = read(target, text, tmp_path / "head", 15_000)
    assert 15_000 <= corpus.num_tokens() < 15_300
    assert max(len(shard.recordings) for shard in corpus) <= 12
    training, held = split(corpus)
    pieces = [sum(len(corpus.read(path).recordings) for path in part) for part in (training, held)]
    assert pieces[1] == pytest.approx(sum(pieces) / 12, abs=1)


def test_files_are_known_by_their_ending_in_any_case(tmp_path):
    for name in ("b.TXT", "a.Md", "c.pdf"):
        (tmp_path / name).write_text("text")
    (tmp_path / "d.md").mkdir()
    assert [path.name for path in text_files(tmp_path)] == ["a.Md", "b.TXT"]
    assert text_files(tmp_path / "c.pdf") == [tmp_path / "c.pdf"]


def test_other_texts_are_refused_and_more_are_read(target, texts, tmp_path):
    corpus, _origin = read(target, texts, tmp_path)
    (texts / "0.txt").write_text("d" * 512)
    assert sum(read_tokens(read(target, texts, tmp_path)[0]).values()) == 3 * 1023 + 511
    (texts / "a.txt").write_text("x" * 1024)
    with pytest.raises(ConfigError, match=r"a\.txt was read before and is another text of --text"):
        read(target, texts, tmp_path)
    (texts / "a.txt").unlink()
    with pytest.raises(ConfigError, match=r"a\.txt was read before and is no part of --text"):
        read(target, texts, tmp_path)
    assert corpus.num_tokens() == 3 * 1023 + 511


def older(folder, text, width=64):
    """Leave what an earlier version left."""
    corpus = Corpus(folder / "work" / "corpus")
    for _ in range(3):
        corpus.add([Recording.of([1] * 9, [np.zeros((8, width), np.float32)])])
    np.savez(folder / "work" / "draft_ids.npz", ids=np.arange(64), coverage=1.0)
    config = {"draftproof": {"text": text}}
    config["speculators_config"] = {"verifier": {"name_or_path": "some-model"}}
    (folder / "config.json").write_text(json.dumps(config))


def test_folders_of_earlier_versions_are_taken_over(target, tmp_path):
    older(tmp_path, "the target's own answers")
    lines = []
    found = open_work(tmp_path, asked(target), 64, lines.append)
    assert (found.text, found.is_closed, found.target) == ("own", False, "some-model")
    assert "earlier version" in lines[0]
    assert "some-model" in lines[0]
    assert read_origin(tmp_path / "work" / ORIGIN) == found
    with pytest.raises(ConfigError, match="--draft-vocab was 64 and is 32 now"):
        open_work(tmp_path, asked(target, 32), 64, quiet)


def test_texts_of_an_earlier_version_are_kept_and_none_are_added(target, texts, tmp_path):
    folder = tmp_path / "head"
    older(folder, "the user's")
    found = open_work(folder, asked(target, has_texts=True), 64, quiet)
    assert found.is_closed
    with pytest.raises(ConfigError, match="the text was texts of --text"):
        open_work(folder, asked(target), 64, quiet)
    made = distill(target, Letters(), DistillPlan(0.005, texts, draft_vocab_size=64), folder,
                   progress=quiet)  # fmt: skip
    assert made.num_recorded == 24


def test_an_earlier_folder_of_another_width_is_refused(target, tmp_path):
    older(tmp_path, "the target's own answers", width=128)
    with pytest.raises(ConfigError, match="hidden states of width 128"):
        open_work(tmp_path, asked(target), 64, quiet)


def test_a_damaged_record_is_told(tmp_path):
    path = tmp_path / ORIGIN
    assert read_origin(path) is None
    written = Origin("m", "f32", "", "", "own", 8)
    write_origin(path, written)
    assert read_origin(path) == written
    whole = path.read_text()
    for text in (whole[:20], "[]", "{}", whole.replace('"own"', '"other"')):
        path.write_text(text)
        with pytest.raises(ModelFileError, match="what the folder was made from"):
            read_origin(path)


def test_a_head_of_another_model_is_told_of(target, other, tmp_path):
    shape = HeadShape(
        hidden_size=64, num_heads=1, num_kv_heads=1, head_dim=64, ffn_size=8, vocab_size=96,
        draft_vocab_size=4,
    )  # fmt: skip
    tensors = {name: np.zeros(extent, np.float32) for name, extent in shape.tensors().items()}
    mark = {"target_embedding": fingerprint(borrow(target).embedding)}
    write_head(tmp_path / "head", HeadWeights(shape, tensors, np.arange(4), "tiny", mark))
    write_head(tmp_path / "old", HeadWeights(shape, tensors, np.arange(4), "tiny", {}))
    lines = []
    for name, model in (("head", target), ("old", other)):
        load_head(str(tmp_path / name), model, progress=lines.append)
    assert not lines
    load_head(str(tmp_path / "head"), other, progress=lines.append)
    assert "was trained for tiny, whose weights are not those of" in lines[0]
