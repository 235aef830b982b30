"""A table model scores rows that branch, and keeps one path of them."""

import numpy as np
import pytest

from draftproof.backends.table import (
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    TableBackend,
    WindowStore,
)
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import ContextOverflowError, InvariantError

TABLE = MixedTable(MarkovTable(7, None, seed=1), PositionTable(7, seed=2), 0.5)
#: A pending token, two children, a grandchild below each: 1 - 2, 1 - 5 and so on.
TOKENS, PARENTS = [1, 2, 5, 3, 3, 6], [-1, 0, 0, 1, 2, 2]


def paged(**kwargs):
    return TableBackend(TABLE, PagedStore(64, 4), **kwargs)


def grow(backend, sequence, tokens, parents=None):
    row = Row(sequence, tokens, backend.length(sequence), len(tokens), parents)
    return backend.forward(FlatBatch.from_rows([row])).copy()


def fresh(tokens, store=None):
    backend = TableBackend(TABLE, store or PagedStore(64, 4))
    return grow(backend, backend.open(), tokens)


def branched(backend, prompt=(4, 4, 2)):
    sequence = backend.open()
    grow(backend, sequence, list(prompt))
    return sequence, grow(backend, sequence, TOKENS, PARENTS)


@pytest.mark.parametrize("make_store", [lambda: PagedStore(64, 4), lambda: WindowStore(3)])
def test_each_node_sees_its_own_ancestors_only(make_store):
    _, logits = branched(TableBackend(TABLE, make_store()))
    paths = [[1], [1, 2], [1, 5], [1, 2, 3], [1, 5, 3], [1, 5, 6]]
    for row, path in zip(logits, paths, strict=True):
        assert np.array_equal(row, fresh([4, 4, 2, *path], make_store())[-1])


def test_tokens_take_slots_and_positions_are_depths():
    backend = paged()
    sequence, _ = branched(backend)
    assert backend.length(sequence) == 9
    record = backend.passes[-1]
    assert record.positions == (3, 4, 4, 5, 5, 5)
    assert record.parents == (-1, 0, 0, 1, 2, 2)
    backend.truncate(sequence, 4, keep=(5, 8))
    assert backend.length(sequence) == 6
    assert backend.store.cache.tokens(sequence).tolist() == [4, 4, 2, 1, 5, 6]
    assert np.array_equal(grow(backend, sequence, [0]), fresh([4, 4, 2, 1, 5, 6, 0])[-1:])
    backend.store.cache.check_integrity()


@pytest.mark.parametrize(
    ("length", "keep"),
    [
        (4, (8,)),  # its parent is dropped
        (4, (4, 5)),  # siblings
        (4, (5, 7, 8)),  # siblings below
        (4, (6, 4)),  # not rising
        (4, (5, 5)),
        (4, (9,)),  # no such slot
        (4, (-1,)),
        (3, (4,)),  # the pending token is dropped
        (3, (3, 5, 6)),
        (2, (3,)),
        (6, ()),  # two siblings stay
        (9, ()),
        (10, ()),
    ],
)
@pytest.mark.parametrize("make_store", [lambda: PagedStore(64, 4), lambda: WindowStore(20)])
def test_what_is_no_path_is_refused_and_changes_nothing(make_store, length, keep):
    backend = TableBackend(TABLE, make_store())
    sequence, _ = branched(backend)
    with pytest.raises(InvariantError, match="truncate"):
        backend.truncate(sequence, length, keep)
    assert backend.length(sequence) == 9
    backend.truncate(sequence, 4, keep=(5, 7))
    assert np.array_equal(grow(backend, sequence, [0]), fresh([4, 4, 2, 1, 5, 3, 0])[-1:])


