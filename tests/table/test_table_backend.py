"""Table models: the law is the table, read from memory; limits and planted faults work."""

import numpy as np
import pytest

from draftproof.backends.table import (
    ArrayTable,
    FunctionTable,
    MarkovTable,
    MixedTable,
    PagedStore,
    PositionTable,
    RecurrentStore,
    TableBackend,
    WindowStore,
    seeded_probs,
)
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ContextOverflowError,
    InvariantError,
    RollbackError,
)


def feed(backend, sequence, tokens, num_logits=None):
    count = len(tokens) if num_logits is None else num_logits
    return backend.forward(
        FlatBatch.from_rows([Row(sequence, tokens, backend.length(sequence), count)])
    )


def laws(backend, tokens):
    return np.exp(feed(backend, backend.open(), tokens).astype(np.float64))


# -- laws ------------------------------------------------------------------------------


def test_seeded_laws_are_pure_functions_with_the_asked_zeros():
    law = seeded_probs(1000, (3, 1, 4), seed=7, zeros=0.4)
    again = seeded_probs(1000, [3, 1, 4], seed=7, zeros=0.4)
    assert np.array_equal(law, again)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)
    # Binomial(1000, 0.4): outside 0.25 to 0.55 has probability below 1e-20.
    assert 250 < (law == 0).sum() < 550
    for other in (
        seeded_probs(1000, (3, 1, 5), seed=7, zeros=0.4),
        seeded_probs(1000, (3, 1, 4), seed=8, zeros=0.4),
        seeded_probs(1000, (31, 4), seed=7, zeros=0.4),
    ):
        assert np.abs(law - other).sum() > 0.1
    assert np.allclose(seeded_probs(5, (), seed=1, spread=0.0), 0.2)
    assert (seeded_probs(5, (), seed=1, zeros=1.0) > 0).sum() == 1


def test_array_table_gives_its_rows():
    probs = np.random.default_rng(0).dirichlet(np.ones(3), size=(3, 3))
    found = laws(TableBackend(ArrayTable(probs)), [2, 1, 0, 2])
    expected = [probs[0, 2], probs[2, 1], probs[1, 0], probs[0, 2]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_zero_probability_is_minus_infinity_and_no_warning():
    logits = feed(
        backend := TableBackend(ArrayTable([[0.0, 1.0], [1.0, 0.0]])), backend.open(), [0]
    )
    assert logits.tolist() == [[-np.inf, 0.0]]
    assert logits.dtype == np.float32


def test_prefix_rows_override_the_seeded_ones():
    table = MarkovTable(3, None, seed=1, rows={(2, 0): [0.5, 0.25, 0.25]})
    found = laws(TableBackend(table), [2, 0, 1])
    np.testing.assert_allclose(found[1], [0.5, 0.25, 0.25], rtol=1e-6)
    np.testing.assert_allclose(found[0], seeded_probs(3, (2,), seed=1), rtol=1e-6)
    np.testing.assert_allclose(found[2], seeded_probs(3, (2, 0, 1), seed=1), rtol=1e-6)


@pytest.mark.parametrize("order", [0, 1, 3])
def test_an_order_bounds_what_the_law_sees(order):
    table = MarkovTable(5, order, seed=1)
    text, other = [1, 2, 3, 4, 0, 1], [4, 4, 4, 3, 0, 1]
    same = np.array_equal(laws(TableBackend(table), text)[-1], laws(TableBackend(table), other)[-1])
    assert same == (order < 3)


def test_function_and_mixture():
    half = FunctionTable(2, lambda held: [len(held) / 10, 1 - len(held) / 10])
    np.testing.assert_allclose(laws(TableBackend(half), [0, 1, 1])[2], [0.3, 0.7], rtol=1e-6)
    sure = FunctionTable(2, lambda held: [1.0, 0.0], span=1)
    mixed = MixedTable(half, sure, 0.25)
    assert mixed.span is None
    assert MixedTable(sure, sure, 0.5).span == 1
    np.testing.assert_allclose(laws(TableBackend(mixed), [0, 1])[1], [0.4, 0.6], rtol=1e-6)


def test_position_table_reads_positions_from_memory():
    table = PositionTable(5, seed=3)
    backend = TableBackend(table)
    sequence = backend.open()
    feed(backend, sequence, [1, 2])
    ids, begins = np.asarray([3], np.int32), np.asarray([0, 1], np.int32)
    rows = np.asarray([0], np.int32)
    right = backend.forward(FlatBatch((sequence,), begins, ids, np.asarray([2], np.int32), rows))
    np.testing.assert_allclose(np.exp(right[0]), seeded_probs(5, (3, 0, 1, 2), seed=3), rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MarkovTable(3, -1),
        lambda: MarkovTable(2, 1, rows={(0,): [0.5, 0.6]}),
        lambda: MarkovTable(2, 1, rows={(0,): [1.5, -0.5]}),
        lambda: MarkovTable(2, 1, rows={(0,): [1.0]}),
        lambda: ArrayTable([[0.5, 0.5]]),
        lambda: ArrayTable(1.0),
        lambda: MixedTable(MarkovTable(2), MarkovTable(3), 0.5),
        lambda: MixedTable(MarkovTable(2), MarkovTable(2), 1.5),
        lambda: WindowStore(0),
        lambda: RecurrentStore(0),
        lambda: PagedStore(0),
    ],
)
def test_what_is_no_law_or_memory_is_refused(make):
    with pytest.raises(ConfigError):
        make()


