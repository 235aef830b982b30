"""The suffix indices of a drafter, one for each request, fed with its new tokens only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.errors import ConfigError
from draftproof.proposers._suffix_match import SuffixMatchIndex

__all__ = ["SuffixLookups"]

#: How many of the tokens ingested last are compared with the request's before more are added.
_BOUNDARY = 8


@dataclass(slots=True)
class _Lookup:
    """The index of one request, and the token list it has read so far."""

    index: SuffixMatchIndex
    source: Sequence[int] = field(default=())


class SuffixLookups:
    """An index per request, which nothing of another request ever enters.

    Parameters
    ----------
    min_n : int
        Shortest match that is trusted, in tokens; at least 1.
    max_n : int
        Longest match that is looked for, in tokens; at least ``min_n``.

    Raises
    ------
    ConfigError
        If the range is empty or starts below 1.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        if not 1 <= min_n <= max_n:
            raise ConfigError(f"n-gram range {min_n}..{max_n}: expected 1 <= min_n <= max_n")
        self._min_n = min_n
        self._max_n = max_n
        self._lookups: dict[str, _Lookup] = {}

    def __len__(self) -> int:
        """Return how many requests hold an index."""
        return len(self._lookups)

    def ingest(self, request_id: str, tokens: Sequence[int]) -> SuffixMatchIndex:
        """Return the request's index with all its tokens in it.

        Parameters
        ----------
        request_id : str
            The request.
        tokens : sequence of int
            Its committed tokens; the same list object is trusted to have grown.

        Returns
        -------
        SuffixMatchIndex
            Made anew when the tokens are not a continuation of those it held.
        """
        lookup = self._lookups.get(request_id)
        if lookup is None or not _continues(lookup, tokens):
            lookup = _Lookup(SuffixMatchIndex(self._min_n, self._max_n))
            self._lookups[request_id] = lookup
        lookup.source = tokens
        lookup.index.extend(tokens[len(lookup.index) :])
        return lookup.index

    def release(self, request_id: str) -> None:
        """Drop the index of a request; unknown names are ignored.

        Parameters
        ----------
        request_id : str
            The request.
        """
        self._lookups.pop(request_id, None)


def _continues(lookup: _Lookup, tokens: Sequence[int]) -> bool:
    """Say whether the tokens only add to what the index holds.

    The same list object is trusted to have grown at its end, up to a look at the
    boundary; another object is compared in full.
    """
    held = len(lookup.index)
    if held > len(tokens):
        return False
    begin = max(0, held - _BOUNDARY) if tokens is lookup.source else 0
    return bool(list(tokens[begin:held]) == lookup.index.tokens[begin:].tolist())
