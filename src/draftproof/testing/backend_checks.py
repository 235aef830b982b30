"""The promises of ``ModelBackend``, one check each: scoring, rolling back, batching.

A check gets a ``BackendBench`` and raises ``ConformanceError`` when a promise is broken and
``Skipped`` when it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from draftproof.core.types import FlatBatch
from draftproof.errors import InvariantError, RollbackError
from draftproof.testing.bench import BackendBench, Feed, Logits
from draftproof.testing.report import ConformanceError, Skipped

__all__ = ["SCORING_CHECKS", "Check"]


Check = Callable[[BackendBench], None]


def law_depends_on_its_input(bench: BackendBench) -> None:
    """Refuse to judge a model whose logits would hide a fault.

    Every other check compares logits after a right and a wrong history. When the last
    two tokens do not move the logits by more than the tolerance, all of them are blind.
    """
    tokens = bench.tokens(6)
    expected = bench.incremental(tokens)[-1:]
    for place in (-1, -2):
        changed = list(tokens)
        changed[place] = bench.other([tokens[place]])[0]
        logits = bench.incremental(changed)[-1:]
        with np.errstate(invalid="ignore"):
            gap = float(np.nanmax(np.where(logits == expected, 0.0, np.abs(logits - expected))))
        if not gap > 10 * bench.tolerance:
            raise ConformanceError(
                f"token {place} moves the logits by {gap:.3g} only, expected more than ten times "
                f"the tolerance {bench.tolerance:.3g}: the kit cannot judge this model"
            )


def block_equals_incremental(bench: BackendBench) -> None:
    """Score blocks of many sizes and compare position by position."""
    tokens = bench.tokens(26)
    expected = bench.incremental(tokens)
    for sizes in ([26], [1, 2, 3, 4, 5, 6, 5], [5, 8, 1, 1, 8, 3]):
        backend = bench.make_backend()
        sequence, at = backend.open(), 0
        for size in sizes:
            logits = bench.feed(backend, Feed(sequence, tokens[at : at + size]))[0]
            bench.expect_equal(logits, expected[at : at + size], f"block of {size} at {at}")
            at += size


def wanted_logits_are_the_last_ones(bench: BackendBench) -> None:
    """Ask for none, some and all rows of a pass, and for rows of several sequences."""
    texts = [bench.tokens(count) for count in (7, 5, 9)]
    expected = [bench.incremental(text) for text in texts]
    backend = bench.make_backend()
    sequences = [backend.open() for _ in texts]
    wanted = [3, 0, 1]
    found = bench.feed(
        backend,
        *(Feed(*row) for row in zip(sequences, texts, wanted, strict=True)),
    )
    for logits, reference, count in zip(found, expected, wanted, strict=True):
        bench.expect_equal(logits, reference[len(reference) - count :], f"{count} wanted rows")


def lengths_are_counted(bench: BackendBench) -> None:
    """Follow the length through opening, feeding, rolling back and closing."""
    backend = bench.make_backend()
    first, second = backend.open(), backend.open()
    if first == second:
        raise ConformanceError(f"two open sequences have the handle {first}")
    bench.expect_length(backend, first, 0)
    bench.feed(backend, Feed(first, bench.tokens(5), 0))
    bench.expect_length(backend, second, 0)
    backend.truncate(first, 5)
    bench.expect_length(backend, first, 5)
    backend.commit(first)
    bench.expect_length(backend, first, 5)
    backend.close(second)
    bench.expect_length(backend, first, 5)
    if backend.open() == first:
        raise ConformanceError(f"the handle {first} was given away while its sequence was open")


def wrong_start_is_refused(bench: BackendBench) -> None:
    """Feed a row at a position that is not the cached length."""
    tokens = bench.tokens(8)
    expected = bench.incremental(tokens)
    backend = bench.make_backend()
    sequence = backend.open()
    bench.feed(backend, Feed(sequence, tokens[:4]))
    ids = np.asarray(tokens[4:6], dtype=np.int32)
    begins, rows = np.asarray([0, 2], dtype=np.int32), np.asarray([1], dtype=np.int32)
    for start in (3, 5):
        positions = np.asarray([start, start + 1], dtype=np.int32)
        try:
            backend.forward(FlatBatch((sequence,), begins, ids, positions, rows))
        except InvariantError:
            bench.expect_length(backend, sequence, 4)
        else:
            raise ConformanceError(f"a row that starts at {start} was accepted at length 4")
    logits = bench.feed(backend, Feed(sequence, tokens[4:]))[0]
    bench.expect_equal(logits, expected[4:], "after refused rows")


def rollback_equals_fresh(bench: BackendBench) -> None:
    """Draft, roll back by every amount, go on with other tokens; many rounds."""
    _require_rewindable(bench)
    backend = bench.make_backend()
    sequence = backend.open()
    text = bench.tokens(5)
    bench.feed(backend, Feed(sequence, text[:-1], 0))
    backend.commit(sequence)
    for accepted in (3, 4, 1, 0, 4, 2, 0, 0, 4, 1, 2, 3):
        drafts = bench.tokens(4)
        fed = [text[-1], *drafts]
        logits = bench.feed(backend, Feed(sequence, fed))[0]
        expected = bench.incremental(text + drafts)[-5:]
        bench.expect_equal(logits, expected, f"block at {len(text) - 1}")
        # One token more than was accepted: it differs from the draft in its place.
        text += [*drafts[:accepted], bench.other([*drafts, 0][accepted : accepted + 1])[0]]
        backend.truncate(sequence, len(text) - 1)
        bench.expect_length(backend, sequence, len(text) - 1)
        backend.commit(sequence)


def deep_rollback_equals_fresh(bench: BackendBench) -> None:
    """Roll uncommitted text back to every earlier length, zero included."""
    _require_rewindable(bench)
    text = bench.tokens(14)
    for length in range(len(text) + 1):
        backend = bench.make_backend()
        sequence = backend.open()
        bench.feed(backend, Feed(sequence, text, 0))
        backend.truncate(sequence, length)
        bench.expect_length(backend, sequence, length)
        tail = bench.other((text + bench.tokens(3))[length : length + 3])
        logits = bench.feed(backend, Feed(sequence, tail))[0]
        expected = bench.incremental(text[:length] + tail)[length:]
        bench.expect_equal(logits, expected, f"after a rollback to {length}")


def unwindable_state_is_refused(bench: BackendBench) -> None:
    """Ask a model that cannot rewind to rewind: it refuses, and keeps its state."""
    text = bench.tokens(9)
    backend = bench.make_backend()
    if backend.info.rewindable:
        raise Skipped("the model can be rewound")
    sequence = backend.open()
    bench.feed(backend, Feed(sequence, text[:6]))
    backend.truncate(sequence, 6)
    try:
        backend.truncate(sequence, 3)
    except RollbackError:
        bench.expect_length(backend, sequence, 6)
    else:
        raise ConformanceError("a model that says it cannot be rewound did not raise RollbackError")
    logits = bench.feed(backend, Feed(sequence, text[6:]))[0]
    bench.expect_equal(logits, bench.incremental(text)[6:], "after a refused rollback")


def ragged_equals_solo(bench: BackendBench) -> None:
    """Three rows of different lengths that accept 0, 2 and 4 drafts in turn.

    The order of the rows changes every round, and a fourth row comes and goes.
    """
    rewindable = bench.make_backend().info.rewindable
    backend = bench.make_backend()
    texts = [bench.tokens(count) for count in (3, 7, 12)]
    sequences = [backend.open() for _ in texts]
    bench.feed(backend, *(Feed(s, text[:-1], 0) for s, text in zip(sequences, texts, strict=True)))
    for turn in range(6):
        order = [(turn + row) % 3 for row in range(3)] if turn % 2 else [2, 0, 1]
        guest = backend.open()
        drafts = [bench.tokens(4 if rewindable else 0) for _ in texts]
        feeds = [Feed(sequences[row], [texts[row][-1], *drafts[row]]) for row in order]
        found = bench.feed(backend, *feeds, Feed(guest, bench.tokens(1 + turn), 1))
        backend.close(guest)
        for row, logits in zip(order, found[:3], strict=True):
            expected: Logits = bench.incremental(texts[row] + drafts[row])
            bench.expect_equal(logits, expected[-len(logits) :], f"row {row} in round {turn}")
            accepted = 2 * ((row + turn) % 3) if rewindable else 0
            texts[row] += [*drafts[row][:accepted], *bench.tokens(1)]
            if rewindable:
                backend.truncate(sequences[row], len(texts[row]) - 1)
        for row in range(3):
            bench.expect_length(backend, sequences[row], len(texts[row]) - 1)
            backend.commit(sequences[row])


def _require_rewindable(bench: BackendBench) -> None:
    if not bench.make_backend().info.rewindable:
        raise Skipped("the model cannot be rewound")


#: Checks of scoring and of rolling back.
SCORING_CHECKS: tuple[Check, ...] = (
    law_depends_on_its_input,
    block_equals_incremental,
    wanted_logits_are_the_last_ones,
    lengths_are_counted,
    wrong_start_is_refused,
    rollback_equals_fresh,
    deep_rollback_equals_fresh,
    unwindable_state_is_refused,
    ragged_equals_solo,
)
