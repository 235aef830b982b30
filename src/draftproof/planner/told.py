"""What drafters told of rows: who would draft, and as what such a draft is priced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.planner.rounds import CopyCost, DraftCost
from draftproof.planner.slots import Beliefs
from draftproof.planner.tracker import UNTOLD, AcceptanceTracker

__all__ = ["PricedAs", "beliefs_of", "cut", "may_draft", "sign_of"]


def may_draft(row: RowState) -> bool:
    """Whether a row may draft, and some drafter would."""
    if not row.max_kappa or not row.proposers:
        return False
    return not row.signs or any(row.signs)


def sign_of(row: RowState, name: str) -> int:
    """Return the sign that a drafter gave a row; 0 too where it may not draft for it."""
    if name not in row.proposers:
        return 0
    return row.signs[row.proposers.index(name)] if row.signs else UNTOLD


def cut(choice: RowChoice, row: RowState) -> RowChoice:
    """Return a choice within what a row may do now."""
    if choice.kappa <= row.max_kappa and (choice.proposer in row.proposers or not choice.kappa):
        return choice
    if not row.max_kappa or choice.proposer not in row.proposers:
        return RowChoice(0)
    return RowChoice(row.max_kappa, choice.proposer)


def beliefs_of(tracker: AcceptanceTracker, rows: Sequence[RowState], name: str) -> Beliefs:
    """Return what rows may expect of a drafter, each by the sign it was given.

    Parameters
    ----------
    tracker : AcceptanceTracker
        What was learnt.
    rows : sequence of RowState, length B
        The rows.
    name : str
        The drafter.

    Returns
    -------
    Beliefs
        Of all rows; nothing is expected where it told that nothing would come.
    """
    groups: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(sign_of(row, name), []).append(place)
    if len(groups) == 1:
        (sign,) = groups
        return tracker.beliefs([row.request_id for row in rows], name, sign)
    survival = np.zeros((len(rows), tracker.max_kappa))
    given = np.zeros(len(rows))
    for sign, places in groups.items():
        if sign:
            requests = [rows[place].request_id for place in places]
            survival[places], given[places] = tracker.beliefs(requests, name, sign)
    return survival, given


class PricedAs:
    """Names for what drafts cost: a drafter that has two costs has two of them.

    Parameters
    ----------
    copies : mapping of str to CopyCost
        Drafters whose copies cost less than their other drafts.

    Attributes
    ----------
    costs : dict of str to DraftCost
        Costs of the names that are no drafter's own.
    """

    def __init__(self, copies: Mapping[str, CopyCost]) -> None:
        self._copied = {name: f"{name}, copied" for name in copies}
        self._drafter = {key: name for name, key in self._copied.items()}
        self._most = {name: copy.model_tokens for name, copy in copies.items()}
        self.costs: dict[str, DraftCost] = {
            self._copied[name]: copy.cost for name, copy in copies.items()
        }

    def key(self, row: RowState, name: str) -> str:
        """Return as what a drafter's draft for a row is priced; empty where none would come."""
        sign = sign_of(row, name)
        if not sign:
            return ""
        return self._copied.get(name, name) if sign > 0 else name

    def first(self, row: RowState) -> str:
        """Return as what the draft of a row's first drafter that would answer is priced."""
        return next((key for name in row.proposers if (key := self.key(row, name))), "")

    def assignments(self, rows: Sequence[RowState], name: str) -> list[list[str]]:
        """Return the ways to let one drafter draft: for all rows, and for those that it copies.

        A slot of its model may yield more than one deep in a copy and still not pay.
        """
        keys = [self.key(row, name) for row in rows]
        copied = self._copied.get(name)
        if copied is None or copied not in keys or name not in keys:
            return [keys]
        return [keys, [key if key == copied else "" for key in keys]]

    def is_told(self, rows: Sequence[RowState], assignment: Sequence[str]) -> bool:
        """Say whether any row's drafter told beforehand that its draft is backed."""
        return any(
            key and sign_of(row, self.drafter(key)) > 0
            for row, key in zip(rows, assignment, strict=True)
        )

    def keys(self, name: str) -> tuple[str, ...]:
        """Return all names under which drafts of a drafter are priced."""
        return (name, self._copied[name]) if name in self._copied else (name,)

    def drafter(self, key: str) -> str:
        """Return who drafts what is priced under a name."""
        return self._drafter.get(key, key)

    def limits(
        self, rows: Sequence[RowState], assignment: Sequence[str], limits: Sequence[int]
    ) -> list[int]:
        """Return the most drafts of each row: fewer where it was told that none is copied."""
        if not self._most:
            return list(limits)
        return [
            min(limit, self._most.get(key, limit)) if row.signs else limit
            for row, key, limit in zip(rows, assignment, limits, strict=True)
        ]
