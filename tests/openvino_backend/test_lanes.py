"""Copies of a graph: the same figures whatever copy runs, and no more copies than asked for."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.openvino import prepare
from draftproof.backends.openvino.loading import _most_lanes
from draftproof.backends.openvino.runner import IR_FILE, GraphRunner, PassTables, compile_paged
from draftproof.errors import ModelFileError

#: Tokens of one pass after another; widths come again.
WIDTHS = (1, 3, 1, 4, 2, 1, 3, 5, 1, 4, 1, 2, 3)


def ints(*values):
    return np.array(values, dtype=np.int32)


def tables(start, tokens):
    """One row whose pages are 0, 1, …, every token presented by itself."""
    count = len(tokens)
    places = start + np.arange(count, dtype=np.int32)
    covered = places // 32 + 1
    begins = np.concatenate([[0], np.cumsum(covered)]).astype(np.int32)
    pages = np.concatenate([np.arange(each) for each in covered]).astype(np.int32)
    return PassTables(
        ints(*tokens), places, places, np.arange(count + 1, dtype=np.int32), pages, begins,
        int(places[-1]) + 1, np.arange(count, dtype=np.int32),
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder(tiny_gguf, prepared_cache):
    return prepare(tiny_gguf("llama"), "f32", prepared_cache)


def passes(runner):
    assert runner.page_size == 32
    start, found = 0, []
    for turn, width in enumerate(WIDTHS):
        tokens = [(7 * turn + place) % 20 for place in range(width)]
        found.append((runner.run(tables(start, tokens)).copy(), runner.hidden(width)))
        assert runner.num_lanes  # a copy that is being made is there for the next pass
        start += width
    return found


@pytest.mark.parametrize("most", [2, 3])
def test_logits_and_states_do_not_depend_on_the_copy(folder, most):
    def compiled():
        return compile_paged(folder, "f32", 2, with_hidden=True)

    alone = GraphRunner(compiled(), 1 << 20)
    several = GraphRunner(compiled(), 1 << 20, compile_more=compiled, most_lanes=most, patience=2)
    for one, other in zip(passes(alone), passes(several), strict=True):
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left, right)
    assert alone.num_lanes == 1
    assert several.num_lanes == most


def test_a_copy_is_made_after_so_many_changes_of_shape_and_shapes_keep_theirs(folder):
    made = []

    def more():
        made.append(None)
        return compile_paged(folder, "f32", 2)

    runner = GraphRunner(
        compile_paged(folder, "f32", 2), 1 << 20, compile_more=more, most_lanes=2, patience=3
    )
    counts = []
    for start, width in enumerate((1, 1, 1, 2, 1, 2, 1, 2, 1, 2)):
        runner.run(tables(2 * start, list(range(width))))
        counts.append(runner.num_lanes)
    # The first pass is a change too; from the third on each shape has a copy of its own.
    assert counts == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert len(made) == 1
    lanes = runner._lanes
    held = [lane.shape for lane in lanes._lanes]
    assert sorted(shape[0] for shape in held) == [1, 2]


def test_where_no_copy_can_be_made_the_first_one_does(folder):
    def broken():
        raise ModelFileError("no memory")

    runner = GraphRunner(
        compile_paged(folder, "f32", 2, with_hidden=True),
        1 << 20,
        compile_more=broken,
        most_lanes=4,
        patience=1,
    )
    assert len(passes(runner)) == len(WIDTHS)
    assert runner.num_lanes == 1


def test_large_models_have_one_copy(tmp_path):
    (tmp_path / IR_FILE).write_text("")
    weights = (tmp_path / IR_FILE).with_suffix(".bin")
    for size, expected in ((1 << 20, 4), (130 << 20, 2), (180 << 20, 1), (3 << 30, 1)):
        with weights.open("wb") as file:
            file.truncate(size)  # a hole: nothing is written
        assert _most_lanes(tmp_path) == expected
