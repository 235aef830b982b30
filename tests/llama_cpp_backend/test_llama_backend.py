"""What the protocol does not say: views, calls, room, sequences, and passes that fail."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from draftproof.backends.llama_cpp.native import LlamaContext
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import BackendError, CapacityError, InvariantError
from draftproof.testing import check_backend

CLOSE = 2e-4
#: A fan of leaves, and leaves that have an inner node in common.
BUSHY = [-1, 0, 0, 0, 1, 1, 2, 3, 3, 8, 8]


def close(found, expected):
    return found.shape == expected.shape and float(np.abs(found - expected).max()) < CLOSE


def path_of(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


class Recorder(LlamaContext):
    """A context that remembers its last logits, and fails when it is told to."""

    fail = False
    num_calls = 0

    def decode(self, *arguments):
        logits = super().decode(*arguments)
        self.address = ctypes.addressof(lib.llama_get_logits(self.handle).contents)
        self.num_calls += 1
        if self.fail:
            raise BackendError("planted")
        return logits


class Forgetful(LlamaContext):
    """A planted fault: cells of a rejected tail stay in their sequence."""

    def drop(self, slot, length):
        return super().drop(slot, 0) if length == 0 else True


class Confused(LlamaContext):
    """A planted fault: a node sees the line of another of its sequences."""

    def decode(self, token_ids, positions, slots, slot_counts, wanted):
        begin, turned = 0, slots.copy()
        for count in slot_counts.tolist():
            turned[begin : begin + count] = slots[begin : begin + count][::-1]
            begin += count
        # A leaf's own sequence is replaced by the one before it in the pass.
        lone = np.flatnonzero(slot_counts == 1)
        ends = np.cumsum(slot_counts) - 1
        if len(lone) > 2:
            turned[ends[lone[-1]]] = turned[ends[lone[-2]]]
        return super().decode(token_ids, positions, turned, slot_counts, wanted)


def test_one_call_gives_the_librarys_own_memory(make_backend, tokens):
    contexts = []

    class Kept(Recorder):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            contexts.append(self)

    backend = make_backend(context_type=Kept)
    sequence = backend.open()
    logits = backend.forward(FlatBatch.from_rows([Row(sequence, tokens[:5], 0, 3)]))
    assert logits.ctypes.data == contexts[0].address
    assert not logits.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        logits[0, 0] = 1.0


def test_a_view_outlives_its_backend(make_backend, tokens):
    backend = make_backend()
    logits = backend.forward(FlatBatch.from_rows([Row(backend.open(), tokens, 0, 70)]))
    before = logits.copy()
    del backend
    gc.collect()
    other = make_backend()  # would likely get the freed memory
    other.forward(FlatBatch.from_rows([Row(other.open(), tokens[::-1], 0, 70)]))
    assert np.array_equal(logits, before)


def test_a_pass_of_more_tokens_than_a_call_takes(decoder):
    rng = np.random.default_rng(1)
    big = decoder(cells=2048)
    texts = [rng.integers(0, 200, count).tolist() for count in (300, 301, 2, 402)]
    sequences = [big.backend.open() for _ in texts]
    rows = [Row(s, text, 0, len(text)) for s, text in zip(sequences, texts, strict=True)]
    found = big.backend.forward(FlatBatch.from_rows(rows))
    begin = 0
    for text in texts:
        assert close(found[begin : begin + len(text)], decoder().score(text))
        begin += len(text)


@pytest.mark.parametrize("before", [505, 511, 512])
def test_a_tree_across_two_calls(decoder, tokens, before):
    rng = np.random.default_rng(before)
    first, nodes = rng.integers(0, 200, before).tolist(), rng.integers(0, 200, 11).tolist()
    big = decoder(cells=1024)
    one, two = big.backend.open(), big.backend.open()
    big.feed(two, tokens[:4], 0)
    rows = [Row(one, first, 0, 1), Row(two, nodes, 4, 11, BUSHY)]
    found = big.backend.forward(FlatBatch.from_rows(rows)).copy()
    for node in range(11):
        line = tokens[:4] + [nodes[at] for at in path_of(BUSHY, node)]
        assert close(found[1 + node], decoder().score(line)[-1])


@pytest.mark.parametrize("slots", [4, 6, 8])
def test_a_tree_with_more_leaves_than_sequences(decoder, tokens, slots):
    nodes = np.random.default_rng(slots).integers(0, 200, 11).tolist()
    fresh = decoder()
    for node in range(11):
        few = decoder(slots=slots)
        sequence = few.backend.open()
        few.feed(sequence, tokens[:6], 0)
        found = few.feed(sequence, nodes, parents=BUSHY)
        for other in range(11):
            line = tokens[:6] + [nodes[at] for at in path_of(BUSHY, other)]
            assert close(found[other], fresh.score(line)[-1])
        path = path_of(BUSHY, node)
        few.backend.truncate(sequence, 7, keep=[6 + at for at in path[1:]])
        held = tokens[:6] + [nodes[at] for at in path]
        assert few.backend.length(sequence) == len(held)
        expected = fresh.score(held + tokens[20:23])[-3:]
        assert close(few.feed(sequence, tokens[20:23]), expected)


def test_full_memory_is_refused_and_closing_frees_it(decoder, tokens):
    small = decoder(cells=256, prefix_caching=False)
    backend = small.backend
    sequences = [backend.open() for _ in range(4)]
    for sequence in sequences[:3]:
        small.feed(sequence, tokens, 0)
    assert not backend.reserve(sequences[3], 47)
    assert backend.reserve(sequences[3], 46)
    with pytest.raises(CapacityError, match="needs room for 1 tokens"):
        small.feed(sequences[0], tokens[:1])
    assert backend.length(sequences[0]) == 70
    backend.close(sequences[1])
    expected = decoder().score(tokens + tokens[:3])[-3:]
    assert close(small.feed(sequences[0], tokens[:3]), expected)


def test_texts_wait_for_a_sequence(decoder, tokens):
    few = decoder(slots=6)
    held = [few.backend.open() for _ in range(4)]
    for sequence in held[:3]:
        assert few.backend.reserve(sequence, 1)
    assert not few.backend.reserve(held[3], 1)
    with pytest.raises(CapacityError, match="4 sequences are held"):
        few.feed(held[3], tokens[:2])
    with pytest.raises(CapacityError, match="a fork needs one of 6 sequences"):
        few.backend.fork(held[0])
    few.backend.close(held[1])
    assert close(few.feed(held[3], tokens), decoder().score(tokens))


def test_closed_texts_lend_their_pages_and_give_way(decoder, tokens):
    warm = decoder(cells=256)
    backend = warm.backend
    first = backend.open(tokens)
    warm.feed(first, tokens, 0)
    backend.commit(first)
    backend.close(first)
    assert (backend.num_held, backend.usage.evictable_pages) == (0, 2)
    second = backend.open([*tokens[:40], 1, 2, 3])
    assert backend.length(second) == 32
    backend.close(second)
    third = backend.open()
    assert backend.reserve(third, 256)
    assert backend.usage.evictable_pages == 0
    backend.close(third)
    assert backend.length(backend.open(tokens)) == 0


def test_no_more_than_a_few_closed_texts_are_kept(decoder):
    backend = decoder(cells=2048).backend
    for number in range(12):
        text = np.random.default_rng(number).integers(0, 200, 40).tolist()
        sequence = backend.open()
        backend.forward(FlatBatch.from_rows([Row(sequence, text, 0, 0)]))
        backend.commit(sequence)
        backend.close(sequence)
    assert backend.usage.evictable_pages == 8


@pytest.mark.parametrize("arch", ["llama", "mamba"])
def test_a_pass_that_failed_leaves_nothing(make_backend, decoder, tokens, arch):
    contexts = []

    class Kept(Recorder):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            contexts.append(self)

    broken = decoder(arch, context_type=Kept)
    sequence = broken.backend.open()
    broken.feed(sequence, tokens[:9])
    contexts[0].fail = True
    with pytest.raises(BackendError, match="planted"):
        broken.feed(sequence, tokens[20:25])
    contexts[0].fail = False
    assert broken.backend.length(sequence) == 9
    found = broken.feed(sequence, tokens[9:12])
    assert close(found, decoder(arch).score(tokens[:12])[-3:])


def test_a_tree_that_failed_leaves_nothing(decoder, tokens):
    contexts = []

    class Kept(Recorder):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            contexts.append(self)

    broken = decoder(context_type=Kept)
    sequence = broken.backend.open()
    broken.feed(sequence, tokens[:9])
    held = broken.backend.num_held
    contexts[0].fail = True
    for _ in range(40):  # more often than there are sequences
        with pytest.raises(BackendError, match="planted"):
            broken.feed(sequence, tokens[20:31], parents=BUSHY)
    contexts[0].fail = False
    assert broken.backend.num_held == held
    assert close(broken.feed(sequence, tokens[9:12]), decoder().score(tokens[:12])[-3:])


@pytest.mark.parametrize(
    ("fault", "check"),
    [(Forgetful, "rollback_equals_fresh"), (Confused, "nodes_equal_their_paths")],
)
def test_the_kit_sees_planted_faults(make_backend, fault, check):
    report = check_backend(lambda: make_backend(context_type=fault), tolerance=CLOSE, names=[check])
    assert [result.status for result in report.results] == ["failed"]


def test_a_row_that_branches_must_be_cut_first(decoder, tokens):
    tree = decoder()
    sequence = tree.backend.open()
    tree.feed(sequence, tokens[:11], parents=BUSHY)
    for step in (tree.backend.fork, tree.backend.commit):
        with pytest.raises(InvariantError, match="expected a truncate to one path first"):
            step(sequence)
    with pytest.raises(InvariantError, match="expected one path"):
        tree.backend.truncate(sequence, 1, keep=[1, 2])
    tree.backend.close(sequence)
    assert tree.backend.num_held == 0
