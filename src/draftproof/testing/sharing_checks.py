"""The promises of ``ModelBackend`` about memory: forks, prefixes, room and limits."""

from __future__ import annotations

from draftproof.core.protocols import ModelBackend
from draftproof.errors import CapacityError, ContextOverflowError
from draftproof.testing.backend_checks import Check
from draftproof.testing.bench import BackendBench, CountsHeld, Feed
from draftproof.testing.report import ConformanceError, Skipped

__all__ = ["SHARING_CHECKS"]

#: A context up to this length is filled to the brim; a longer one is only overrun at once.
_FILLABLE = 2048


def forks_share_and_part(bench: BackendBench) -> None:
    """Fork in the middle of a page; both go on differently, in one pass and in turn."""
    text = bench.tokens(10)
    backend = bench.make_backend()
    parent = backend.open()
    bench.feed(backend, Feed(parent, text, 0))
    child = backend.fork(parent)
    bench.expect_length(backend, child, len(text))
    mine = bench.tokens(6)
    yours = bench.other(mine)
    of_parent, of_child = bench.incremental(text + mine), bench.incremental(text + yours)
    found = bench.feed(backend, Feed(parent, mine[:3]), Feed(child, yours[:3]))
    bench.expect_equal(found[0], of_parent[10:13], "parent beside its fork")
    bench.expect_equal(found[1], of_child[10:13], "fork beside its parent")
    bench.expect_equal(
        bench.feed(backend, Feed(parent, mine[3:]))[0], of_parent[13:], "parent after its fork"
    )
    backend.close(parent)
    bench.expect_equal(
        bench.feed(backend, Feed(child, yours[3:]))[0], of_child[13:], "fork without its parent"
    )


def forks_roll_back_alone(bench: BackendBench) -> None:
    """Roll a fork back into the shared part and overwrite it; the parent keeps its text."""
    backend = bench.make_backend()
    if not backend.info.rewindable:
        raise Skipped("the model cannot be rewound")
    text, tail = bench.tokens(10), bench.tokens(3)
    parent = backend.open()
    bench.feed(backend, Feed(parent, text, 0))
    child = backend.fork(parent)
    backend.truncate(child, 6)
    bench.expect_length(backend, parent, len(text))
    other = bench.other(text[6:])
    bench.expect_equal(
        bench.feed(backend, Feed(child, other))[0],
        bench.incremental(text[:6] + other)[6:],
        "fork after a rollback",
    )
    bench.expect_equal(
        bench.feed(backend, Feed(parent, tail))[0],
        bench.incremental(text + tail)[10:],
        "parent after its fork rolled back",
    )


def warm_equals_cold(bench: BackendBench) -> None:
    """Open texts that share a committed prefix; a restored prefix changes nothing."""
    page = _page(bench)
    prefix = bench.tokens(3 * page + 1)
    tails = [bench.tokens(page + 2) for _ in range(2)]
    texts = [prefix + tails[0], prefix + tails[1], prefix + tails[0], prefix[:page] + tails[1]]
    backend = bench.make_backend()
    for text in texts:
        sequence = backend.open(text)
        restored = backend.length(sequence)
        if not 0 <= restored < len(text):
            raise ConformanceError(
                f"open restored {restored} of {len(text)} tokens, expected one less"
            )
        logits = bench.feed(backend, Feed(sequence, text[restored:]))[0]
        bench.expect_equal(
            logits, bench.incremental(text)[restored:], f"after {restored} restored tokens"
        )
        backend.commit(sequence)
        backend.close(sequence)


