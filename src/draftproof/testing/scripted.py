"""Drafters that follow a script, lawful and unlawful: what an engine must survive.

Each is small, deterministic and counts its calls. The wrappers take another drafter,
so that any of them can be made silent, late, too long or broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from draftproof.core.protocols import ProposalRequest, Proposer
from draftproof.core.types import Draft, TreeDraft
from draftproof.errors import InvariantError

__all__ = [
    "DecliningProposer",
    "FixedProposer",
    "FlickeringProposer",
    "OracleProposer",
    "OverBudgetProposer",
    "RaisingProposer",
    "ScriptedProposer",
    "SlowProposer",
]


class ScriptedProposer:
    """A drafter that is one function from a row to its drafted tokens.

    Parameters
    ----------
    script : callable
        Takes a ProposalRequest and returns the token ids to propose. They are passed
        on as they are: more than ``kappa`` and ids out of range are the script's
        business.
    name : str, default "scripted"
        Name used in records.
    """

    def __init__(
        self, script: Callable[[ProposalRequest], Sequence[int]], name: str = "scripted"
    ) -> None:
        self._script = script
        self._name = name
        #: Requests seen, in order, as (request id, committed length, kappa).
        self.calls: list[tuple[str, int, int]] = []
        #: Names of released requests, in order.
        self.released: list[str] = []

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return self._name

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft for all rows by the script.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One deterministic draft per row.
        """
        drafts = []
        for request in requests:
            self.calls.append((request.request_id, len(request.token_ids), request.kappa))
            drafts.append(Draft(tuple(self._script(request)), proposer=self.name))
        return drafts

    def release(self, request_id: str) -> None:
        """Record that a request was released.

        Parameters
        ----------
        request_id : str
            Name of the request.
        """
        self.released.append(request_id)


class FixedProposer(ScriptedProposer):
    """A drafter that proposes the same tokens in every round.

    One token of target probability zero makes the junk drafter; an end-of-text id
    first makes the one that always wants to stop; -1, V and V + 5 are the ids that
    must never be used as an index.

    Parameters
    ----------
    token_ids : sequence of int
        The tokens, repeated as often as ``kappa`` asks.
    name : str, default "fixed"
        Name used in records.
    """

    def __init__(self, token_ids: Sequence[int], name: str = "fixed") -> None:
        cycle = tuple(token_ids)
        super().__init__(
            lambda request: [cycle[i % len(cycle)] for i in range(request.kappa)], name
        )


class OracleProposer(ScriptedProposer):
    """A drafter that knows the answer.

    Parameters
    ----------
    answers : mapping of str to sequence of int
        All tokens of each request, prompt first. A request that left its answer, or
        that has none, gets no draft.
    corrupt : callable, optional
        Takes the absolute position and the true token and returns the token to
        propose there: scripts where the drafter is wrong.
    name : str, default "oracle"
        Name used in records.
    """

    def __init__(
        self,
        answers: Mapping[str, Sequence[int]],
        corrupt: Callable[[int, int], int] | None = None,
        name: str = "oracle",
    ) -> None:
        def script(request: ProposalRequest) -> list[int]:
            answer = list(answers.get(request.request_id, ()))
            held = len(request.token_ids)
            if answer[:held] != list(request.token_ids):
                return []
            ahead = answer[held : held + request.kappa]
            if corrupt is None:
                return ahead
            return [corrupt(held + i, token) for i, token in enumerate(ahead)]

        super().__init__(script, name)


