"""Pages, who holds them, and in which order unused ones are given up."""

from __future__ import annotations

from collections import OrderedDict

from draftproof.errors import InvariantError

__all__ = ["PagePool"]


class PagePool:
    """Reference counts, the free list and the eviction order of all pages.

    A page is *held* (one reference for each sequence that lists it), *idle* (no
    reference, its contents are kept for the prefix cache), or *free*.

    Parameters
    ----------
    num_pages : int
        Size of the pool.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.references = [0] * num_pages
        # A stack: the page given back last is warm in the processor's caches.
        self.free = list(range(num_pages - 1, -1, -1))
        # Idle pages, least recently used first.
        self.idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_available(self) -> int:
        """Number of pages that ``take`` can give."""
        return len(self.free) + len(self.idle)

    def take(self) -> tuple[int, bool]:
        """Give out a page with one reference.

        Returns
        -------
        page : int
            The page; its contents are not cleared.
        evicted : bool
            Whether it was idle, so that the prefix cache must forget it.

        Raises
        ------
        InvariantError
            If every page is held; callers ask ``num_available`` first.
        """
        evicted = not self.free
        if self.free:
            page = self.free.pop()
        elif self.idle:
            page, _ = self.idle.popitem(last=False)
        else:
            raise InvariantError(f"no page left of {self.num_pages}, expected the caller to ask")
        self.references[page] = 1
        return page, evicted

    def hold(self, page: int) -> None:
        """Add a reference to a page that is held or idle."""
        if self.references[page] == 0:
            del self.idle[page]
        self.references[page] += 1

    def release(self, page: int, *, keep: bool) -> None:
        """Drop a reference; a page without any becomes idle (``keep``) or free."""
        count = self.references[page] - 1
        if count < 0:
            raise InvariantError(f"page {page} released without a reference")
        self.references[page] = count
        if count == 0:
            if keep:
                self.idle[page] = None
            else:
                self.free.append(page)

    def touch(self, page: int) -> None:
        """Make an idle page the most recently used one; others are left alone."""
        if page in self.idle:
            self.idle.move_to_end(page)
