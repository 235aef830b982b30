"""The drafter that never drafts: plain decoding."""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.core.protocols import ProposalRequest
from draftproof.core.types import Draft

__all__ = ["NoProposer"]


class NoProposer:
    """A drafter that leaves every row to plain decoding."""

    @property
    def name(self) -> str:
        """Name used in records and configuration."""
        return "none"

    def propose(self, requests: Sequence[ProposalRequest]) -> list[Draft]:
        """Return one empty draft per row.

        Parameters
        ----------
        requests : sequence of ProposalRequest
            The rows that may draft.

        Returns
        -------
        list of Draft
            As many empty drafts.
        """
        return [Draft() for _ in requests]

    def release(self, request_id: str) -> None:
        """Forget a request; nothing is kept.

        Parameters
        ----------
        request_id : str
            Any name.
        """