# -- memory -----------------------------------------------------------------------------


def test_logits_are_read_from_the_slots():
    # Whoever changes a slot changes the law: nothing is kept beside the pages.
    backend = TableBackend(MarkovTable(5, None, seed=1), PagedStore(8, 4))
    sequence = backend.open()
    feed(backend, sequence, [1, 2, 3])
    page = backend.store.cache.page_table(sequence)[0]
    backend.store._tokens[page, 0] = 4
    found = np.exp(feed(backend, sequence, [0])[0])
    np.testing.assert_allclose(found, seeded_probs(5, (4, 2, 3, 0), seed=1), rtol=1e-5)


@pytest.mark.parametrize("kappa", range(1, 7))
@pytest.mark.parametrize("crossing", [1, 7, 20])
def test_kv2_window_is_evicted_by_committed_length(kappa, crossing):
    window, table = 8, MarkovTable(5, None, seed=2)
    rng = np.random.default_rng(kappa)
    backend = TableBackend(table, WindowStore(window))
    sequence = backend.open()
    text = rng.integers(0, 5, 5).tolist()
    feed(backend, sequence, text[:-1])
    backend.commit(sequence)
    while len(text) < window + crossing:
        drafts = rng.integers(0, 5, kappa).tolist()
        logits = np.array(feed(backend, sequence, [text[-1], *drafts]))
        assert backend.store.num_tokens_held(sequence) <= window + kappa + 1
        for i, row in enumerate(logits):
            seen = [*text, *drafts][: len(text) + i][-window:]
            np.testing.assert_allclose(np.exp(row), seeded_probs(5, seen, seed=2), rtol=1e-5)
        text += [*drafts[: int(rng.integers(0, kappa + 1))], int(rng.integers(0, 5))]
        backend.truncate(sequence, len(text) - 1)
        backend.commit(sequence)
        assert backend.store.num_tokens_held(sequence) <= window
    if len(text) - 1 > window:
        with pytest.raises(RollbackError, match="evicted"):
            backend.truncate(sequence, 0)


def test_kv6_recurrent_state_refuses_or_replays():
    table = MarkovTable(5, None, seed=2)
    strict, lenient = (TableBackend(table, RecurrentStore(n)) for n in (None, 3))
    assert not strict.info.rewindable
    assert lenient.info.rewindable
    text, tail = [1, 2, 3, 4, 0, 1, 2], [3, 3]
    for length in range(len(text) + 1):
        sequence = lenient.open()
        feed(lenient, sequence, text)
        lenient.truncate(sequence, length)
        found = np.array(feed(lenient, sequence, tail))
        fresh = strict.open()
        expected = feed(strict, fresh, [*text[:length], *tail])[-2:]
        assert np.array_equal(found, expected)
        strict.truncate(fresh, length + 2)
        with pytest.raises(RollbackError, match=f"{length + 2} tokens"):
            strict.truncate(fresh, length + 1)
    assert not np.array_equal(laws(strict, [1, 2])[-1], laws(strict, [2, 1])[-1])


