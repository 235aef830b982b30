"""How the rows of a draft model are fed: in pieces, in passes of bounded size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import ProposalRequest
from draftproof.proposers._sequences import DraftSequence

__all__ = ["Feeding", "draft_params", "groups", "is_behind", "piece"]


class Feeding(Protocol):
    """Anything that still has to be read by the drafter's model."""

    @property
    def sequence(self) -> DraftSequence:
        """The sequence that reads."""
        ...

    @property
    def pending(self) -> list[int]:
        """Tokens that it has not read yet."""
        ...


Row = TypeVar("Row", bound=Feeding)


def piece(row: Feeding, size: int) -> list[int]:
    """Return what a row feeds next.

    Long texts are cut at multiples of the pass size, counted from position 0, so that the
    shape of a row's passes does not depend on its neighbours.

    Parameters
    ----------
    row : Feeding
        The row.
    size : int
        Most tokens of a piece.

    Returns
    -------
    list of int
        The first of its pending tokens.
    """
    if len(row.pending) <= size:
        return row.pending[:]
    return row.pending[: size - len(row.sequence.cached) % size]


def is_behind(row: Feeding, size: int) -> bool:
    """Say whether a row needs more than one piece."""
    return len(piece(row, size)) < len(row.pending)


def groups(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Split rows into passes of bounded size, in order.

    Parameters
    ----------
    rows : sequence of Feeding
        The rows.
    size : int
        Most tokens of a pass; a longer piece goes alone.

    Returns
    -------
    list of list of Feeding
        One list per pass.
    """
    passes: list[list[Row]] = []
    room = 0
    for row in rows:
        width = len(piece(row, size))
        if width > room:
            passes.append([])
            room = max(size, width)
        passes[-1].append(row)
        room -= width
    return passes


def draft_params(request: ProposalRequest, temperature: float | None) -> SamplingParams:
    """Return the policy of a request's drafts; greedy requests draft greedily always."""
    if temperature is None or request.params.is_greedy:
        return request.params
    return replace(request.params, temperature=temperature)