def drafts_are_never_shared(bench: BackendBench) -> None:
    """Open a text whose middle was only drafted by another sequence, then rejected."""
    backend = bench.make_backend()
    if not backend.info.rewindable:
        raise Skipped("the model cannot be rewound")
    page = _page(bench)
    prompt, drafts, tail = bench.tokens(2 * page), bench.tokens(2 * page), bench.tokens(3)
    other = bench.other(drafts)
    drafter = backend.open()
    bench.feed(backend, Feed(drafter, prompt, 0))
    backend.commit(drafter)
    bench.feed(backend, Feed(drafter, drafts, 0))
    _open_and_compare(bench, backend, prompt + drafts + tail, len(prompt), "while drafts stand")
    backend.truncate(drafter, len(prompt))
    bench.feed(backend, Feed(drafter, other, 0))
    _open_and_compare(bench, backend, prompt + drafts + tail, None, "after drafts were rejected")
    backend.commit(drafter)
    _open_and_compare(bench, backend, prompt + drafts + tail, None, "after the other text stood")
    _open_and_compare(bench, backend, prompt + other + tail, None, "of the other text")


def committed_text_survives_rollback(bench: BackendBench) -> None:
    """Roll a sequence back below what it published, overwrite, and read it elsewhere."""
    backend = bench.make_backend()
    if not backend.info.rewindable:
        raise Skipped("the model cannot be rewound")
    page = _page(bench)
    text, tail = bench.tokens(2 * page), bench.tokens(3)
    sequence = backend.open()
    bench.feed(backend, Feed(sequence, text, 0))
    reader = backend.fork(sequence)
    backend.commit(sequence)
    # A whole round less one token is the deepest rollback that an engine does.
    backend.truncate(sequence, len(text) - 1)
    other = bench.other(text[-1:])
    bench.expect_equal(
        bench.feed(backend, Feed(sequence, other))[0],
        bench.incremental(text[:-1] + other)[-1:],
        "after a rollback into a committed page",
    )
    bench.expect_equal(
        bench.feed(backend, Feed(reader, tail))[0],
        bench.incremental(text + tail)[len(text) :],
        "of a fork from before",
    )
    _open_and_compare(bench, backend, text + tail, None, "of the committed text")


def refused_room_changes_nothing(bench: BackendBench) -> None:
    """Ask for more room than there is, in the middle of a text."""
    backend = bench.make_backend()
    text = bench.tokens(12)
    expected = bench.incremental(text)
    sequence = backend.open()
    bench.feed(backend, Feed(sequence, text[:5]))
    held = _held(backend)
    if backend.reserve(sequence, 10**9):
        raise Skipped("no request for room was refused")
    bench.expect_length(backend, sequence, 5)
    if _held(backend) != held:
        raise ConformanceError(
            f"a refused reservation left {_held(backend)} pages held, expected {held}"
        )
    if not backend.reserve(sequence, 3):
        raise ConformanceError("no room for 3 tokens after a refused reservation")
    logits = bench.feed(backend, Feed(sequence, text[5:8]))[0]
    bench.expect_equal(logits, expected[5:8], "after a refused reservation")


def granted_room_is_kept(bench: BackendBench) -> None:
    """Reserve for one sequence, fill the rest with others, then use the reservation."""
    backend = bench.make_backend()
    text = bench.tokens(17)
    sequence = backend.open()
    bench.feed(backend, Feed(sequence, text[:1]))
    if not backend.reserve(sequence, 16):
        raise Skipped("no room for 17 tokens")
    _fill(bench, backend)
    logits = bench.feed(backend, Feed(sequence, text[1:]))[0]
    bench.expect_equal(logits, bench.incremental(text)[1:], "in reserved room")


