"""Recomputes what the cache promises from nothing but its page lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from draftproof.cache.pool import PagePool
from draftproof.cache.prefix import NO_PAGE, PrefixIndex
from draftproof.cache.sequence import SequenceState
from draftproof.errors import InvariantError

__all__ = ["check_pages", "check_prefixes"]


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def check_pages(
    pool: PagePool, states: Sequence[SequenceState], prefixes: PrefixIndex, page_size: int
) -> None:
    """Check that every page is in one place and counted right.

    Parameters
    ----------
    pool : PagePool
        The pages.
    states : sequence of SequenceState
        All open sequences.
    prefixes : PrefixIndex
        The prefix cache.
    page_size : int
        Token slots of a page.
    """
    listed: Counter[int] = Counter()
    for state in states:
        pages = state.pages[state.num_evicted : state.num_pages].tolist()
        _expect(len(set(pages)) == len(pages), f"a page is doubled in {pages}")
        _expect(
            state.num_pages * page_size >= max(state.length, state.writable_end),
            f"{state.num_pages} pages for {state.length} tokens, {state.writable_end} writable",
        )
        listed.update(pages)
    for page, count in enumerate(pool.references):
        _expect(count == listed[page], f"page {page} counts {count}, listed {listed[page]} times")
    held, free, idle = set(listed), set(pool.free), set(pool.idle)
    _expect(len(free) == len(pool.free), "a page is doubled in the free list")
    _expect(
        len(held) + len(free) + len(idle) == pool.num_pages
        and held | free | idle == set(range(pool.num_pages)),
        f"{len(held)} held, {len(free)} free, {len(idle)} idle of {pool.num_pages} pages",
    )
    _expect(idle == set(prefixes.by_page) - held, "idle pages are not the unheld published ones")
    _check_reservations(states, prefixes, page_size)


def _check_reservations(
    states: Sequence[SequenceState], prefixes: PrefixIndex, page_size: int
) -> None:
    """Check that reserved slots are read and written by nobody else."""
    readers: dict[int, int] = {}
    for state in states:
        for page in state.pages[state.num_evicted : state.num_pages].tolist():
            readers[page] = max(readers.get(page, 0), state.length)
    writers: Counter[int] = Counter()
    for state in states:
        if state.writable_end <= state.length:
            continue
        for page in state.pages[state.length // page_size : state.num_pages].tolist():
            writers[page] += 1
            _expect(page not in prefixes.by_page, f"reserved page {page} is published")
            # Shared pages stand at the same index for all, so lengths can be compared.
            _expect(readers[page] <= state.length, f"reserved slots of page {page} are read")
    _expect(all(count == 1 for count in writers.values()), "a page has two writers")


def check_prefixes(
    pool: PagePool, states: Sequence[SequenceState], prefixes: PrefixIndex, page_size: int
) -> None:
    """Check that every published page is found under its own tokens, and nothing lingers.

    Parameters
    ----------
    pool : PagePool
        The pages.
    states : sequence of SequenceState
        All open sequences.
    prefixes : PrefixIndex
        The prefix cache.
    page_size : int
        Token slots of a page.
    """
    nodes = list(prefixes.nodes.values())
    with_page = {node.page: node for node in nodes if node.page != NO_PAGE}
    _expect(
        with_page == prefixes.by_page
        and len(with_page) == sum(node.page != NO_PAGE for node in nodes),
        "published pages and their nodes disagree",
    )
    _expect(all(0 <= page < pool.num_pages for page in with_page), "a published page is no page")
    alive = {id(prefixes.root), *map(id, nodes)}
    children: Counter[int] = Counter()
    for node in nodes:
        parent = node.parent
        _expect(parent is not None and id(parent) in alive, "a prefix lost its parent")
        assert parent is not None
        _expect(prefixes.find(parent, node.tokens) is node, "a prefix is not found by its key")
        _expect(len(node.tokens) == 4 * page_size, "a prefix is not one full page")
        children[id(parent)] += 1
    users = Counter(id(state.node) for state in states)
    for node in (prefixes.root, *nodes):
        _expect(node.num_children == children[id(node)], "children of a prefix are miscounted")
        _expect(node.num_users == users[id(node)], "users of a prefix are miscounted")
        _expect(
            node.parent is None or node.page != NO_PAGE or children[id(node)] + users[id(node)] > 0,
            "a prefix without page, child or user was left behind",
        )
    for state in states:
        _check_chain(state, prefixes, page_size)


def _check_chain(state: SequenceState, prefixes: PrefixIndex, page_size: int) -> None:
    """Check that a sequence's chain of prefixes spells its own tokens."""
    _expect(state.num_final_pages * page_size <= state.length, "final pages beyond the length")
    live = range(state.num_evicted, state.num_final_pages)
    final = {int(state.pages[index]) for index in live}
    node = state.node
    for index in range(state.num_final_pages - 1, -1, -1):
        _expect(node.parent is not None, "a chain of prefixes is too short")
        tokens = state.tokens[index * page_size : (index + 1) * page_size].tobytes()
        _expect(node.tokens == tokens, "a chain of prefixes does not spell the tokens")
        if index in live:
            page = int(state.pages[index])
            owner = prefixes.by_page.get(page)
            _expect(
                owner is None or owner is node, f"page {page} is published under another prefix"
            )
        assert node.parent is not None
        node = node.parent
    _expect(node.parent is None, "a chain of prefixes is too long")
    _expect(len(final) == len(live), "a final page is listed twice")
