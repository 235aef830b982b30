"""Passes that are padded to a bucket and replayed have the law of passes as they are."""

from __future__ import annotations

import graph_kit as kit
import numpy as np
import pytest
import torch
from test_families import TOLERANCE, run_machine

from draftproof.backends.torch_hf.buckets import ROWS, WIDTHS, bucket_of
from draftproof.backends.torch_hf.graphs import GraphRunner, Uncaptured
from draftproof.backends.torch_hf.inspect import describe_layers
from draftproof.backends.torch_hf.model import PagedModel
from draftproof.backends.torch_hf.padded import PaddedPlan
from draftproof.backends.torch_hf.plan import RowGroup, Upload
from draftproof.core.types import FlatBatch, Row
from draftproof.testing import check_backend


def paged_of(model, context=256):
    return PagedModel(model, [layer.kv for layer in describe_layers(model, context)], "sdpa")


def ragged(rng, backend, num_rows, most, *, trees):
    """Return rows of up to ``most`` tokens, one of them as long as that."""
    least = 1 if num_rows <= 4 else most // 2 + 1  # less, and padding would not be worth it
    rows = []
    for sequence in range(int(rng.integers(3 * num_rows // 4 + 1, num_rows + 1))):
        size = most if sequence == 0 else int(rng.integers(least, most + 1))
        parents = [-1] + [int(rng.integers(0, node)) for node in range(1, size)]
        rows.append(
            Row(
                sequence,
                rng.integers(0, 96, size).tolist(),
                backend.length(sequence),
                int(rng.integers(0, size + 1)),
                parents if trees else None,
            )
        )
    return FlatBatch.from_rows(rows)


@pytest.mark.parametrize(
    ("num_rows", "trees"), [*((num_rows, False) for num_rows in ROWS), (1, True), (8, True)]
)
def test_every_bucket_equals_passes_as_they_are(num_rows, trees, build_model):
    rng = np.random.default_rng(num_rows)
    paged = paged_of(build_model("mistral" if trees else "llama"))
    ours = kit.with_graphs(paged, kv_cache_bytes=4 << 20)
    plain = kit.with_graphs(paged, kv_cache_bytes=4 << 20, make_graphs=None)
    texts = [rng.integers(0, 96, size).tolist() for size in rng.integers(17, 48, num_rows)]
    prompts = FlatBatch.from_rows([Row(n, text, 0, 0) for n, text in enumerate(texts)])
    for backend in (ours, plain):
        assert [backend.open() for _ in texts] == list(range(num_rows))
        backend.forward(prompts)
    for width in WIDTHS:
        replayed = ours.graphs.num_replayed
        for _ in range(3):
            batch = ragged(rng, ours, num_rows, width, trees=trees)
            past = np.array([ours.length(n) for n in batch.sequence_ids], dtype=np.int32)
            bucket = bucket_of(batch, past)
            assert (bucket.num_rows, bucket.width, bucket.branches) == (num_rows, width, trees)
            got, expected = ours.forward(batch).copy(), plain.forward(batch)
            assert got.shape == expected.shape
            assert not got.size or np.abs(got - expected).max() < TOLERANCE
            for sequence, text in enumerate(texts):
                ours.truncate(sequence, len(text))
                plain.truncate(sequence, len(text))
        assert ours.graphs.num_replayed == replayed + 2


@pytest.mark.parametrize("family", ["mistral", "gemma3", "gpt2", "gpt-oss"], indirect=True)
def test_any_history_equals_a_fresh_prefill(family, decoder, references, build_model):
    paged = paged_of(build_model(family), 128)
    capturers = []

    def load():
        capturers.append(kit.RecordedOps())
        model = decoder("llama")
        model.backend = kit.with_graphs(paged, capturers[-1], context=128)
        return model

    run_machine(load, references(family), examples=3)
    assert sum(capturer.num_replayed for capturer in capturers) >= 3


def check_passes(ours, plain, rng):
    """Feed two sequences to two backends in the same passes, and compare."""
    for backend in (ours, plain):
        assert [backend.open(), backend.open()] == [0, 1]
    # Widths of both rows, and how many tokens each sequence drops after the pass.
    for widths, dropped in (
        ((20, 33), (0, 0)),
        *[((1, 0), (0, 0))] * 3,
        ((2, 5), (1, 4)),
        ((5, 2), (2, 0)),
        ((3, 4), (0, 3)),
        ((4, 3), (3, 1)),
        *[((0, 1), (0, 0))] * 2,
        ((1, 0), (9, 0)),
        ((1, 0), (0, 0)),
    ):
        rows = []
        for sequence, width in enumerate(widths):
            if width:
                tokens = rng.integers(0, 96, width).tolist()
                rows.append(Row(sequence, tokens, ours.length(sequence), width))
        batch = FlatBatch.from_rows(rows)
        assert np.abs(ours.forward(batch) - plain.forward(batch)).max() < TOLERANCE
        for sequence, count in enumerate(dropped):
            for backend in (ours, plain):
                backend.truncate(sequence, backend.length(sequence) - count)


def plant(fault, monkeypatch):
    """Break one promise of padded passes."""
    if fault == "a filler writes to a live slot":
        right = PaddedPlan.__init__

        def init(plan, *args, **kwargs):
            right(plan, *args[:6], 0, *args[7:], **kwargs)

        monkeypatch.setattr(PaddedPlan, "__init__", init)
    if fault == "entries of an earlier pass stay":
        send = Upload.send

        def stale(upload):
            held = None if upload.buffer is None else upload.buffer.clone()
            send(upload)
            if held is not None:
                upload.buffer[len(held) // 4 :] = held[len(held) // 4 :]

        monkeypatch.setattr(Upload, "send", stale)
    if fault == "slots past the end are seen":
        mask = RowGroup.mask

        def unmasked(group, window, repeat, dtype):
            group.is_fixed = False
            return mask(group, window, repeat, dtype)

        monkeypatch.setattr(RowGroup, "mask", unmasked)
    if fault == "the wanted rows of an earlier pass":
        wanted, before = PaddedPlan.wanted, {}

        def earlier(plan, logits):
            own = plan._wanted.clone()
            plan._wanted = before.get(own.shape, own)
            before[own.shape] = own
            return wanted(plan, logits)

        monkeypatch.setattr(PaddedPlan, "wanted", earlier)
    if fault == "the mask of an earlier pass":
        monkeypatch.setattr(PaddedPlan, "fresh", lambda plan: plan)


@pytest.mark.parametrize(
    "fault",
    [
        "a filler writes to a live slot",
        "entries of an earlier pass stay",
        "slots past the end are seen",
        "the wanted rows of an earlier pass",
        "the mask of an earlier pass",
    ],
)
def test_a_fault_of_padded_passes_is_seen(fault, build_model, monkeypatch):
    paged = paged_of(build_model("llama"))
    plain = kit.with_graphs(paged, make_graphs=None)
    ours = kit.with_graphs(paged)
    check_passes(ours, plain, np.random.default_rng(5))
    assert ours.graphs.num_replayed == 8
    plant(fault, monkeypatch)
    plain = kit.with_graphs(paged, make_graphs=None)
    with pytest.raises(AssertionError):
        check_passes(kit.with_graphs(paged), plain, np.random.default_rng(5))


def test_the_backend_passes_the_conformance_kit(build_model):
    paged = paged_of(build_model("gemma3"), 128)
    made = []

    def make():
        made.append(kit.with_graphs(paged, Uncaptured(), context=128, kv_cache_bytes=256 << 10))
        return made[-1]

    check_backend(make, tolerance=TOLERANCE).require()
    assert sum(backend.graphs.num_replayed for backend in made) > 20


def test_what_scratch_holds_is_never_read(build_model, references, tokens):
    backend = kit.with_graphs(build_model("mistral"))
    scratch = backend._pages.scratch
    expected = references("mistral")(tokens)
    sequence = backend.open()
    for place in range(0, 60, 3):
        for tensor in backend._pages._tensors:
            tensor[:, scratch:] = float("nan")
        row = Row(sequence, tokens[place : place + 3], place, 3)
        logits = backend.forward(FlatBatch.from_rows([row]))
        assert np.abs(logits - expected[place : place + 3]).max() < TOLERANCE
    assert backend.graphs.num_replayed == 19  # 20 passes, lengths of up to 64 are one bucket
    written = [bool(tensor[:, scratch].isnan().any()) for tensor in backend._pages._tensors]
    assert not any(written)  # the filler of each row of 3 in 4 went there


def test_double_precision_agrees_closely(build_model, tokens):
    paged = paged_of(build_model("llama").double())
    found = []
    for make in ({}, {"make_graphs": None}):
        backend = kit.with_graphs(paged, **make)
        sequence = backend.open()
        rows = [Row(sequence, tokens[at : at + 5], at, 5) for at in range(0, 60, 5)]
        found.append([backend.forward(FlatBatch.from_rows([row])).copy() for row in rows])
    scale = np.abs(found[1]).max()
    assert np.abs(np.subtract(*found)).max() < 2e-7 * scale  # float32 of the logits alone


@pytest.mark.parametrize("options", [{"with_hidden": True}, {"hidden_layers": (0, 1, 2)}])
@pytest.mark.parametrize("family", ["llama", "gpt2"], indirect=True)
def test_hidden_states_of_replays_are_those_of_passes(options, family, build_model, tokens):
    paged = paged_of(build_model(family))
    found = []
    for make in ({}, {"make_graphs": None}):
        backend = kit.with_graphs(paged, **options, **make)
        first, second = backend.open(), backend.open()
        states = []
        for at in range(0, 30, 3):
            rows = [
                Row(first, tokens[at : at + 3], at, 1),
                Row(second, tokens[at // 3 : at // 3 + 1], at // 3, 1),
            ]
            backend.forward(FlatBatch.from_rows(rows))
            states.append(backend.hidden().copy())
        found.append(states)
        if backend.graphs is not None:
            assert backend.graphs.num_replayed == 9
    for ours, plain in zip(*found, strict=True):
        assert ours.shape == plain.shape == (4, 64 * (3 if "hidden_layers" in options else 1))
        assert np.abs(ours - plain).max() < TOLERANCE


def test_hidden_states_of_wanted_rows_go_the_ordinary_way(build_model, tokens):
    backend = kit.with_graphs(build_model("llama"))
    sequence = backend.open()
    for at in range(3):
        row = Row(sequence, tokens[at : at + 1], at, 1)
        _, hidden = backend.forward_with_hidden(FlatBatch.from_rows([row]), [0, -1])
        assert hidden.shape == (2, 1, 64)
    assert backend.graphs.num_captured == 0


def test_logits_of_a_pass_outlive_the_next_one(build_model, tokens):
    backend = kit.with_graphs(build_model("llama"), host_logits=False)
    sequence = backend.open()
    kept = []
    for at in range(4):
        row = Row(sequence, tokens[at : at + 1], at, 1)
        logits = backend.forward(FlatBatch.from_rows([row]))
        assert isinstance(logits, torch.Tensor)
        kept.append((logits, logits.clone()))
    assert backend.graphs.num_replayed == 3
    assert all(torch.equal(logits, held) for logits, held in kept)


def test_a_runner_is_what_the_backend_asks_for(build_model):
    model = paged_of(build_model("llama"))
    made = []

    def make(paged, pages):
        made.append(GraphRunner(paged, pages, Uncaptured()))
        return made[-1]

    backend = kit.with_graphs(model, make_graphs=make)
    draft = backend.early_exit(1)
    assert len(made) == 2
    assert backend.graphs == draft.graphs == made[0].counts
    assert draft.info.context_length == backend.info.context_length
    assert draft._pages.num_pages >= backend._pages.num_pages
