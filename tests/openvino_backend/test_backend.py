"""The paged loop: what a row sees is its own tokens, whatever happened around it."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.openvino.rows import pass_tables
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import (
    BackendError,
    CapacityError,
    ConfigError,
    ContextOverflowError,
    InvariantError,
    ModelFileError,
)

#: Two float32 paths through the same numbers; logits are of the order of 8.
CLOSE = 2e-4


@pytest.fixture
def seq(llama):
    """An open sequence that is closed afterwards."""
    handle = llama.backend.open()
    yield handle
    llama.backend.close(handle)


@pytest.fixture(autouse=True)
def no_page_is_innocent(llama):
    """Fill free pages, so that a slot that is read before it is written shows."""
    for pages in llama.backend._runner._pages:
        pages[...] = 1e4


@pytest.mark.parametrize(
    "widths",
    [[1] * 70, [33, 37], [64, 1, 5], [2] * 35, [31, 1, 1, 37], [16, 16, 17, 16, 5], [30, 4, 36]],
)
def test_block_scores_equal_incremental_scores(llama, tokens, widths):
    whole = llama.score(tokens)
    assert np.abs(llama.score(tokens, widths) - whole).max() < CLOSE


def test_only_the_wanted_rows_come_back_in_order(llama, seq, tokens):
    whole = llama.score(tokens)
    begins, ids = np.array([0, 70], np.int32), np.array(tokens, np.int32)
    rows = np.array([0, 5, 31, 32, 69], np.int32)
    batch = FlatBatch((seq,), begins, ids, np.arange(70, dtype=np.int32), rows)
    logits = llama.backend.forward(batch)
    assert logits.shape == (5, 96)
    assert logits.dtype == np.float32
    assert np.abs(logits - whole[rows]).max() < CLOSE


def test_a_pass_without_logits_still_appends(llama, seq, tokens):
    assert llama.feed(seq, tokens[:40], wanted=0).shape == (0, 96)
    assert llama.backend.length(seq) == 40
    assert np.abs(llama.feed(seq, tokens[40:]) - llama.score(tokens)[40:]).max() < CLOSE


def test_ragged_batch_equals_each_row_alone(llama, tokens):
    pasts, widths = [0, 1, 31, 32, 33, 5], [7, 1, 2, 1, 6, 30]
    texts = [tokens[i : i + p + w] for i, (p, w) in enumerate(zip(pasts, widths, strict=True))]
    handles = [llama.backend.open() for _ in texts]
    for handle, text, past in zip(handles, texts, pasts, strict=True):
        if past:
            llama.feed(handle, text[:past])
    rows = [(h, t[p:]) for h, t, p in zip(handles, texts, pasts, strict=True)]
    together, begin = llama.feed_all(rows), 0
    for handle, text, width in zip(handles, texts, widths, strict=True):
        alone = llama.score(text)[-width:]
        assert np.abs(together[begin : begin + width] - alone).max() < CLOSE
        begin += width
        llama.backend.close(handle)


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 33, 63, 64])
def test_rollback_equals_a_fresh_prefill(llama, seq, tokens, cut):
    llama.feed(seq, tokens)
    llama.backend.truncate(seq, cut)
    assert llama.backend.length(seq) == cut
    other = [(token + 1) % 96 for token in tokens[cut:]]
    after = llama.feed(seq, other)
    assert np.abs(after - llama.score(tokens[:cut] + other)[cut:]).max() < CLOSE


@pytest.mark.parametrize("past", [32, 40, 63, 64])
def test_forks_share_the_past_and_not_the_future(llama, seq, tokens, past):
    llama.feed(seq, tokens[:past])
    held = llama.backend.usage.held_pages
    twin = llama.backend.fork(seq)
    assert llama.backend.usage.held_pages == held
    futures = {seq: [1, 2, 3], twin: [9, 8, 7]}
    both = llama.feed_all(list(futures.items()))
    for index, (handle, future) in enumerate(futures.items()):
        expected = llama.score(tokens[:past] + future)[past:]
        assert np.abs(both[3 * index : 3 * index + 3] - expected).max() < CLOSE
        # What each wrote is still there for the next pass.
        again = llama.feed(handle, [4])
        assert np.abs(again - llama.score([*tokens[:past], *future, 4])[-1]).max() < CLOSE
    llama.backend.close(twin)


def test_a_committed_prefix_is_found_again(llama, tokens):
    first = llama.backend.open(tokens)
    start = llama.backend.length(first)
    llama.feed(first, tokens[start:])
    llama.backend.commit(first)
    second = llama.backend.open([*tokens[:64], 5, 6])
    assert llama.backend.length(second) == 64
    found = llama.feed(second, [5, 6])
    llama.backend.close(first)
    llama.backend.close(second)
    assert np.abs(found - llama.score([*tokens[:64], 5, 6])[64:]).max() < CLOSE


def test_stale_pages_never_leak_into_a_row(llama, tokens):
    # Every slot holds NaN, as after a sequence that overflowed. Only slots that the
    # row itself wrote may count.
    clean = llama.score(tokens[:40], [35, 1, 4])
    for pages in llama.backend._runner._pages:
        pages[...] = np.nan
    poisoned = llama.score(tokens[:40], [35, 1, 4])
    assert np.abs(poisoned - clean).max() < CLOSE


def test_logits_of_an_earlier_pass_stay_readable(llama, seq, tokens):
    # The contract ends with the next pass, but reading late must not crash.
    batch = FlatBatch.from_rows([Row(seq, tokens[:3], 0, 3)])
    early = llama.backend.forward(batch)
    llama.feed(seq, tokens[3:60])
    assert np.isfinite(early).all()
    assert not early.flags.writeable


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (([1, 2], 0, 1), "position 0, expected 3"),
        (([1, 2], 4, 1), "position 4, expected 3"),
        (([1, 96], 3, 1), "token id 96"),
        (([-1], 3, 1), "token id -1"),
    ],
)
def test_wrong_rows_are_refused_and_change_nothing(llama, seq, tokens, row, message):
    llama.feed(seq, tokens[:3])
    ids, start, wanted = row
    with pytest.raises(InvariantError, match=message):
        llama.backend.forward(FlatBatch.from_rows([Row(seq, ids, start, wanted)]))
    assert llama.backend.length(seq) == 3


def test_wild_logit_rows_are_refused(llama, seq):
    ids, begins = np.zeros(2, np.int32), np.array([0, 2], np.int32)
    positions = np.arange(2, dtype=np.int32)
    for wild in (-1, 2):
        rows = np.array([wild], np.int32)
        with pytest.raises(InvariantError, match="logits of rows"):
            llama.backend.forward(FlatBatch((seq,), begins, ids, positions, rows))
    assert llama.backend.length(seq) == 0


def test_an_empty_batch_does_nothing(llama):
    assert llama.backend.forward(FlatBatch.from_rows([])).shape == (0, 96)


def test_context_and_room_end_with_their_own_errors(tiny_gguf, load_tiny, tokens):
    page = 2 * 2 * 2 * 32 * 16 * 4  # layers, keys and values, heads, slots, width, bytes
    small = load_tiny(tiny_gguf("llama"), kv_cache_bytes=3 * page, context_length=80)
    backend = small.backend
    assert backend.info.context_length == 80
    assert backend.info.kv_bytes_per_token * 32 == page
    assert backend.info.page_size == 32
    first, second = backend.open(), backend.open()
    small.feed(first, tokens)
    with pytest.raises(ContextOverflowError, match="81"):
        small.feed(first, tokens[:11])
    assert not backend.reserve(second, 1)
    with pytest.raises(CapacityError):
        small.feed_all([(first, [1]), (second, [1])])
    assert [backend.length(first), backend.length(second)] == [70, 0]
    backend.truncate(first, 64)
    assert backend.reserve(second, 32)
    assert small.feed_all([(second, [1])]).shape == (1, 96)


def test_pages_bound_the_context(tiny_gguf, load_tiny):
    page = 2 * 2 * 2 * 32 * 16 * 4
    path = tiny_gguf("llama")
    assert load_tiny(path, kv_cache_bytes=5 * page).backend.info.context_length == 160
    with pytest.raises(ConfigError, match="kv_cache_bytes"):
        load_tiny(path, kv_cache_bytes=5 * page, context_length=161)
    with pytest.raises(ConfigError, match="one page"):
        load_tiny(path, kv_cache_bytes=page - 1)


@pytest.mark.parametrize("failure", ["run", "copy_page"])
def test_a_failing_runtime_leaves_the_books_as_they_were(llama, seq, tokens, monkeypatch, failure):
    llama.feed(seq, tokens[:40])
    twin = llama.backend.fork(seq)

    def fail(*_args):
        raise BackendError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(llama.backend._runner, failure, fail)
        with pytest.raises(BackendError, match="planted"):
            llama.feed_all([(seq, [1, 2]), (twin, [3])])
    assert [llama.backend.length(seq), llama.backend.length(twin)] == [40, 40]
    llama.backend._cache.check_integrity()
    both = llama.feed_all([(seq, tokens[40:42]), (twin, [3])])
    assert np.abs(both[:2] - llama.score(tokens[:42])[40:]).max() < CLOSE
    assert np.abs(both[2] - llama.score([*tokens[:40], 3])[-1]).max() < CLOSE
    llama.backend.close(twin)


def test_half_precision_keys_and_values(tiny_gguf, load_tiny, llama, tokens):
    half = load_tiny(tiny_gguf("llama"), kv_precision="f16")
    assert half.backend.info.kv_bytes_per_token * 2 == llama.backend.info.kv_bytes_per_token
    far = np.abs(half.score(tokens, [35, 35]) - llama.score(tokens)).max()
    assert 0 < far < 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads"),
        ({"threads": 10**6}, "threads"),
        ({"kv_precision": "u8"}, "kv_precision"),
        ({"context_length": 0}, "context_length"),
        ({"context_length": 513}, "context_length"),
        ({"kv_cache_bytes": -1}, "kv_cache_bytes"),
    ],
)
def test_options_out_of_range_are_refused(tiny_gguf, load_tiny, options, message):
    with pytest.raises(ConfigError, match=message):
        load_tiny(tiny_gguf("llama"), **options)


def test_a_folder_without_graph_is_refused(tmp_path):
    from draftproof.backends.openvino import load_openvino

    with pytest.raises(ModelFileError, match=r"openvino_model\.xml"):
        load_openvino(tmp_path)


def test_short_rows_become_one_row_per_token():
    rows = [
        Row(4, [1] * 3, 31, 3),
        Row(5, [2] * 17, 10, 1),
        Row(6, [3], 0, 1),
        Row(7, [4] * 2, 64, 2),
    ]
    batch = FlatBatch.from_rows(rows)
    past = np.array([31, 10, 0, 64], np.int32)
    table = (np.array([9, 8, 7, 6, 5, 4, 3], np.int32), np.array([0, 2, 3, 4, 7], np.int32))
    tables = pass_tables(batch, past, table, 32)
    assert tables.past_lens.tolist() == [31, 32, 33, 10, 0, 64, 65]
    assert np.diff(tables.row_begins).tolist() == [1, 1, 1, 17, 1, 1, 1]
    assert tables.block_begins.tolist() == [0, 1, 3, 5, 6, 7, 10, 13]
    assert tables.block_indices.tolist() == [9, 9, 8, 9, 8, 7, 6, 5, 4, 3, 5, 4, 3]
    assert tables.max_context_len == 66
    assert tables.token_ids is batch.token_ids


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_short_blocks_equal_each_other_to_the_bit(tiny_gguf, load_tiny, tokens, precision):
    # Plain decoding is among the cuts. The prompt travels in one piece in all of them.
    decoder = load_tiny(tiny_gguf("llama"), precision, deterministic=True)
    cuts = [[40, *[1] * 30], [40, *[2] * 15], [40, 3, 16, 2, 4, 5], [40, 15, 15]]
    scored = [decoder.score(tokens, cut) for cut in cuts]
    for other in scored[1:]:
        assert np.array_equal(other, scored[0])
    handles = [decoder.backend.open() for _ in range(3)]
    for handle in handles:
        decoder.feed(handle, tokens[:40])
    together = decoder.feed_all(
        [(h, tokens[40 : 40 + n]) for h, n in zip(handles, (1, 7, 3), strict=True)]
    )
    for begin, width in ((0, 1), (1, 7), (8, 3)):
        assert np.array_equal(together[begin : begin + width], scored[0][40 : 40 + width])


def test_padding_repeats_the_last_token_in_place():
    batch = FlatBatch.from_rows([Row(4, [8, 9], 31, 2)])
    table = (np.array([7, 3], np.int32), np.array([0, 2], np.int32))
    tables = pass_tables(batch, np.array([31], np.int32), table, 32, least_tokens=4)
    assert tables.token_ids.tolist() == [8, 9, 9, 9]
    assert tables.positions.tolist() == [31, 32, 32, 32]
    assert tables.past_lens.tolist() == [31, 32, 32, 32]
    assert tables.row_begins.tolist() == [0, 1, 2, 3, 4]
    assert tables.block_indices.tolist() == [7, 7, 3, 7, 3, 7, 3]
    assert tables.block_begins.tolist() == [0, 1, 3, 5, 7]
    assert tables.logits_rows.tolist() == [0, 1]
    wide = FlatBatch.from_rows([Row(4, [1] * 17, 0, 1)])
    one = (np.array([5], np.int32), np.array([0, 1], np.int32))
    assert len(pass_tables(wide, np.zeros(1, np.int32), one, 32, 40).token_ids) == 17
