"""What costs nothing first, a model behind it, in one draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.core.law import Law, OneHotLaw
from draftproof.core.protocols import Foreteller, ProposalRequest
from draftproof.core.types import Draft
from draftproof.proposers._parts import PartsProposer

__all__ = [
    "ContinuingProposer",
    "DraftlessProposer",
    "HybridHeadProposer",
    "HybridProposer",
    "ReadingProposer",
]

#: The best sign of a `Foreteller`, and what a part that does not tell is ranked as: between
#: a weak and a firm copy, so that a caller's prediction is looked at before anything is known.
_SUREST: Final = 3
_UNTOLD: Final = 2


class DraftlessProposer(Protocol):
    """A drafter whose drafts are chains; the `Proposer` protocol in its narrow form."""

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        ...

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows at once."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        ...


class ContinuingProposer(DraftlessProposer, Protocol):
    """A drafter that can go on where another one stopped."""

    def propose_after(
        self, requests: Sequence[ProposalRequest], heads: Sequence[Sequence[int]]
    ) -> list[Draft]:
        """Draft behind the tokens that are drafted already.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft; ``kappa`` counts the head.
        heads : sequence of sequence of int
            For each row the tokens that are drafted already.

        Returns
        -------
        list of Draft
            One per row: the tokens after the head, drawn with the coins of their offset
            in the round.
        """
        ...


class ReadingProposer(ContinuingProposer, Protocol):
    """A drafter that goes on from the target's hidden states."""

    def observe(self, request_id: str, start: int, hidden: NDArray[np.float32]) -> None:
        """Take the hidden states of committed tokens."""
        ...


@dataclass(slots=True)
class _Mixed:
    """A draft while it is put together; ``laws`` holds None for a certain token."""

    token_ids: tuple[int, ...] = ()
    laws: tuple[Law | None, ...] = ()
    sources: tuple[str, ...] = ()
    note: str = ""

    def add(self, draft: Draft) -> None:
        """Append the tokens of one part."""
        self.token_ids += draft.token_ids
        self.laws += (None,) * len(draft) if draft.laws is None else draft.laws
        self.sources += (draft.proposer,) * len(draft)

    def finish(self, name: str) -> Draft:
        """Return the draft with one law per token, or none where all are certain."""
        vocab_sizes = [law.vocab_size for law in self.laws if law is not None]
        laws = None
        if vocab_sizes:
            laws = tuple(
                OneHotLaw(token, vocab_sizes[0]) if law is None else law
                for token, law in zip(self.token_ids, self.laws, strict=True)
            )
        return Draft(self.token_ids, laws, name, self.note, self.sources)


