"""Prompt lookup: propose what followed the last tokens when they occurred before."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import Draft
from draftproof.proposers._lookups import SuffixLookups
from draftproof.proposers._suffix_match import SuffixMatch, SuffixMatchIndex

__all__ = ["NgramProposer"]


class NgramProposer:
    """Drafts copied from the request's own tokens (prompt lookup).

    The longest suffix of ``min_n`` to ``max_n`` tokens that occurred before is
    looked for; the *most recent* of equally long occurrences wins. The draft is what
    followed it. An occurrence that reaches into the suffix itself is allowed: the
    copy then runs on periodically, as text that repeats with that period would, so
    that a draft has the full ``kappa`` tokens whenever anything matches.

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

    Notes
    -----
    Each request has its own index, fed with its new tokens only and dropped by
    ``release``, so nothing of one request can be proposed to another. Drafts are
    deterministic: the law of each is one-hot, and no coin is used.

    A call costs one vectorised pass over the context and a binary search over the
    match length; a wider range adds its logarithm at most.

    References
    ----------
    Saxena, A. (2023). Prompt Lookup Decoding.
    """

    def __init__(self, min_n: int = 2, max_n: int = 8) -> None:
        self._lookups = SuffixLookups(min_n, max_n)
        # The longer the match, the less it is by chance; in texts of a small model drafts
        # behind the shortest match were kept in 4 of 10 places, behind one of 5 in 9 of 10.
        self._firm = min(max_n, min_n + 3)
        self._barely = min_n

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "ngram"

    @property
    def num_requests(self) -> int:
        """How many requests hold an index now."""
        return len(self._lookups)

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One per row: ``kappa`` tokens after the match, or none with a note.
        """
        return [self._propose_one(request) for request in requests]

    def foretell(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Tell how long the match is that a draft would follow.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens.

        Returns
        -------
        int
            0 without a match, 1 for the shortest that is trusted, 3 from three tokens more
            on or for the longest that is looked for, 2 between.
        """
        match = self._lookups.ingest(request_id, token_ids).longest()
        if match is None:
            return 0
        if match.length >= self._firm:
            return 3
        return 1 if match.length == self._barely else 2

    def release(self, request_id: str) -> None:
        """Drop the index of a request.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._lookups.release(request_id)

    def _propose_one(self, request: ProposalRequest) -> Draft:
        index = self._lookups.ingest(request.request_id, request.token_ids)
        match = index.longest()
        if match is None:
            return Draft(proposer=self.name, note="no earlier n-gram matches")
        return Draft(continuation(index, match, request.kappa), proposer=self.name)


def continuation(index: SuffixMatchIndex, match: SuffixMatch, kappa: int) -> tuple[int, ...]:
    """Copy ``kappa`` tokens from the end of the match, periodically past the text's end."""
    copied: list[int] = index.tokens[match.end : match.end + kappa].tolist()
    period = len(copied)
    return tuple(copied[i % period] for i in range(kappa))
