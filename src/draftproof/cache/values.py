"""The values that the cache hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["CacheCounters", "CacheUsage", "PageCopy", "SlotMove"]


class PageCopy(NamedTuple):
    """The first slots of one page, to be copied to another in every layer.

    Parameters
    ----------
    src_page : int
        Page to read.
    dst_page : int
        Page to write.
    num_slots : int
        How many slots to copy, from slot 0 on.
    """

    src_page: int
    dst_page: int
    num_slots: int


class SlotMove(NamedTuple):
    """One slot of a page, to be copied to another slot in every layer.

    Parameters
    ----------
    src_page : int
        Page to read.
    src_slot : int
        Slot in it.
    dst_page : int
        Page to write.
    dst_slot : int
        Slot in it.
    """

    src_page: int
    src_slot: int
    dst_page: int
    dst_slot: int


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Where the pages are now. Free, held and evictable pages add up to the total.

    Parameters
    ----------
    total_pages : int
        Pages of the pool.
    free_pages : int
        Pages that hold nothing of use.
    held_pages : int
        Pages that open sequences hold or have reserved, each counted once.
    evictable_pages : int
        Pages that only the prefix cache keeps; any of them can be taken.
    num_sequences : int
        Open sequences.
    total_bytes : int
        Bytes of all pages.
    held_bytes : int
        Bytes of the held pages.
    """

    total_pages: int
    free_pages: int
    held_pages: int
    evictable_pages: int
    num_sequences: int
    total_bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counts since the cache was made. None of them ever falls.

    Parameters
    ----------
    prefix_query_tokens : int
        Tokens given to ``open``.
    prefix_hit_tokens : int
        Tokens restored by ``open`` from the prefix cache.
    num_evictions : int
        Published pages taken back because no free page was left.
    num_copies : int
        Page copies scheduled by copy on write.
    """

    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    num_evictions: int = 0
    num_copies: int = 0
