"""Who decides how far each row drafts: the contract between the engine and a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from draftproof.core.types import StepRecord
from draftproof.errors import InvariantError

__all__ = ["KappaPolicy", "RowChoice", "RowState"]


@dataclass(frozen=True, slots=True)
class RowState:
    """What a policy is told about a row before anything is drafted.

    Parameters
    ----------
    request_id : str
        The request.
    kv_tokens : int
        Committed tokens that the target has cached.
    max_kappa : int
        Most drafts that limits, budgets and context rooms allow; 0 for a row that may
        not draft now.
    proposers : tuple of str
        Drafters the row may use, the request's own first; empty when it has none.
    signs : tuple of int
        How well the committed tokens back a draft of each of ``proposers``, where a drafter
        tells (`draftproof.core.protocols.Foreteller`): 0 where nothing would be drafted, 1
        to 3 from barely to firmly, -1 where a drafter does not tell. Empty when none does.
    remaining : int, optional
        Tokens that the request may still commit; None where that is not known.
    """

    request_id: str
    kv_tokens: int
    max_kappa: int
    proposers: tuple[str, ...] = ()
    signs: tuple[int, ...] = ()
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class RowChoice:
    """What a policy chose for a row.

    Parameters
    ----------
    kappa : int
        Drafts, 0 to the row's ``max_kappa``.
    proposer : str
        Who makes them; ``"none"`` exactly when ``kappa`` is 0.
    """

    kappa: int
    proposer: str = "none"

    def __post_init__(self) -> None:
        """Refuse drafts by nobody, and a drafter without drafts."""
        if self.kappa < 0 or (self.kappa == 0) != (self.proposer == "none"):
            raise InvariantError(f"a choice of {self.kappa} drafts by {self.proposer!r}")


class KappaPolicy(Protocol):
    """Chooses draft lengths for all rows of a pass.

    Non-anticipation is what keeps the output law: ``choose`` is called before any
    draft of the round is drawn, and may depend on committed tokens and finished
    rounds only. Whatever it then answers, the verification rules stay exact.
    """

    def choose(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Choose for the rows of one pass.

        Parameters
        ----------
        rows : sequence of RowState
            The decoding rows, in the order of the pass.

        Returns
        -------
        list of RowChoice
            One per row.
        """
        ...

    def observe(self, record: StepRecord) -> None:
        """Learn from one finished round of one row.

        Every chosen row that ran must be reported once, also one whose drafter proposed
        nothing, before the next ``choose``. One that found no room in the pass is not.
        """
        ...

    def release(self, request_id: str) -> None:
        """Forget a request; unknown names are ignored."""
        ...

    def reset(self) -> None:
        """Forget everything learnt, as between two calls, which may use the same seeds."""
        ...
