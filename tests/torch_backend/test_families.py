"""Every family equals its own plain forward, in whatever pieces a text is fed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from draftproof.backends.torch_hf import TorchBackend
from draftproof.backends.torch_hf.inspect import describe_layers
from draftproof.backends.torch_hf.model import PagedModel
from draftproof.backends.torch_hf.plan import RowGroup
from draftproof.errors import RollbackError
from draftproof.testing import check_backend

PAGE = 16
TOLERANCE = 2e-5
WIDTHS = ([60], [3, 1, 36, 1, 1, 13, 2, 3])


@pytest.mark.parametrize("attention", ["sdpa", "explicit"])
def test_pieces_of_any_width_equal_the_plain_forward(
    family, attention, decoder, references, tokens
):
    expected = references(family)(tokens)
    model = decoder(family, attention=attention)
    for widths in WIDTHS:
        assert np.abs(model.score(tokens, widths) - expected).max() < TOLERANCE


class Machine(RuleBasedStateMachine):
    """Sequences that grow, branch, roll back, fork and end, in passes of several rows."""

    def __init__(self, decoder, reference) -> None:
        super().__init__()
        self.decoder, self.backend, self.reference = decoder, decoder.backend, reference
        self.texts: dict[int, list[int]] = {}
        self.committed: dict[int, int] = {}  # where no window has left anything behind: 0

    def pick(self, data):
        return data.draw(st.sampled_from(sorted(self.texts)))

    @rule(text=st.lists(st.integers(0, 95), min_size=1, max_size=40))
    def start(self, text):
        sequence = self.backend.open(text)
        self.texts[sequence] = text[: self.backend.length(sequence)]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def append(self, data):
        """Append to some sequences in one pass: narrow rows, and sometimes a wide one."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=1, unique=True))
        rows = []
        for sequence in chosen:
            longest = min(40, 120 - len(self.texts[sequence]))
            size = data.draw(st.sampled_from([1, 1, 2, 5, longest]))
            rows.append((sequence, data.draw(drafts(min(size, longest))), None))
        for (sequence, new, _), logits in zip(rows, self.decoder.feed_all(rows), strict=True):
            self.texts[sequence] += new
            expected = self.reference(self.texts[sequence])[-len(new) :]
            assert np.abs(logits - expected).max() < TOLERANCE

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def branch(self, data):
        """Append trees and chains in one pass, check every node, keep one path of each."""
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.texts)), min_size=1, unique=True))
        rows = []
        for sequence in chosen:
            size = data.draw(st.integers(2, 8))
            new = data.draw(drafts(size))
            parents = [-1] + [data.draw(st.integers(0, node - 1)) for node in range(1, size)]
            rows.append((sequence, new, parents))
        found = self.decoder.feed_all(rows)
        for (sequence, new, parents), logits in zip(rows, found, strict=True):
            text, paths = self.texts[sequence], []
            for node, parent in enumerate(parents):
                paths.append([*(paths[parent] if node else []), node])
                expected = self.reference([*text, *(new[at] for at in paths[-1])])[-1]
                assert np.abs(logits[node] - expected).max() < TOLERANCE
            kept = data.draw(st.sampled_from(paths))
            start = len(text)
            self.backend.truncate(sequence, start + 1, [start + node for node in kept[1:]])
            self.texts[sequence] = [*text, *(new[node] for node in kept)]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def truncate(self, data):
        sequence = self.pick(data)
        length = data.draw(st.integers(0, len(self.texts[sequence])))
        try:
            self.backend.truncate(sequence, length)
        except RollbackError:
            # Only what all layers' windows had left behind, more than a page before a commit.
            assert 0 < length < self.committed[sequence] - PAGE
            return
        self.committed[sequence] = self.committed.get(sequence, 0) if length else 0
        self.texts[sequence] = self.texts[sequence][:length]

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def fork(self, data):
        sequence = self.pick(data)
        child = self.backend.fork(sequence)
        self.texts[child] = list(self.texts[sequence])
        self.committed[child] = self.committed.get(sequence, 0)

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def commit(self, data):
        sequence = self.pick(data)
        self.backend.commit(sequence)
        if self.backend.gives_up_pages:
            self.committed[sequence] = max(
                self.committed.get(sequence, 0), len(self.texts[sequence])
            )

    @precondition(lambda self: len(self.texts) > 2)
    @rule(data=st.data())
    def close(self, data):
        sequence = self.pick(data)
        self.backend.close(sequence)
        del self.texts[sequence]

    @precondition(lambda self: any(len(text) > 100 for text in self.texts.values()))
    @rule()
    def close_long(self):
        """End what is close to the context length, so that rows always fit."""
        for sequence, text in list(self.texts.items()):
            if len(text) > 100:
                self.backend.close(sequence)
                del self.texts[sequence]


