"""Prompt lookup with several candidates: what followed the last tokens, each time they occurred."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import TreeDraft
from draftproof.errors import ConfigError
from draftproof.proposers._lookups import SuffixLookups
from draftproof.proposers.ngram import continuation
from draftproof.proposers.tree_shapes import check_shape, pruned_paths

__all__ = ["NgramTreeProposer"]

#: How many of the newest occurrences are looked at.
_NEWEST = 256


class NgramTreeProposer:
    """Drafts a tree of what followed earlier occurrences of the request's last tokens.

    Occurrences are ranked by the length of the match and then by age, newest first.
    Their continuations, as `draftproof.proposers.NgramProposer` copies them, are merged
    where they begin alike. The candidates are deterministic: every tree rule judges
    them by the target's law alone, no coin is used, and how they are ranked and cut
    does not matter for the law of the output.

    Parameters
    ----------
    min_n : int
        Shortest match that is trusted, in tokens; at least 1.
    max_n : int
        Longest match that is looked for, in tokens; at least ``min_n``.
    max_paths : int
        Most continuations that differ in their first token or later; at least 1.
    acceptance : float
        Chance that a token of the best continuation is kept, in (0, 1). It decides how
        the ``kappa`` nodes are shared: near 1 the best one gets all of them.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Each request has its own index, dropped by ``release``; nothing of one request can be
    proposed to another. A call costs one vectorised pass over the context and
    ``max_n`` steps over at most 256 occurrences.
    """

    def __init__(
        self, min_n: int = 2, max_n: int = 8, *, max_paths: int = 4, acceptance: float = 0.7
    ) -> None:
        if max_paths < 1:
            raise ConfigError(f"max_paths {max_paths}: expected 1 or more")
        check_shape(acceptance)
        self._lookups = SuffixLookups(min_n, max_n)
        self._max_paths = max_paths
        self._acceptance = acceptance

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "ngram-tree"

    @property
    def num_requests(self) -> int:
        """How many requests hold an index now."""
        return len(self._lookups)

    def propose(self, requests: Sequence[ProposalRequest]) -> list[TreeDraft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of TreeDraft
            One per row: at most ``kappa`` nodes, or none with a note.
        """
        return [self._propose_one(request) for request in requests]

    def release(self, request_id: str) -> None:
        """Drop the index of a request.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._lookups.release(request_id)

    def _propose_one(self, request: ProposalRequest) -> TreeDraft:
        index = self._lookups.ingest(request.request_id, request.token_ids)
        paths: list[tuple[int, ...]] = []
        for match in index.matches(_NEWEST):
            path = continuation(index, match, request.kappa)
            if path not in paths:
                paths.append(path)
            if len(paths) == self._max_paths:
                break
        if not paths:
            return TreeDraft(proposer=self.name, note="no earlier n-gram matches")
        return TreeDraft.from_paths(pruned_paths(paths, request.kappa, self._acceptance), self.name)