class DecliningProposer:
    """A drafter that always declines, with a reason.

    Parameters
    ----------
    note : str, default "declined"
        The reason.
    """

    def __init__(self, note: str = "declined") -> None:
        self._note = note

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "declining"

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Return empty drafts with the reason.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            As many empty drafts.
        """
        return [Draft(proposer=self.name, note=self._note) for _ in requests]

    def release(self, request_id: str) -> None:
        """Forget a request; nothing is kept.

        Parameters
        ----------
        request_id : str
            Any name.
        """


class _Wrapper:
    """A drafter around another; counts the calls of ``propose``."""

    def __init__(self, inner: Proposer) -> None:
        self._inner = inner
        #: How often ``propose`` was called.
        self.num_calls = 0

    @property
    def name(self) -> str:
        """Name of the wrapped drafter."""
        return self._inner.name

    def propose(self, requests: Sequence[ProposalRequest]) -> Sequence[Draft | TreeDraft]:
        """Count the call and pass it on.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        sequence of Draft or TreeDraft
            What the wrapped drafter proposed, changed by this one's fault.
        """
        self.num_calls += 1
        return self._altered(self._inner.propose(requests))

    def release(self, request_id: str) -> None:
        """Release the request in the wrapped drafter.

        Parameters
        ----------
        request_id : str
            Name of the request.
        """
        self._inner.release(request_id)

    def _altered(self, drafts: Sequence[Draft | TreeDraft]) -> Sequence[Draft | TreeDraft]:
        return drafts


class FlickeringProposer(_Wrapper):
    """A drafter that is silent in some rounds.

    Parameters
    ----------
    inner : Proposer
        The drafter; it is asked in silent rounds too, and its drafts are withheld.
    pattern : sequence of bool
        Whether round 0, 1, ... drafts; repeated.
    """

    def __init__(self, inner: Proposer, pattern: Sequence[bool] = (True, False)) -> None:
        super().__init__(inner)
        self._pattern = tuple(pattern)

    def _altered(self, drafts: Sequence[Draft | TreeDraft]) -> Sequence[Draft | TreeDraft]:
        if self._pattern[(self.num_calls - 1) % len(self._pattern)]:
            return drafts
        return [Draft(proposer=self.name, note="silent round") for _ in drafts]


class OverBudgetProposer(_Wrapper):
    """A drafter that returns more tokens than it may.

    Parameters
    ----------
    inner : Proposer
        The drafter.
    extra : int, default 1
        How many tokens too many; the last one is repeated.
    """

    def __init__(self, inner: Proposer, extra: int = 1) -> None:
        super().__init__(inner)
        self._extra = extra

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Draft past the budget of each row.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            One per row, ``kappa + extra`` long where the wrapped drafter filled kappa.
        """
        self.num_calls += 1
        drafts = self._inner.propose(requests)
        return [
            self._lengthened(draft, request.kappa)
            for draft, request in zip(drafts, requests, strict=True)
        ]

    def _lengthened(self, draft: Draft | TreeDraft, kappa: int) -> Draft:
        if isinstance(draft, TreeDraft):
            raise InvariantError("a tree cannot be lengthened, expected a drafter of chains")
        if not draft.token_ids:
            return draft
        missing = kappa + self._extra - len(draft)
        laws = draft.laws
        if laws is not None:
            laws = (*laws, *(laws[-1],) * missing)
        tokens = (*draft.token_ids, *(draft.token_ids[-1],) * missing)
        return Draft(tokens, laws, draft.proposer, draft.note)


class RaisingProposer(_Wrapper):
    """A drafter that raises in chosen calls.

    Parameters
    ----------
    inner : Proposer
        The drafter.
    error : Exception
        What is raised.
    calls : collection of int, optional
        Numbers of the calls that raise, from 1; all when not given.
    """

    def __init__(
        self, inner: Proposer, error: Exception, calls: Collection[int] | None = None
    ) -> None:
        super().__init__(inner)
        self._error = error
        self._calls = calls

    def _altered(self, drafts: Sequence[Draft | TreeDraft]) -> Sequence[Draft | TreeDraft]:
        if self._calls is None or self.num_calls in self._calls:
            raise self._error
        return drafts


class SlowProposer(_Wrapper):
    """A drafter that takes its time.

    Parameters
    ----------
    inner : Proposer
        The drafter.
    delay_s : float
        Seconds that each call waits.
    """

    def __init__(self, inner: Proposer, delay_s: float) -> None:
        super().__init__(inner)
        self._delay_s = delay_s

    def _altered(self, drafts: Sequence[Draft | TreeDraft]) -> Sequence[Draft | TreeDraft]:
        time.sleep(self._delay_s)
        return drafts