@pytest.mark.parametrize("store", [PagedStore, lambda: WindowStore(4), RecurrentStore])
def test_closed_and_unknown_sequences_are_refused(store):
    backend = TableBackend(MarkovTable(3), store())
    sequence = backend.open()
    backend.close(sequence)
    assert backend.num_open == backend.num_held == 0
    for call in (backend.length, backend.fork, backend.close, backend.commit):
        with pytest.raises(InvariantError):
            call(sequence)
    with pytest.raises(InvariantError):
        backend.truncate(backend.open(), 1)


# -- limits, faults and counters ----------------------------------------------------------


def test_limits_are_kept_and_nothing_is_appended():
    backend = TableBackend(MarkovTable(3), PagedStore(2, 4), context_length=7)
    sequence = backend.open()
    feed(backend, sequence, [1, 2, 0])
    with pytest.raises(ContextOverflowError, match="at most 7"):
        feed(backend, sequence, [0] * 5)
    other = backend.open()
    feed(backend, other, [1])
    with pytest.raises(CapacityError, match="4 tokens"):
        feed(backend, other, [0] * 4)
    with pytest.raises(InvariantError, match="0 to 2"):
        feed(backend, sequence, [3])
    with pytest.raises(InvariantError, match="0 to 2"):
        feed(backend, sequence, [-1])
    assert (backend.length(sequence), backend.length(other)) == (3, 1)
    backend.store.cache.check_integrity()


def test_trees_are_refused_by_a_recurrent_state():
    batch = FlatBatch.from_rows([Row(0, [1, 2], 0, 2)])
    tree = FlatBatch(
        batch.sequence_ids,
        batch.row_begins,
        batch.token_ids,
        batch.positions,
        batch.logits_rows,
        np.asarray([-1, 0], np.int32),
    )
    backend = TableBackend(MarkovTable(3), RecurrentStore(2))
    assert not backend.info.trees
    sequence = backend.open()
    with pytest.raises(BackendError, match="parents"):
        backend.forward(tree)
    feed(backend, sequence, [1, 2, 0])
    with pytest.raises(InvariantError, match="one path"):
        backend.truncate(sequence, 1, keep=(2,))
    assert backend.length(sequence) == 3
    backend.truncate(sequence, 1, keep=(1,))
    assert backend.length(sequence) == 2


def test_logits_kept_too_long_become_nan_and_cannot_be_written():
    backend = TableBackend(MarkovTable(3))
    sequence = backend.open()
    first = feed(backend, sequence, [1, 2])
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 0
    second = feed(backend, sequence, [0])
    assert np.isnan(first).all()
    assert np.isfinite(second).all()


def test_nan_row_follows_the_chosen_token():
    backend = TableBackend(MarkovTable(3), nan_after=[2])
    logits = feed(backend, backend.open(), [1, 2, 0])
    assert np.isnan(logits).all(axis=1).tolist() == [False, True, False]


@pytest.mark.parametrize("late", [False, True])
def test_chosen_passes_fail(late):
    error = BackendError("boom")
    backend = TableBackend(MarkovTable(3), fail_calls={2: error}, fail_late=late)
    sequence = backend.open()
    feed(backend, sequence, [1])
    with pytest.raises(BackendError, match="boom"):
        feed(backend, sequence, [2])
    assert backend.length(sequence) == 1 + late
    feed(backend, sequence, [0])
    assert (backend.num_calls, backend.num_tokens) == (3, 2)


def test_passes_are_logged_per_row():
    backend = TableBackend(MarkovTable(3))
    a, b = backend.open(), backend.open()
    backend.forward(FlatBatch.from_rows([Row(a, [1, 2], 0, 0), Row(b, [0], 0, 1)]))
    feed(backend, a, [1])
    logged = [(r.call, r.sequence_id, r.token_ids, r.positions) for r in backend.passes]
    assert logged == [(1, a, (1, 2), (0, 1)), (1, b, (0,), (0,)), (2, a, (1,), (2,))]
    assert backend.num_tokens == 4


def test_importing_the_backends_loads_no_runtime():
    import subprocess
    import sys

    code = (
        "import sys, draftproof.backends.table, draftproof.testing\n"
        "bad = {'openvino', 'torch', 'llama_cpp'} & set(sys.modules)\n"
        "sys.exit(f'{bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