def context_overflow_appends_nothing(bench: BackendBench) -> None:
    """Overrun the context in one of two rows; neither row moves."""
    backend = bench.make_backend()
    limit, text = backend.info.context_length, bench.tokens(6)
    other, sequence = backend.open(), backend.open()
    bench.feed(backend, Feed(other, text[:3]), Feed(sequence, text[:3]))
    surplus = (text * (limit // 6 + 1))[: limit - 2]
    _expect_overflow(bench, backend, [Feed(other, text[3:], 0), Feed(sequence, surplus, 0)])
    bench.expect_length(backend, other, 3)
    bench.expect_length(backend, sequence, 3)
    expected = bench.incremental(text)[3:]
    for row in (other, sequence):
        bench.expect_equal(bench.feed(backend, Feed(row, text[3:]))[0], expected, "after overflow")
    if limit > _FILLABLE or not backend.reserve(sequence, limit - 6):
        return
    bench.feed(backend, Feed(sequence, bench.tokens(limit - 6), 1))
    _expect_overflow(bench, backend, [Feed(sequence, text[:1])])
    bench.expect_length(backend, sequence, limit)


def closing_frees_everything(bench: BackendBench) -> None:
    """Open, fork, share, roll back and close; nothing stays held, however often."""
    backend = bench.make_backend()
    before = _held(backend)
    if before is None:
        raise Skipped("the backend does not say what it holds (num_held)")
    for _ in range(20):
        first = backend.open(bench.tokens(4))
        bench.feed(backend, Feed(first, bench.tokens(11)))
        second = backend.fork(first)
        bench.feed(backend, Feed(second, bench.tokens(7)), Feed(first, bench.tokens(2)))
        backend.commit(first)
        backend.reserve(second, 5)
        if backend.info.rewindable:
            backend.truncate(second, 12)
        backend.close(first)
        backend.close(second)
    if _held(backend) != before:
        raise ConformanceError(
            f"{_held(backend)} held after everything was closed, expected {before}"
        )


def _page(bench: BackendBench) -> int:
    return bench.make_backend().info.page_size or 4


def _held(backend: ModelBackend) -> int | None:
    return backend.num_held if isinstance(backend, CountsHeld) else None


def _open_and_compare(
    bench: BackendBench, backend: ModelBackend, text: list[int], most: int | None, what: str
) -> None:
    """Open a text, feed what was not restored, and compare with a cold run."""
    sequence = backend.open(text)
    restored = backend.length(sequence)
    if most is not None and restored > most:
        raise ConformanceError(
            f"open restored {restored} tokens, of which only {most} were committed"
        )
    logits = bench.feed(backend, Feed(sequence, text[restored:]))[0]
    bench.expect_equal(logits, bench.incremental(text)[restored:], f"open {what}")
    backend.close(sequence)


def _fill(bench: BackendBench, backend: ModelBackend) -> None:
    """Feed new sequences until there is no room; passes that find none append nothing."""
    sequence, fed, largest = backend.open(), 0, 64
    while largest and fed < _FILLABLE:
        if backend.length(sequence) + 64 > backend.info.context_length:
            sequence = backend.open()
        if backend.reserve(sequence, largest):
            bench.feed(backend, Feed(sequence, bench.tokens(largest), 0))
            fed += largest
        else:
            _expect_no_room(bench, backend, sequence, largest)
            largest //= 4


def _expect_no_room(bench: BackendBench, backend: ModelBackend, sequence: int, count: int) -> None:
    """Feed tokens for which a reservation was refused."""
    length = backend.length(sequence)
    try:
        bench.feed(backend, Feed(sequence, bench.tokens(count)))
    except CapacityError:
        bench.expect_length(backend, sequence, length)
        return
    raise ConformanceError(f"a pass found room for {count} tokens that a reservation did not find")


def _expect_overflow(bench: BackendBench, backend: ModelBackend, feeds: list[Feed]) -> None:
    try:
        bench.feed(backend, *feeds)
    except ContextOverflowError:
        return
    limit = backend.info.context_length
    raise ConformanceError(
        f"a row past the context of {limit} tokens did not raise ContextOverflowError"
    )


#: Checks of forks, of the prefix cache, of room and of limits.
SHARING_CHECKS: tuple[Check, ...] = (
    forks_share_and_part,
    forks_roll_back_alone,
    warm_equals_cold,
    drafts_are_never_shared,
    committed_text_survives_rollback,
    refused_room_changes_nothing,
    granted_room_is_kept,
    context_overflow_appends_nothing,
    closing_frees_everything,
)
