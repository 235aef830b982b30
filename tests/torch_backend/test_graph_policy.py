"""When passes are captured, which graphs are kept, and what happens when one fails."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import graph_kit as kit
import numpy as np
import pytest
import tokenizers
import torch

from draftproof.backends.torch_hf import load_torch
from draftproof.backends.torch_hf.buckets import bucket_of
from draftproof.backends.torch_hf.cuda_graphs import CudaCapturer, choose_graphs
from draftproof.backends.torch_hf.graphs import GraphCounts, Uncaptured
from draftproof.build.runtimes import RuntimeOptions, load_model
from draftproof.core.params import SamplingParams
from draftproof.core.types import FlatBatch, Row
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import BackendError, ConfigError
from draftproof.proposers import DraftModelProposer, NgramProposer


class Text:
    """One sequence that is fed a text in rows of given widths, each checked."""

    def __init__(self, backend, expected, tokens) -> None:
        self.backend, self.expected, self.tokens = backend, expected, tokens
        self.sequence = backend.open()

    def feed(self, *widths):
        for width in widths:
            begin = self.backend.length(self.sequence)
            row = Row(self.sequence, self.tokens[begin : begin + width], begin, width)
            logits = self.backend.forward(FlatBatch.from_rows([row]))
            assert np.abs(logits - self.expected[begin : begin + width]).max() < 2e-5
        return self.backend.graphs


@pytest.fixture
def text(build_model, references, tokens):
    def make(capturer=None, *, model=None, **limits):
        backend = kit.with_graphs(model or build_model("llama"), capturer, **limits)
        return Text(backend, references("llama")(tokens), tokens)

    return make


def batch_of(*sizes, trees=False):
    parents = [-1] if trees else None
    rows = [Row(n, [1] * size, 0, size) for n, size in enumerate(sizes)]
    if trees:
        rows[0] = Row(0, [1], 0, 1, parents)
    return FlatBatch.from_rows(rows)


@pytest.mark.parametrize(
    ("sizes", "past", "bucket"),
    [
        ((1,), 0, (1, 1, 64, False)),
        ((1,), 63, (1, 1, 64, False)),
        ((1,), 64, (1, 1, 96, False)),
        ((9, 1), 96, (2, 12, 128, False)),
        ((3, 3, 3), 1000, (4, 4, 1024, False)),
        ((17,), 0, None),  # wider than any bucket
        ((1,) * 65, 0, None),  # more rows than any bucket has
        ((16,) + (1,) * 7, 0, None),  # 128 tokens for 23
        ((16,) + (8,) * 7, 0, (8, 16, 64, False)),  # 128 tokens for 72
        ((12,) + (1,) * 3, 0, (4, 12, 64, False)),  # 48 tokens cost what 15 do
    ],
)
def test_a_pass_is_padded_to_the_smallest_bucket_that_holds_it(sizes, past, bucket):
    found = bucket_of(batch_of(*sizes), np.full(len(sizes), past, dtype=np.int32))
    shape = found and (found.num_rows, found.width, found.length, found.branches)
    assert shape == bucket


def test_passes_that_branch_have_buckets_of_their_own():
    past = np.zeros(1, dtype=np.int32)
    assert bucket_of(batch_of(1, trees=True), past).branches
    assert not bucket_of(batch_of(1), past).branches


def test_a_bucket_is_captured_when_it_comes_often(text):
    capturer = kit.RecordedOps()
    subject = text(capturer, sightings=3)
    assert subject.feed(1, 1) == GraphCounts(0, 0, 0, 0, "")
    assert subject.feed(1) == GraphCounts(1, 0, 1, 0, "")
    assert subject.feed(1, 1) == GraphCounts(1, 2, 1, 0, "")
    assert subject.feed(2, 20, 2) == GraphCounts(1, 2, 1, 0, "")  # 20 fit no bucket
    assert subject.feed(2, 2, 1) == GraphCounts(2, 4, 2, 0, "")
    assert (capturer.num_captured, capturer.num_replayed) == (2, 4)


def test_the_graph_used_longest_ago_is_dropped(text):
    subject = text(Uncaptured(), most_graphs=2)
    assert subject.feed(1, 2, 1) == GraphCounts(2, 1, 2, 0, "")
    assert subject.feed(4) == GraphCounts(3, 1, 2, 1, "")  # that of width 2
    assert subject.feed(1) == GraphCounts(3, 2, 2, 1, "")
    assert subject.feed(2, 1, 2) == GraphCounts(4, 4, 2, 2, "")


def test_a_capture_that_fails_is_the_last_and_passes_go_on(text):
    subject = text(kit.Failing(1))
    subject.feed(1, 1)
    why = "a pass could not be captured: RuntimeError: out of memory"
    with pytest.warns(RuntimeWarning, match=f"no more CUDA graphs: {why}"):
        subject.feed(2)
    assert subject.feed(2, 4, 4) == GraphCounts(1, 1, 1, 0, why)  # and no second warning
    assert subject.feed(1) == GraphCounts(1, 2, 1, 0, why)


def test_a_replay_that_differs_is_thrown_away_with_all_graphs(text):
    subject = text(kit.Drifting())
    assert subject.feed(1).num_held == 1
    with pytest.warns(RuntimeWarning, match="a replay differs from its pass by"):
        subject.feed(1)
    counts = subject.feed(1, 1)
    assert (counts.num_replayed, counts.num_held) == (0, 0)


def test_a_model_that_reads_its_tensors_is_not_captured(build_model, text):
    model = build_model("llama")
    right = model.model.norm.forward

    def reading(hidden):
        return right(hidden) if hidden.sum().item() is not None else hidden

    model.model.norm.forward = reading
    subject = text(model=model)
    with pytest.warns(RuntimeWarning, match="waits for the device, which a capture cannot"):
        subject.feed(1)
    assert subject.feed(1, 1).num_captured == 0


def test_a_model_with_a_hook_is_not_captured(build_model, text):
    model = build_model("llama")
    model.model.layers[1].register_forward_hook(lambda *_arguments: None)
    subject = text(model=model)
    with pytest.warns(RuntimeWarning, match=r"model.layers.1 has a hook, which a replay skips"):
        subject.feed(1)
    assert subject.feed(1).num_captured == 0


def test_a_failure_in_a_replay_appends_nothing(text):
    class Broken:
        def capture(self, call):
            def replay():
                raise RuntimeError("an illegal\naddress")

            return replay

    subject = text(Broken())
    subject.feed(1)
    with pytest.raises(BackendError, match="torch failed in a graph: an illegal address"):
        subject.feed(1)
    assert subject.backend.length(subject.sequence) == 1


PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1)


@pytest.mark.parametrize("kind", ["ngram", "early exit"])
def test_texts_of_an_engine_that_preempts_are_the_plain_texts(kind, build_model):
    # Room for 6 pages of 16 tokens: four requests of up to 33 do not fit beside each other.
    room = 7 * 16 * 2 * 2 * 2 * 16 * 4
    backend = kit.with_graphs(build_model("llama"), Uncaptured(), kv_cache_bytes=room)
    plain = kit.with_graphs(build_model("llama"), make_graphs=None)
    drafter = (
        NgramProposer()
        if kind == "ngram"
        else DraftModelProposer(backend.early_exit(1, kv_cache_bytes=1 << 20))
    )
    texts = []
    for target, proposers in ((plain, []), (backend, [drafter])):
        core = EngineCore(target, proposers=proposers, kappa=3 * len(proposers))
        greedy = SamplingParams(temperature=0.0)
        names = [
            core.submit(GenerateRequest((first, *PROMPT), greedy, max_tokens=20))
            for first in range(4)
        ]
        results = core.run()
        assert not any(result.error for result in results.values())
        texts.append([results[name].token_ids for name in names])
    assert core.num_preemptions > 0
    assert texts[0] == texts[1]
    assert backend.graphs.num_replayed > 5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"cuda_graphs": "on"}, "cuda_graphs is 'on', but the model is on cpu; expected 'auto'"),
        ({"cuda_graphs": "maybe"}, "cuda_graphs is 'maybe', expected one of auto, on, off"),
    ],
)
def test_graphs_that_cannot_be_are_refused(options, reason, build_model):
    with pytest.raises(ConfigError, match=reason):
        load_torch(build_model("llama"), kv_cache_bytes=1 << 20, **options)


def test_graphs_are_off_on_the_cpu_and_wherever_they_cannot_be(build_model):
    assert load_torch(build_model("llama"), kv_cache_bytes=1 << 20).graphs is None
    cuda = torch.device("cuda")
    made = choose_graphs("auto", cuda, 1)
    assert isinstance(made.keywords["capturer"], CudaCapturer)
    assert choose_graphs("off", cuda, 1) is None
    assert choose_graphs("auto", cuda, 2) is None
    with pytest.raises(ConfigError, match="but the model is cut over 2 ranks"):
        choose_graphs("on", cuda, 2)
    eager = SimpleNamespace(capturable=False, kernel=SimpleNamespace(name="eager"))
    assert choose_graphs("auto", cuda, 1, eager) is None
    with pytest.raises(ConfigError, match="but eager attention cannot be captured"):
        choose_graphs("on", cuda, 1, eager)


def test_the_deterministic_mode_runs_without_graphs(build_model, tmp_path):
    build_model("llama").save_pretrained(tmp_path)
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(tmp_path / "tokenizer.json"))
    options = RuntimeOptions(cuda_graphs="on")
    with pytest.raises(ConfigError, match="the deterministic mode runs without graphs"):
        load_model(tmp_path, runtime=options, deterministic=True)


def test_room_for_scratch_is_needed(build_model):
    with pytest.raises(ConfigError, match="expected at least two pages of 8192 bytes"):
        kit.with_graphs(build_model("llama"), kv_cache_bytes=10_000)


class FakeCuda:
    """What `CudaCapturer` calls of torch.cuda, written down."""

    def __init__(self, monkeypatch) -> None:
        self.log, self.stream_now = [], "user's"
        for name in ("current_stream", "device", "stream", "graph", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "Stream", lambda: FakeStream("side"))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)

    def current_stream(self, _device=None):
        return FakeStream(self.stream_now)

    def graph_pool_handle(self):
        self.log.append("pool")
        return "the pool"

    @contextmanager
    def device(self, _device):
        yield

    @contextmanager
    def stream(self, stream):
        before, self.stream_now = self.stream_now, stream.name
        try:
            yield
        finally:
            self.stream_now = before

    @contextmanager
    def graph(self, _graph, *, pool, stream, capture_error_mode):
        assert (pool, capture_error_mode) == ("the pool", "thread_local")
        self.stream_now = stream.name
        self.log.append("begin")
        yield  # like torch, leaves the stream as it is when the capture fails
        self.log.append("end")
        self.stream_now = "user's"

    def replay(self):
        self.log.append(f"replay on {self.stream_now}")


class FakeStream:
    def __init__(self, name) -> None:
        self.name = name

    def wait_stream(self, _other) -> None:
        pass


def test_cuda_captures_after_warm_ups_on_one_side_stream_and_pool(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    capturer = CudaCapturer(torch.device("cuda"))

    def call():
        cuda.log.append(f"run on {cuda.stream_now}")
        return "logits", None

    replay = capturer.capture(call)
    warm_up = ["run on side"] * 3
    assert cuda.log == ["pool", *warm_up, "begin", "run on side", "end"]
    assert replay() == ("logits", None)
    assert cuda.log[-1] == "replay on user's"
    cuda.log.clear()
    capturer.capture(call)
    assert cuda.log == [*warm_up, "begin", "run on side", "end"]


def test_a_capture_that_fails_gives_the_stream_back(monkeypatch):
    cuda = FakeCuda(monkeypatch)

    def call():
        if cuda.log[-1] == "begin":
            raise RuntimeError("operation not permitted when stream is capturing")
        return "logits", None

    with pytest.raises(RuntimeError, match="not permitted"):
        CudaCapturer(torch.device("cuda")).capture(call)
    assert cuda.stream_now == "user's"
