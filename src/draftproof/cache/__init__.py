"""Paged KV bookkeeping: which page holds which token of which sequence.

The room knows token ids, page ids and counts. It holds no tensor and runs no
model: a backend owns the memory, asks here where to write, and carries out the
copies it is told to make.
"""

from draftproof.cache.branches import Branches, branches_of, check_path
from draftproof.cache.paged import PagedCache
from draftproof.cache.values import CacheCounters, CacheUsage, PageCopy, SlotMove

__all__ = [
    "Branches",
    "CacheCounters",
    "CacheUsage",
    "PageCopy",
    "PagedCache",
    "SlotMove",
    "branches_of",
    "check_path",
]
