"""Suffix drafts that branch: the likeliest continuations by how often they followed."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import TreeDraft
from draftproof.proposers._candidates import Candidates
from draftproof.proposers._contexts import ContextMatch
from draftproof.proposers._following import DOUBT
from draftproof.proposers.suffix import SuffixProposer

__all__ = ["SuffixTreeProposer"]

#: How many shorter ends of the text are looked up behind the longest, each half as long.
_SHORTER = 2


class SuffixTreeProposer:
    """Drafts a tree of what followed the text's end before, the likeliest nodes first.

    The longest end of the text that occurred before is looked up as
    `draftproof.proposers.SuffixProposer` does it, and ends of half and of a quarter of
    that length. All places of one length vote on the next token. With V votes of N places
    that match M tokens a token is guessed to follow with ``M V / (M N + 2.5)``; what is
    left over is shared out by the shorter match. These guesses multiply along a path, the
    match grows by one with every token, and the nodes with the largest products, `kappa`
    of them, make the tree. Where the text went on one way only it is a chain.

    The candidates are deterministic: every tree rule judges them by the target's law
    alone, no coin is used, and how they are ranked and cut does not matter for the law of
    the output.

    Parameters
    ----------
    min_match, max_match : int
        As of `draftproof.proposers.SuffixProposer`.
    min_score : float, default 0.1
        Nodes whose product is below this are left out; in (0, 1].
    window, max_votes, tenant_tokens, max_tenants : int
        As of `draftproof.proposers.SuffixProposer`.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    A step costs O(log window) per new token and three look-ups of as much, and at most
    ``3 * max_votes`` votes per node. Memory, sharing between requests of a tenant, and what
    is never shared are those of `draftproof.proposers.SuffixProposer`.

    References
    ----------
    Oliaro et al. (2024). SuffixDecoding, 2411.04975, section 3: trees by the frequencies
    of a suffix tree. Cleary and Witten (1984): shorter contexts for what is left over.
    """

    def __init__(
        self,
        *,
        min_match: int = 1,
        max_match: int = 32,
        min_score: float = 0.1,
        window: int = 131_072,
        max_votes: int = 32,
        tenant_tokens: int = 0,
        max_tenants: int = 64,
    ) -> None:
        self._suffixes = SuffixProposer(
            min_match=min_match,
            max_match=max_match,
            min_score=min_score,
            window=window,
            max_votes=max_votes,
            tenant_tokens=tenant_tokens,
            max_tenants=max_tenants,
        )
        self._min_score = min_score

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "suffix-tree"

    @property
    def num_requests(self) -> int:
        """How many requests are indexed now."""
        return self._suffixes.num_requests

    @property
    def reads(self) -> frozenset[str]:
        """Options of requests that it reads."""
        return self._suffixes.reads

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that all indexes take."""
        return self._suffixes.num_bytes

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
        """Forget a request; keep its output for its tenant where that is asked for.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        self._suffixes.release(request_id)

    def forget_tenant(self, tenant: str) -> None:
        """Forget the earlier outputs of a tenant; unknown names are ignored."""
        self._suffixes.forget_tenant(tenant)

    def candidates(self, request: ProposalRequest) -> Candidates:
        """Return the likeliest nodes for one row, with what was guessed of each.

        Parameters
        ----------
        request : ProposalRequest
            The row that may draft.

        Returns
        -------
        Candidates
            At most ``kappa`` nodes, or none with a note.
        """
        matches, token_at = self._suffixes.look_up(request, shorter=_SHORTER)
        if not matches:
            return Candidates(note="no earlier match")
        tree = _likeliest(matches, token_at, request.kappa, self._min_score)
        if tree.token_ids:
            return tree
        return Candidates(note=f"no continuation scores {self._min_score} or more")

    def _propose_one(self, request: ProposalRequest) -> TreeDraft:
        return self.candidates(request).draft(self.name)


def _likeliest(
    matches: Sequence[ContextMatch],
    token_at: Callable[[int, Sequence[int]], int | None],
    most: int,
    least_score: float,
) -> Candidates:
    """Return the likeliest nodes, parents first."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    # (-score, order, parent, the path to the node, the matches that go on behind it)
    open_nodes: list[tuple[float, int, int, tuple[int, ...], list[ContextMatch]]] = []
    order = count()

    def offer(parent: int, path: tuple[int, ...], score: float, held: list[ContextMatch]) -> None:
        for token, (share, behind) in _votes(held, token_at, path).items():
            if score * share >= least_score:
                item = (-score * share, next(order), parent, (*path, token), behind)
                heapq.heappush(open_nodes, item)

    offer(-1, (), 1.0, list(matches))
    while open_nodes and len(tokens) < most:
        minus_score, _, parent, path, behind = heapq.heappop(open_nodes)
        tokens.append(path[-1])
        parents.append(parent)
        scores.append(-minus_score)
        if len(tokens) < most:
            offer(len(tokens) - 1, path, -minus_score, behind)
    return Candidates(tuple(tokens), tuple(parents), tuple(scores))


def _votes(
    matches: Sequence[ContextMatch],
    token_at: Callable[[int, Sequence[int]], int | None],
    path: tuple[int, ...],
) -> dict[int, tuple[float, list[ContextMatch]]]:
    """Return the guessed probability of each next token, and the matches that agree with it.

    Tokens of longer matches come first, newest first among those of one match, so that of
    equal guesses the newest is taken.
    """
    found: dict[int, tuple[float, list[ContextMatch]]] = {}
    left = 1.0
    for match in matches:
        voters: dict[int, list[int]] = {}
        for place in sorted(match.places, reverse=True):
            token = token_at(place + len(path), path)
            if token is not None:
                voters.setdefault(token, []).append(place)
        total = sum(map(len, voters.values()))
        if not total:
            continue
        weight = match.length + len(path)
        whole = weight * total + DOUBT
        for token, places in voters.items():
            share, held = found.get(token, (0.0, []))
            held.append(ContextMatch(match.length, tuple(places)))
            found[token] = (share + left * weight * len(places) / whole, held)
        left *= DOUBT / whole
    return found