class HybridProposer(PartsProposer):
    """Takes the first draft that costs nothing, and lets a model go on behind it.

    For each request and round: the draftless parts are asked until one drafts something,
    first the one whose copy the committed tokens back best, in the given order where they
    are even. How far it trusts itself is its own business: a suffix drafter stops
    where its score falls below its ``min_score``. Where that is short, the model reads
    what was drafted as text and adds up to ``max_model_tokens``; where nothing was
    drafted the model drafts alone.

    Parameters
    ----------
    draftless : sequence of DraftlessProposer
        Drafters without a model, the best first; at least one.
    model : ContinuingProposer
        Drafts behind them.
    max_model_tokens : int, default 3
        Most tokens that the model adds per round; each is one pass of it.
    enough : int, default 4
        From this many draftless tokens on the model is not asked: what it adds counts
        only where all of them are kept, and its passes cost the same.
    name : str, default "hybrid"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or two parts have one name.

    Notes
    -----
    Each token keeps the law it was drawn from, one-hot for draftless ones, and the name
    of its part, so that acceptance can be told by source. Where the draft passes from
    one part to the next, and where it ends, depends on earlier tokens alone. The mixture
    is therefore one drafter whose law is known, and the rules keep the target's law.

    A part that fails drafts nothing and leaves a note; the others go on.
    """

    def __init__(
        self,
        draftless: Sequence[DraftlessProposer],
        model: ContinuingProposer,
        *,
        max_model_tokens: int = 3,
        enough: int = 4,
        name: str = "hybrid",
    ) -> None:
        super().__init__(
            draftless, model, max_model_tokens=max_model_tokens, enough=enough, name=name
        )
        self._draftless = tuple(draftless)
        self._model = model

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows at once.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One per row, with a source and, unless all are certain, a law per token.
        """
        mixed = [_Mixed() for _ in requests]
        ranked = [self._ranked(request) for request in requests]
        for rank, (at, part) in product(range(len(self._draftless)), enumerate(self._draftless)):
            rows = [
                row
                for row, order in enumerate(ranked)
                if order[rank] == at and not mixed[row].token_ids
            ]
            asked = [requests[row] for row in rows]
            drafts = _drafts(part, len(rows), partial(part.propose, asked))
            for row, draft in zip(rows, drafts, strict=True):
                _append(mixed[row], draft)
        rows = [row for row, request in enumerate(requests) if self._pays(mixed[row], request)]
        heads = [mixed[row].token_ids for row in rows]
        most = [len(head) + self._max_model_tokens for head in heads]
        asked = [
            replace(requests[row], kappa=min(requests[row].kappa, kappa))
            for row, kappa in zip(rows, most, strict=True)
        ]
        drafts = _drafts(self._model, len(rows), partial(self._model.propose_after, asked, heads))
        for row, draft in zip(rows, drafts, strict=True):
            _append(mixed[row], draft)
        return [item.finish(self._name) for item in mixed]

    def foretell(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Tell how well the committed tokens back a copy.

        Parameters
        ----------
        request_id : str
            The request.
        token_ids : sequence of int
            Its committed tokens.

        Returns
        -------
        int
            The sign, from 1 to 3, of the draftless part that is asked first among those that
            would copy. -1 where none would: the model drafts there, and what it drafts is not
            foretold. Never 0. A part that cannot tell yet is passed over, one that never tells
            ends the search.
        """
        signs = self._signs(request_id, token_ids)
        for at in _falling(signs):
            if not isinstance(self._draftless[at], Foreteller):
                return -1
            if signs[at] > 0:
                return signs[at]
        return -1

    def _ranked(self, request: ProposalRequest) -> list[int]:
        """Order the draftless parts for one row, by committed tokens alone."""
        # Parts that tell 0 draft nothing: where all but the last do, its look-up need not be
        # made here as well as when it drafts.
        others = self._draftless[:-1]
        if all(self._is_idle(part, request) for part in others):
            return [len(others), *range(len(others))]
        return _falling(self._signs(request.request_id, request.token_ids))

    def _is_idle(self, part: DraftlessProposer, request: ProposalRequest) -> bool:
        """Say whether a part tells that it would draft nothing."""
        if not isinstance(part, Foreteller):
            return False
        try:
            return part.foretell(request.request_id, request.token_ids) == 0
        except Exception:  # noqa: BLE001  asked to draft it leaves a note
            return False

    def _signs(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """Ask every part for its sign; not those behind one that none can surpass."""
        signs: list[int] = []
        for part in self._draftless:
            sign = -1
            if max(signs, default=0) == _SUREST:
                sign = 0
            elif isinstance(part, Foreteller):
                try:
                    sign = part.foretell(request_id, token_ids)
                except Exception:  # noqa: BLE001  asked to draft it leaves a note
                    sign = 0
            signs.append(sign)
        return signs

    def _pays(self, mixed: _Mixed, request: ProposalRequest) -> bool:
        """Say whether the model is asked; looks at how many tokens there are, not at which."""
        return len(mixed.token_ids) < min(self._enough, request.kappa)


class HybridHeadProposer(HybridProposer):
    """A `HybridProposer` whose model is a draft head, which is told hidden states.

    Parameters
    ----------
    draftless : sequence of DraftlessProposer
        Drafters without a model, the best first; at least one.
    head : ReadingProposer
        Drafts behind them, from what it is told here.
    max_model_tokens : int, default 3
        Most tokens that the head adds per round.
    enough : int, default 1
        From this many draftless tokens on the head is not asked. Behind a copy it would pay a
        pass for each copied token as well, for drafts that count only where the whole copy is
        kept; so unless told otherwise it drafts only where nothing is copied.
    name : str, default "hybrid"
        Name used in records.

    Raises
    ------
    ConfigError
        If a parameter is out of range, or two parts have one name.
    """

    def __init__(
        self,
        draftless: Sequence[DraftlessProposer],
        head: ReadingProposer,
        *,
        max_model_tokens: int = 3,
        enough: int = 1,
        name: str = "hybrid",
    ) -> None:
        super().__init__(
            draftless, head, max_model_tokens=max_model_tokens, enough=enough, name=name
        )
        self._reader = head

    def observe(self, request_id: str, start: int, hidden: NDArray[np.float32]) -> None:
        """Pass the hidden states of committed tokens on to the head.

        Parameters
        ----------
        request_id : str
            The request.
        start : int
            Position of the first of the tokens.
        hidden : ndarray of float32, shape (n, E)
            Their hidden states.
        """
        self._reader.observe(request_id, start, hidden)


def _falling(signs: Sequence[int]) -> list[int]:
    """Return the places of signs, the best first; equal ones keep their order."""
    return sorted(range(len(signs)), key=lambda at: -(_UNTOLD if signs[at] < 0 else signs[at]))


def _drafts(part: DraftlessProposer, count: int, ask: Callable[[], list[Draft]]) -> list[Draft]:
    """Return the drafts of one part; empty ones with a note where it fails."""
    if count == 0:
        return []
    try:
        drafts = ask()
        if len(drafts) == count:
            return drafts
        reason = f"{len(drafts)} drafts for {count} rows"
    except Exception as error:  # noqa: BLE001  a part may fail; the others go on
        reason = repr(error)
    return [Draft(proposer=part.name, note=f"{part.name} failed: {reason}")] * count


def _append(mixed: _Mixed, draft: Draft) -> None:
    """Add a part's draft; what kept a part from drafting is told while nothing is drafted."""
    mixed.add(draft)
    if draft.token_ids:
        mixed.note = draft.note
    elif draft.note:
        mixed.note = f"{mixed.note}; {draft.note}" if mixed.note else draft.note
