"""Damaged files of a work folder are named, with what to do about them."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.distill.corpus import Corpus, Recording
from draftproof.distill.draft_ids import chosen_ids, read_ids
from draftproof.distill.network import DraftHead
from draftproof.distill.progress import State
from draftproof.errors import ModelFileError
from draftproof.models.head_files import HeadShape


def damages(path):
    """Leave a file cut off, empty, of junk, and with an array alone, one after another."""
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"junk", b"PK\x03\x04" + b"x" * 200):
        path.write_bytes(content)
        yield
    with path.open("wb") as stream:
        np.save(stream, np.arange(3))
    yield


def recordings(count):
    return [
        Recording(np.arange(6, dtype=np.int32), np.ones((5, 4), np.float16)) for _ in range(count)
    ]


def test_shards(tmp_path):
    corpus = Corpus(tmp_path)
    path = corpus.add(recordings(3))
    assert corpus.num_tokens() == 15
    assert corpus.width() == 4
    for _ in damages(path):
        for reading in (corpus.num_tokens, corpus.width, lambda: corpus.read(path)):
            with pytest.raises(ModelFileError, match=r"shard-00000\.npz: is damaged"):
                reading()


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": np.array([5, 6])},
        {"lengths": np.array([5, -5, 10])},
        {"lengths": np.array([5.0, 5.0])},
        {"token_ids": np.zeros(11, np.int32)},
        {"hidden": np.zeros(10, np.float16)},
    ],
)
def test_shards_whose_arrays_do_not_fit(tmp_path, change):
    held = {
        "lengths": np.array([5, 5]),
        "token_ids": np.zeros(12, np.int32),
        "hidden": np.zeros((10, 4), np.float16),
    }
    path = tmp_path / "shard-00000.npz"
    np.savez(path, **held)
    assert len(Corpus(tmp_path).read(path).recordings) == 2
    np.savez(path, **(held | change))
    with pytest.raises(ModelFileError, match="is damaged"):
        Corpus(tmp_path).read(path)


def test_draft_ids(tmp_path):
    corpus = Corpus(tmp_path)
    corpus.add(recordings(3))
    output = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    path = tmp_path / "draft_ids.npz"
    ids, coverage = chosen_ids(path, corpus, output, 8)
    again, same = chosen_ids(path, corpus, output, 8)
    assert np.array_equal(ids, again)
    assert coverage == same
    assert [each.name for each in tmp_path.glob("*.part")] == []
    with pytest.raises(ModelFileError, match="can be drafted, of a target with"):
        chosen_ids(path, corpus, output[: ids[-1]], 8)
    for _ in damages(path):
        with pytest.raises(ModelFileError, match="remove it, and they are chosen again"):
            read_ids(path)
    np.savez(path, ids=np.array([3, 1]), coverage=1.0)
    with pytest.raises(ModelFileError, match="remove it, and they are chosen again"):
        read_ids(path)


def test_checkpoints(tmp_path):
    shape = HeadShape(
        hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=8, vocab_size=12,
        draft_vocab_size=8,
    )  # fmt: skip
    path = tmp_path / "training.pt"
    state = State(DraftHead(shape), 1.0)
    state.num_updates = 7
    state.save(path)
    other = State(DraftHead(shape), 1.0)
    other.load(path)
    assert other.num_updates == 7
    for _ in damages(path):
        with pytest.raises(ModelFileError, match=r"training\.pt: does not fit this training"):
            other.load(path)
