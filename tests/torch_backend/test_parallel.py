"""A model over several ranks: rank 0 decides, and a rank that differs is found at once."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest

from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.backends.torch_hf.loading import load_torch
from draftproof.backends.torch_hf.parallel import ParallelBackend, follow
from draftproof.backends.torch_hf.parallel_start import load_parallel
from draftproof.core.policy import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import BackendError, ConfigError, DraftproofError
from draftproof.proposers import NgramProposer, NgramTreeProposer

VOCAB = 12


class ThreadLink:
    """Two ranks in one process; a rank that is gone is noticed after a while."""

    def __init__(self, rank, boxes):
        self.rank = rank
        self.boxes = boxes

    def share(self, message):
        if self.rank == 0:
            self.boxes["orders"].put(message)
            return message
        return self.boxes["orders"].get(timeout=20)

    def compare(self, number):
        self.boxes[self.rank].put(number)
        other = self.boxes[1 - self.rank].get(timeout=20)
        return [number, other] if self.rank == 0 else [other, number]


TABLE = MarkovTable(VOCAB, 1, seed=3, spread=4.0)


def table(kind=TableBackend):
    return kind(TABLE, PagedStore(num_pages=24, page_size=4))


class Pair:
    """Rank 0 here and rank 1 in a thread, over a backend each."""

    def __init__(self, other):
        boxes = {"orders": queue.Queue(), 0: queue.Queue(), 1: queue.Queue()}
        self.error = None
        self.num_passes = None
        self.backend = ParallelBackend(table(), ThreadLink(0, boxes))

        def run():
            try:
                self.num_passes = follow(other, ThreadLink(1, boxes))
            except DraftproofError as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self):
        self.backend.shut_down()
        self.thread.join(20)
        assert not self.thread.is_alive()


def decode(backend, rule="block", proposer=None):
    core = EngineCore(backend, proposers=[proposer or NgramProposer(1, 3)], kappa=4, rule=rule)
    rng = np.random.default_rng(3)
    for index in range(6):
        prompt = tuple(int(t) for t in rng.integers(1, 5, 9 + index))
        params = SamplingParams(temperature=0.0 if index % 2 else 1.0)
        core.submit(GenerateRequest(prompt, params, 20, seed=index, request_id=str(index)))
    return core.run()


@pytest.mark.parametrize("proposer", [NgramProposer(1, 3), NgramTreeProposer(1, 3)])
def test_text_and_books_are_those_of_one_process(proposer):
    rule = None
    alone, other = table(), table()
    expected = decode(alone, rule, proposer)
    pair = Pair(other)
    found = decode(pair.backend, rule, proposer)
    pair.end()
    assert pair.error is None
    assert {k: r.token_ids for k, r in found.items()} == {
        k: r.token_ids for k, r in expected.items()
    }
    assert sum(r.stats.num_accepted_tokens for r in found.values()) > 10
    assert pair.num_passes == alone.num_calls == other.num_calls
    assert other.store.cache.usage() == pair.backend._local.store.cache.usage()


class Forgets(TableBackend):
    """The planted fault: one verdict is not carried out."""

    def truncate(self, sequence_id, length, keep=()):
        if self.length(sequence_id) == length or self.num_calls < 4:
            super().truncate(sequence_id, length, keep)


class OtherLaw(TableBackend):
    """The planted fault: rank 1 holds other weights from some pass on."""

    def forward(self, batch):
        logits = super().forward(batch)
        return -logits if self.num_calls == 4 else logits


class Full(TableBackend):
    """The planted fault: rank 1 has less room."""

    def reserve(self, sequence_id, num_tokens):
        return self.num_calls < 4 and super().reserve(sequence_id, num_tokens)


@pytest.mark.parametrize("fault", [Forgets, OtherLaw, Full])
def test_a_rank_that_differs_stops_the_run_within_one_round(fault):
    other = table(fault)
    pair = Pair(other)
    results = decode(pair.backend)
    errors = {str(r.error) for r in results.values() if r.error is not None}
    assert any("rank 1 differs from rank 0 before pass" in error for error in errors), errors
    assert "rank 1 differs" in str(pair.error)
    # The pass after the fault never ran, on either rank.
    assert other.num_calls == pair.backend._local.num_calls <= 5
    with pytest.raises(BackendError, match="rank 1 differs"):
        pair.backend.forward(None)
    pair.end()


def test_what_cannot_be_cut_is_refused(tmp_path, build_model):
    with pytest.raises(ConfigError, match="a model over 1 ranks; expected at least 2"):
        load_parallel(tmp_path, 1)
    for model, options, match in (
        (build_model("llama"), {}, "cannot be cut over ranks"),
        (tmp_path / "weights.gguf", {}, "expected a Hugging Face folder"),
        (tmp_path, {"device": "cpu"}, "expected 'auto'"),
        (tmp_path, {"linear": "packed"}, "layers over several ranks are 'plain'"),
        (tmp_path, {"with_hidden": True}, "expected a model in one process"),
    ):
        with pytest.raises(ConfigError, match=match):
            load_torch(model, num_ranks=2, **options)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_two_processes_give_the_text_of_one(tmp_path, build_model):
    build_model("llama").save_pretrained(tmp_path / "model")
    expected = decode(
        load_torch(tmp_path / "model", kv_cache_bytes=1 << 20, linear="plain"), "coupled"
    )
    backend = load_parallel(tmp_path / "model", 2, kv_cache_bytes=1 << 20)
    try:
        single = load_torch(tmp_path / "model", kv_cache_bytes=1 << 20, linear="plain")
        assert 2 * backend.info.kv_bytes_per_token == single.info.kv_bytes_per_token
        found = decode(backend, "coupled")
        assert {k: r.token_ids for k, r in found.items()} == {
            k: r.token_ids for k, r in expected.items()
        }
        with pytest.raises(ConfigError, match="belongs to a process group"):
            load_parallel(tmp_path / "model", 2)
    finally:
        backend.shut_down()
        backend.shut_down()
    with pytest.raises(BackendError, match="have ended"):
        backend.forward(None)