def test_pages_that_every_window_has_left_behind_are_given_up(decoder, references):
    text = np.random.default_rng(3).integers(0, 96, 110).tolist()
    model = decoder("mistral", page_size=4)  # every layer sees 7 tokens
    backend, held = model.backend, []
    sequence = backend.open()
    for begin in range(0, len(text), 5):
        logits = model.feed(sequence, text[begin : begin + 5])
        expected = references("mistral")(text[: begin + 5])[-5:]
        assert np.abs(logits - expected).max() < TOLERANCE
        backend.truncate(sequence, begin + 4)  # a draft is rejected, and comes again
        model.feed(sequence, text[begin + 4 : begin + 5])
        backend.commit(sequence)
        held.append(backend.usage.held_pages)
    # 7 tokens of the window, a page that a rollback may reach, and both ends of pages.
    assert max(held) <= 5
    backend.truncate(sequence, len(text) - 4)
    with pytest.raises(RollbackError, match="window of 7"):
        backend.truncate(sequence, len(text) - 20)
    backend.truncate(sequence, 0)
    assert np.abs(model.feed(sequence, text) - references("mistral")(text)).max() < TOLERANCE


def test_a_layer_that_sees_all_keeps_every_page(decoder):
    model = decoder("gemma3", page_size=4)
    sequence = model.backend.open()
    model.feed(sequence, list(range(40)))
    model.backend.commit(sequence)
    assert model.backend.usage.held_pages == 10


def drafts(size):
    return st.lists(st.integers(0, 95), min_size=size, max_size=size)


def run_machine(load, reference, examples):
    run_state_machine_as_test(
        lambda: Machine(load(), reference),
        settings=settings(
            max_examples=examples,
            stateful_step_count=12,
            deadline=None,
            derandomize=True,
            phases=[Phase.generate],
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_history_equals_a_fresh_prefill(family, decoder, references):
    run_machine(lambda: decoder(family), references(family), examples=4)


@pytest.mark.parametrize("fault", ["window", "depth", "ancestors", "neighbour"])
def test_a_wrong_mask_is_seen(fault, decoder, references, monkeypatch):
    model = decoder("mistral")  # before the fault, which the check at load would see
    right = RowGroup.seen

    def wrong(group, window):
        if fault == "window" and window is not None:
            return right(group, window + 1)
        if fault == "depth":
            group._position = group._slot
        if fault == "ancestors":
            group._ancestors = -1
        seen = right(group, window)
        if fault == "neighbour":
            seen[..., -1] = True
        return seen

    monkeypatch.setattr(RowGroup, "seen", wrong)
    with pytest.raises(AssertionError):
        run_machine(lambda: model, references("mistral"), examples=20)


def test_the_backend_passes_the_conformance_kit(build_model):
    model = build_model("mistral", num_hidden_layers=1)
    paged = PagedModel(model, [layer.kv for layer in describe_layers(model, 128)], "sdpa")

    def make():
        return TorchBackend(
            paged, name="mistral", precision="float32", context_length=128, kv_cache_bytes=256 << 10
        )

    check_backend(make, tolerance=TOLERANCE).require()