@pytest.mark.parametrize(
    ("length", "keep", "text"),
    [
        (3, (3, 5, 8), [4, 4, 2, 1, 5, 6]),
        (3, (), [4, 4, 2]),
        (4, (), [4, 4, 2, 1]),
        (5, (), [4, 4, 2, 1, 2]),
        (2, (), [4, 4]),
        (0, (), []),
    ],
)
def test_every_lawful_rollback_leaves_its_text(length, keep, text):
    backend = paged()
    sequence, _ = branched(backend)
    backend.truncate(sequence, length, keep)
    assert backend.length(sequence) == len(text)
    assert np.array_equal(grow(backend, sequence, [0]), fresh([*text, 0])[-1:])


@pytest.mark.parametrize("make_store", [lambda: PagedStore(64, 4), lambda: WindowStore(20)])
def test_a_branched_sequence_grows_shares_and_publishes_only_after_a_rollback(make_store):
    backend = TableBackend(TABLE, make_store())
    sequence, _ = branched(backend)
    for attempt in (
        lambda: grow(backend, sequence, [0]),
        lambda: backend.fork(sequence),
        lambda: backend.commit(sequence),
        lambda: backend.reserve(sequence, 1),
    ):
        with pytest.raises(InvariantError, match="branched"):
            attempt()
    backend.truncate(sequence, 4, keep=(4,))
    backend.commit(sequence)
    assert np.array_equal(
        grow(backend, backend.fork(sequence), [0]), fresh([4, 4, 2, 1, 2, 0])[-1:]
    )


def test_a_chain_beside_a_tree_is_a_chain():
    backend = paged()
    first, second = backend.open(), backend.open()
    rows = [Row(first, [1, 2, 3], 0, 3), Row(second, TOKENS, 0, 1, PARENTS)]
    backend.forward(FlatBatch.from_rows(rows))
    backend.truncate(first, 1, keep=(1,))
    assert backend.length(first) == 2
    backend.commit(first)
    with pytest.raises(InvariantError, match="branched"):
        backend.commit(second)


def test_a_window_evicts_after_a_path_was_kept():
    backend = TableBackend(TABLE, WindowStore(3))
    sequence, _ = branched(backend)
    backend.truncate(sequence, 4, keep=(5, 8))
    backend.commit(sequence)
    assert backend.store.num_tokens_held(sequence) == 3
    assert backend.length(sequence) == 6
    logits = grow(backend, sequence, [2, 0, 6], [-1, 0, 0])
    expected = fresh([4, 4, 2, 1, 5, 6, 2, 6], WindowStore(3))[-1]
    assert np.array_equal(logits[2], expected)


def test_a_tree_reaches_as_deep_as_the_context_and_no_deeper():
    backend = paged(context_length=6)
    sequence, _ = branched(backend)
    assert backend.length(sequence) == 9
    backend.truncate(sequence, 4)
    with pytest.raises(ContextOverflowError, match="position 6"):
        grow(backend, sequence, TOKENS, PARENTS)
    assert backend.length(sequence) == 4


@pytest.mark.parametrize("fault", ["index-positions", "sees-siblings"])
def test_faults_of_a_pass_change_branching_rows_only(fault):
    backend = paged(tree_fault=fault)
    sequence, logits = branched(backend)
    _, right = branched(paged())
    assert [np.array_equal(a, b) for a, b in zip(logits, right, strict=True)].count(False) >= 3
    backend.truncate(sequence, 4)
    chain = grow(backend, sequence, [1, 2, 3], [-1, 0, 1])
    assert np.array_equal(chain, fresh([4, 4, 2, 1, 1, 2, 3])[-3:])


@pytest.mark.parametrize("fault", ["stays-in-place", "reversed"])
@pytest.mark.parametrize(
    "store", [lambda **k: PagedStore(64, 4, **k), lambda **k: WindowStore(9, **k)]
)
def test_faults_of_a_rollback_change_what_is_kept(store, fault):
    for make, is_right in ((store, True), (lambda: store(keep_fault=fault), False)):
        backend = TableBackend(TABLE, make())
        sequence, _ = branched(backend)
        backend.truncate(sequence, 4, keep=(5, 8))
        assert backend.length(sequence) == 6
        expected = fresh([4, 4, 2, 1, 5, 6, 0], store())[-1:]
        assert np.array_equal(grow(backend, sequence, [0]), expected) == is_right
