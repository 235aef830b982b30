"""Drafts from the longest earlier match of the text's end, as long as it deserves."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import Draft
from draftproof.errors import ConfigError
from draftproof.proposers._contexts import SEPARATOR, ContextIndex, ContextMatch, context_bytes
from draftproof.proposers._following import first_score, follow

__all__ = ["SuffixProposer"]

#: Scores of a first token from which on it is told to be backed firmly, and fairly. In greedy
#: texts of a small model such tokens were kept 96 and 75 times of 100, and 41 times from 0.3 to
#: 0.5 (``benchmarks/results/foretold.json``).
_FIRM, _FAIR = 0.7, 0.5


@dataclass(slots=True)
class _Text:
    """What is indexed of one request.

    Parameters
    ----------
    index : ContextIndex
        Its committed tokens.
    source : sequence of int
        Its token list, as last seen.
    num_prompt_tokens : int
        How many of them are the prompt.
    tenant : str
        Whose request it is.
    coins : int, optional
        Tells its coins from those of requests with another seed; None until it drafts.
    compared : tuple of (ContextIndex, int), optional
        Earlier outputs, and how many tokens of them its coins were compared with last.
    is_independent : bool
        Whether none of them was made with its coins.
    size : int
        Tokens that the index had when it was asked for its longest match.
    match : ContextMatch, optional
        That match.
    """

    index: ContextIndex
    source: Sequence[int] = ()
    num_prompt_tokens: int = 0
    tenant: str = ""
    coins: int | None = None
    compared: tuple[ContextIndex, int] | None = None
    is_independent: bool = False
    size: int = -1
    match: ContextMatch | None = None

    def longest(self, limit: int) -> ContextMatch | None:
        """Return the longest earlier match of its own end; looked up once per end."""
        if self.size != len(self.index):
            self.size, self.match = len(self.index), self.index.longest(self.index.end, limit)
        return self.match


@dataclass(slots=True)
class _Shared:
    """Earlier outputs of one tenant.

    Parameters
    ----------
    index : ContextIndex
        The outputs, a separator after each.
    window : int
        Most tokens held.
    ends : array of int
        Where each output that is still held ends.
    coins : array of int
        What made it, as `_Text.coins`; one number per output, since short ones are many.
    """

    index: ContextIndex
    window: int
    ends: array[int] = field(default_factory=partial(array, "q"))
    coins: array[int] = field(default_factory=partial(array, "q"))

    @property
    def num_bytes(self) -> int:
        """Bytes of memory in use."""
        return self.index.num_bytes + 8 * len(self.ends) + 8 * len(self.coins)

    def learn(self, text: _Text) -> None:
        """Add the output of a finished request, if it has any."""
        output = text.source[text.num_prompt_tokens :]
        if not output or text.coins is None:
            return
        self.index.extend([*output, SEPARATOR])
        self.ends.append(len(self.index))
        self.coins.append(text.coins)
        gone = bisect_right(self.ends, len(self.index) - self.window)
        del self.ends[:gone], self.coins[:gone]

    def is_independent_of(self, text: _Text) -> bool:
        """Say whether nothing that is held was made with the coins of a text.

        All of them are compared once each time another output has been learned.
        """
        held = (self.index, len(self.index))
        if text.compared != held:
            text.compared = held
            text.is_independent = not np.any(np.asarray(self.coins) == text.coins)
        return text.is_independent


class SuffixProposer:
    """Drafts copied from where the text's end occurred before, for as long as it is trusted.

    The longest suffix of the text that occurred before is looked up, up to
    ``max_match`` tokens. All its occurrences vote on the next token: the most frequent
    continuation wins, the most recent of equally frequent ones. Those that agreed vote
    on the token after it. A long match, and occurrences that agree, buy a long draft; a
    short match or a split vote a short one or none: see `min_score`. An occurrence that
    reaches into the suffix itself runs on periodically.

    Parameters
    ----------
    min_match : int, default 1
        Shortest match that is used, in tokens.
    max_match : int, default 32
        Longest match that is told apart, in tokens.
    min_score : float, default 0.1
        The draft ends before the token for which the guessed probability, that it and
        all before it are accepted, falls below this. In (0, 1]. A match of M tokens
        that occurred once alone yields about ``1.5 M`` tokens at 0.1.
    window : int, default 131072
        Most tokens of a request that are searched, newest first.
    max_votes : int, default 32
        Most occurrences that vote.
    tenant_tokens : int, default 0
        Most tokens of earlier outputs kept per tenant and searched for its later
        requests. 0 keeps nothing. See Notes.
    max_tenants : int, default 64
        Most tenants whose outputs are kept; the one that was used least recently is
        forgotten first.

    Raises
    ------
    ConfigError
        If a parameter is out of range.

    Notes
    -----
    Drafts are deterministic functions of the tokens: the law of each is one-hot and no
    coin is used. How long a draft is depends on earlier tokens alone.

    A step costs O(log window) per new token and per look-up, whatever the text; whose
    earlier outputs may be used is looked up once for each that was added. Memory
    is bounded by 24 bytes per token of the window, for each running request, and by
    ``24 * tenant_tokens * max_tenants`` bytes for what is shared; the oldest tokens are
    forgotten first. Requests end with ``release``.

    Sharing is off unless ``tenant_tokens`` is set *and* a request names its tenant. What
    one tenant's requests put out, not their prompts, is then searched for later
    requests of that tenant and no other; of equally long matches the request's own wins.
    Drafts must not depend on the coins that judge them: a request whose seed made an
    output that is still held drafts from its own text alone. With a rule that is not
    seed-identical the same seed gives another text once more has been learned.

    References
    ----------
    Oliaro et al. (2024). SuffixDecoding, 2411.04975: suffix trees over earlier outputs,
    draft length by the length of the match.
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
        if not 1 <= min_match <= max_match:
            raise ConfigError(
                f"matches of {min_match}..{max_match} tokens: expected 1 <= min_match <= max_match"
            )
        if not 0.0 < min_score <= 1.0:
            raise ConfigError(f"min_score {min_score}: expected a number in (0, 1]")
        for name, value, least in (
            ("window", window, 1),
            ("max_votes", max_votes, 1),
            ("tenant_tokens", tenant_tokens, 0),
            ("max_tenants", max_tenants, 1),
        ):
            if value < least:
                raise ConfigError(f"{name} {value}: expected {least} or more")
        self._min_match = min_match
        self._max_match = max_match
        self._min_score = min_score
        self._window = window
        self._max_votes = max_votes
        self._tenant_tokens = tenant_tokens
        self._max_tenants = max_tenants
        #: Options of requests that it reads.
        self.reads = frozenset({"tenant"} if tenant_tokens else ())
        self._texts: dict[str, _Text] = {}
        #: Earlier outputs, least recently used tenant first.
        self._shared: dict[str, _Shared] = {}

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "suffix"

    @property
    def num_requests(self) -> int:
        """How many requests are indexed now."""
        return len(self._texts)

    @property
    def num_bytes(self) -> int:
        """Bytes of memory that texts and earlier outputs take."""
        num_bytes = sum(text.index.num_bytes for text in self._texts.values())
        return num_bytes + sum(shared.num_bytes for shared in self._shared.values())

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One per row, without laws; an empty one has a note.
        """
        return [self._propose_one(request) for request in requests]

    def foretell(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Tell how far the first token of a draft is trusted.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens.

        Returns
        -------
        int
            0 where nothing would be drafted; 1 for a score below 0.5, 3 from 0.7 on, 2
            between. -1 where the request's own text has no draft and its tenant, whose
            texts may have one, is not known before the request drafts.
        """
        text = self._held(request_id, token_ids)
        index, match = self._best(text)
        score = 0.0
        if match is not None and match.length >= self._min_match:
            score = first_score(match, self._reader(index))
        if score < self._min_score:
            return -1 if self._tenant_tokens and text.coins is None else 0
        return 3 if score >= _FIRM else 2 if score >= _FAIR else 1

    def release(self, request_id: str) -> None:
        """Forget a request; keep its output for its tenant where that is asked for.

        Parameters
        ----------
        request_id : str
            Name of the request; unknown names are ignored.
        """
        text = self._texts.pop(request_id, None)
        if text is None or not text.tenant or not self._tenant_tokens:
            return
        shared = self._shared.pop(text.tenant, None)
        if shared is None:
            index = ContextIndex(self._max_match, self._tenant_tokens)
            shared = _Shared(index, self._tenant_tokens)
        self._shared[text.tenant] = shared
        shared.learn(text)
        while len(self._shared) > self._max_tenants:
            del self._shared[next(iter(self._shared))]

    def forget_tenant(self, tenant: str) -> None:
        """Forget the earlier outputs of a tenant; unknown names are ignored."""
        self._shared.pop(tenant, None)

    def look_up(
        self, request: ProposalRequest, shorter: int = 0
    ) -> tuple[list[ContextMatch], Callable[[int, Sequence[int]], int | None]]:
        """Find where the text's end occurred before, without drafting.

        Parameters
        ----------
        request : ProposalRequest
            The row that may draft.
        shorter : int, default 0
            How many more times half as long an end is looked up, each where ends of one
            token or more are left that ``min_match`` allows.

        Returns
        -------
        matches : list of ContextMatch
            The longest first, empty where there is none; no place twice.
        token_at : callable of (int, sequence of int)
            The token at a place, given what was drafted behind the text's end.
        """
        text = self._ingest(request)
        shared = self._shared.pop(request.tenant, None)
        if shared is not None:  # the last one used is the last to be forgotten
            self._shared[request.tenant] = shared
        index, match = self._best(text)
        if match is None or match.length < self._min_match:
            return [], self._reader(index)
        found, seen, length = [match], set(match.places), match.length
        for _ in range(shorter):
            length //= 2
            if length < self._min_match:
                break
            more = index.longest(text.index.end[: 4 * length], self._max_votes)
            places = () if more is None else tuple(p for p in more.places if p not in seen)
            if places:
                seen.update(places)
                found.append(ContextMatch(length, places))
        return found, self._reader(index)

    def _propose_one(self, request: ProposalRequest) -> Draft:
        found, token_at = self.look_up(request)
        if not found:
            return Draft(proposer=self.name, note="no earlier match")
        tokens = follow(found[0], token_at, request.kappa, self._min_score)
        note = "" if tokens else f"no continuation scores {self._min_score} or more"
        return Draft(tokens, proposer=self.name, note=note)

    def _best(self, text: _Text) -> tuple[ContextIndex, ContextMatch | None]:
        """Return the longest match of the text's end, and the index that has it."""
        match = text.longest(self._max_votes)
        shared = self._shared.get(text.tenant)
        if shared is not None and shared.is_independent_of(text):
            there = shared.index.longest(text.index.end, self._max_votes)
            if there and (match is None or there.length > match.length):
                return shared.index, there
        return text.index, match

    @staticmethod
    def _reader(index: ContextIndex) -> Callable[[int, Sequence[int]], int | None]:
        """Return what tells the token at a place of an index, or of what is drafted behind."""
        size = len(index)

        def token_at(place: int, drafted: Sequence[int]) -> int | None:
            if place >= size:  # the text's own end: what is drafted stands there
                return drafted[place - size]
            token = index.token(place)
            return None if token == SEPARATOR else token

        return token_at

    def _ingest(self, request: ProposalRequest) -> _Text:
        """Return the request's text with all its tokens in the index, and whose it is."""
        tokens = request.token_ids
        text = self._held(request.request_id, tokens)
        if self._tenant_tokens and text.coins is None:
            # The coin of the text's first token: two seeds share it once in 2**53. Where two
            # hashes agree that do not, nothing but a draft is lost.
            text.coins = hash(request.coins.sample(-request.coins.start))
        text.tenant = request.tenant
        text.num_prompt_tokens = len(tokens) - request.history.num_generated
        return text

    def _held(self, request_id: str, tokens: Sequence[int]) -> _Text:
        """Return the text of a request with all these tokens in the index."""
        text = self._texts.get(request_id)
        if text is None or not self._continues(text, tokens):
            text = self._texts[request_id] = _Text(ContextIndex(self._max_match, self._window))
        text.source = tokens
        text.index.extend(tokens[len(text.index) :])
        return text

    def _continues(self, text: _Text, tokens: Sequence[int]) -> bool:
        """Say whether the tokens only add to what is indexed.

        The same list object is trusted to have grown at its end, up to a look at as
        many tokens as a match has; another object is compared in full.
        """
        held = len(text.index)
        if tokens is not text.source:
            return text.index.starts(tokens)
        begin = max(0, held - self._max_match)
        return held <= len(tokens) and context_bytes(tokens[begin:held]) == text.index.end
