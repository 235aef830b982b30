"""Rows that branch on the real runtime: near a fresh prefill, or equal to plain decoding."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.openvino import OpenVINOBackend, prepare
from draftproof.backends.openvino.branches import SCRATCH_PAGES, branch_passes
from draftproof.backends.openvino.rows import branching_rows, pass_tables
from draftproof.backends.openvino.runner import GraphRunner, compile_paged
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import InvariantError
from draftproof.testing import check_backend
from draftproof.testing.tree_checks import TREE_CHECKS

CLOSE = 1e-4
#: Two children of the pending token with two each, one of them with a child.
PARENTS = [-1, 0, 0, 1, 1, 2, 2, 4]


def path_of(parents, node):
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def grow(backend, rows):
    """Feed rows of (sequence, tokens, parents) in one pass, every logit wanted."""
    batch = [
        Row(seq, list(tokens), backend.length(seq), len(tokens), parents)
        for seq, tokens, parents in rows
    ]
    logits, parts, begin = backend.forward(FlatBatch.from_rows(batch)).copy(), [], 0
    for _, tokens, _ in rows:
        parts.append(logits[begin : begin + len(tokens)])
        begin += len(tokens)
    return parts


@pytest.fixture(scope="module")
def compiled(tiny_gguf, prepared_cache):
    return {
        kv: compile_paged(prepare(tiny_gguf("llama"), "f32", prepared_cache), kv, None)
        for kv in ("f32", "f16")
    }


@pytest.fixture
def make(compiled):
    def build(deterministic=False, kv="f32", scratch=SCRATCH_PAGES):
        runner = GraphRunner(compiled[kv], 4 << 20, scratch if deterministic else 0)
        return OpenVINOBackend(
            runner, name="tiny", precision="f32", context_length=512, deterministic=deterministic
        )

    return build


@pytest.mark.parametrize("past", [0, 1, 25, 28, 31, 32, 40, 63])
def test_nodes_equal_the_line_that_leads_to_them(llama, tokens, past):
    rng = np.random.default_rng(past)
    for size in (8, 17, 24):
        seq, row = llama.backend.open(), rng.integers(0, 96, size).tolist()
        parents = [-1, *(int(rng.integers(0, node)) for node in range(1, size))]
        if past:
            llama.feed(seq, tokens[:past], 0)
        found = grow(llama.backend, [(seq, row, parents)])[0]
        for node in range(size):
            text = tokens[:past] + [row[at] for at in path_of(parents, node)]
            assert np.abs(found[node] - llama.score(text)[-1]).max() < CLOSE
        llama.backend.close(seq)


@pytest.mark.parametrize(("deterministic", "kv"), [(True, "f32"), (False, "f16")])
def test_the_kit_passes_trees(make, deterministic, kv):
    report = check_backend(
        lambda: make(deterministic, kv), tolerance=CLOSE if kv == "f32" else 2e-3,
        names=[check.__name__ for check in TREE_CHECKS],
    )  # fmt: skip
    report.require()
    assert sum(result.status == "passed" for result in report) == 5


def lines(backend, text, tails):
    """Score tails after a text token by token, as plain decoding does."""
    found = []
    for tail in tails:
        seq = backend.open()
        if text:
            grow(backend, [(seq, text, None)])
        found.append([grow(backend, [(seq, [token], None)])[0][0] for token in tail])
        backend.close(seq)
    return found


@pytest.mark.parametrize(
    ("past", "kv"), [(3, "f32"), (27, "f32"), (30, "f32"), (32, "f32"), (30, "f16")]
)
def test_trees_equal_plain_decoding_to_the_bit(make, tokens, past, kv):
    backend = make(True, kv)
    rng = np.random.default_rng(past)
    text, other = tokens[:past], tokens[past : past + 6]
    for parents in (PARENTS, [-1] + [0] * 15, [-1, 0, 1, 1, 3, 3, 5, 5, 7], [-1, 0, 0]):
        row = rng.integers(0, 96, len(parents)).tolist()
        seq, chain, guest = backend.open(), backend.open(), backend.open()
        grow(backend, [(seq, text, None)])
        grow(backend, [(chain, text, None)])
        found, beside, _ = grow(
            backend, [(seq, row, parents), (chain, other, None), (guest, tokens[:40], None)]
        )
        tails = [[row[at] for at in path_of(parents, node)] for node in range(len(row))]
        for node, plain in enumerate(lines(backend, text, tails)):
            assert np.array_equal(found[node], plain[-1])
        assert np.array_equal(beside, lines(backend, text, [other])[0])
        kept = path_of(parents, len(row) - 1)
        backend.truncate(seq, past + 1, keep=[past + at for at in kept[1:]])
        after = [grow(backend, [(seq, [token], None)])[0][0] for token in other]
        plain = lines(backend, text, [[row[at] for at in kept] + other])[0]
        assert np.array_equal(after, plain[len(kept) :])
        for handle in (seq, chain, guest):
            backend.close(handle)


def test_masked_rows_are_near_plain_decoding_but_not_equal(make, tokens):
    # What the paths are for: if this ever turns equal, they are no longer needed.
    backend = make()
    seq, row = backend.open(), tokens[40:48]
    grow(backend, [(seq, tokens[:40], None)])
    found = grow(backend, [(seq, row, PARENTS)])[0]
    tails = [[row[at] for at in path_of(PARENTS, node)] for node in range(8)]
    plain = np.array([line[-1] for line in lines(backend, tokens[:40], tails)])
    assert 0 < np.abs(found - plain).max() < CLOSE


def test_many_trees_need_several_passes_and_stay_equal(make, tokens):
    backend = make(True)
    sequences = [backend.open() for _ in range(5)]
    fan = [-1] + [0] * 15
    texts = [tokens[: 28 + index] for index in range(5)]
    grow(backend, [(seq, text, None) for seq, text in zip(sequences, texts, strict=True)])
    rows = [tokens[index : index + 16] for index in range(5)]
    found = grow(backend, [(seq, row, fan) for seq, row in zip(sequences, rows, strict=True)])
    for text, row, logits in zip(texts, rows, found, strict=True):
        for node in (0, 1, 7, 15):
            tail = [row[at] for at in path_of(fan, node)]
            assert np.array_equal(logits[node], lines(backend, text, [tail])[0][-1])


def batch_of(past, parents):
    row = Row(1, list(range(len(parents))), past, len(parents), parents)
    return FlatBatch.from_rows([row]), np.array([past], np.int32)


def test_paths_take_pages_of_their_own_and_end_where_the_books_say():
    batch, past = batch_of(30, [-1, 0, 0, 2])
    table = np.array([4, 5], np.int32), np.array([0, 2], np.int32)
    (part,) = branch_passes(batch, past, table, 32, 0, range(100, 132))
    assert part.copies == [(4, 100, 30), (4, 101, 30)]
    # Two paths, 0-1 and 0-2-3: the pending token is computed twice and moved once.
    assert part.tables.token_ids.tolist() == [0, 1, 0, 2, 3]
    assert part.tables.past_lens.tolist() == [30, 31, 30, 31, 32]
    assert part.tables.positions.tolist() == [30, 31, 30, 31, 32]
    assert part.tables.block_indices.tolist() == [100, 100, 101, 101, 101, 102]
    assert part.moves == [(100, 30, 4, 30), (100, 31, 4, 31), (101, 31, 5, 0), (102, 0, 5, 1)]
    assert part.tables.logits_rows.tolist() == [0, 1, 3, 4]
    assert part.places == [0, 1, 2, 3]
    assert part.tables.sees.size == 0


def test_passes_of_paths_stay_below_a_hundred_tokens_and_within_the_pages():
    rows = [Row(n, list(range(16)), 30, 16, [-1] + [0] * 15) for n in range(6)]
    rows.append(Row(9, [1, 2, 3], 0, 1))
    batch = FlatBatch.from_rows(rows)
    past = np.array([30] * 6 + [0], np.int32)
    table = np.arange(13, dtype=np.int32), np.array([0, 2, 4, 6, 8, 10, 12, 13], np.int32)
    parts = list(branch_passes(batch, past, table, 32, 0, range(50, 50 + SCRATCH_PAGES)))
    assert sorted(place for part in parts for place in part.places) == list(range(97))
    for part in parts:
        assert len(part.tables.token_ids) <= 96
        assert part.tables.block_indices.max() < 50 + SCRATCH_PAGES
    assert parts[0].tables.token_ids[:3].tolist() == [1, 2, 3]
    assert sum(len(part.moves) for part in parts) == 6 * 16


def test_a_chain_that_brings_parents_is_presented_as_a_chain():
    rows = [Row(1, [1, 2, 3], 0, 3), Row(2, [4, 5, 6], 0, 3, [-1, 0, 0])]
    batch = FlatBatch.from_rows(rows)
    assert branching_rows(batch).tolist() == [False, True]
    table = np.array([0, 1], np.int32), np.array([0, 1, 2], np.int32)
    tables = pass_tables(batch, np.zeros(2, np.int32), table, 32)
    assert tables.row_begins.tolist() == [0, 1, 2, 3, 6]
    assert tables.sees.tolist() == [1, 0, 0, 1, 1, 0, 1, 0, 1]
    assert tables.sees_begins.tolist() == [0, 0, 0, 0, 9]


@pytest.mark.parametrize(
    ("parents", "positions", "message"),
    [
        ([-1, 0, 1], [0, 1, 1], "token 2 has position 1, expected 2"),
        ([-1, 0, 0], [0, 1, 2], "token 2 has position 2, expected 1"),
        ([-1, 0, 2], [0, 1, 2], "token 2 has parent 2, expected 0 to 1"),
        ([-1, -1, 0], [0, 1, 1], "token 1 has parent -1, expected 0 to 0"),
    ],
)
def test_wrong_trees_are_refused(llama, parents, positions, message):
    seq = llama.backend.open()
    ids, begins = np.zeros(3, np.int32), np.array([0, 3], np.int32)
    tree = FlatBatch(
        (seq,), begins, ids, np.array(positions, np.int32), ids[:1], np.array(parents, np.int32)
    )
    with pytest.raises(InvariantError, match=message):
        llama.backend.forward(tree)
    assert llama.backend.length(seq) == 0
    llama.backend.close(seq)


def test_a_runtime_without_masks_scores_chains_only(make, llama):
    assert llama.backend.info.trees
    assert make(True).info.trees
    assert not make(True, scratch=0).info.trees
