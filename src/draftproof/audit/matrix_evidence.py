"""What an audit of parameters keeps: laws, draws in their order, and drafts, cell by cell.

The verdict is a function of these; see `draftproof.audit.matrix`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.draw_order import DrawOrder
from draftproof.audit.evidence_file import Plan
from draftproof.errors import ConfigError
from draftproof.evidence.joint_law import JointLaw, Outcome

__all__ = ["SCHEMA", "Cell", "MatrixEvidence"]

#: Name and version of the stored form.
SCHEMA = "draftproof-matrix/1"


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of parameters.

    Parameters
    ----------
    names : tuple of str
        The parameters that are set.
    asked : str
        Their values, for people.
    law : JointLaw
        The law with all of them.
    without : tuple of JointLaw
        For each of them the law with it at rest.
    draws : tuple of (tuple of int, int)
        Outcomes that were drawn, and how often.
    refusal : str, default ""
        What the decoder said where it refused; nothing was drawn then.
    drafts : DraftTotals, optional
        What was drafted; None where the decoder does not say. Certificates from before
        draws were counted hold the number of drafts alone.
    order : DrawOrder, optional
        The draws in order of request, as numbers in ``draws``.
    """

    names: tuple[str, ...]
    asked: str
    law: JointLaw
    without: tuple[JointLaw, ...]
    draws: tuple[tuple[Outcome, int], ...]
    refusal: str = ""
    drafts: DraftTotals | None = None
    order: DrawOrder | None = None

    def __post_init__(self) -> None:
        """Refuse laws that do not go with the parameters, and counts that are none."""
        if not self.names or len(self.without) != len(self.names):
            raise ConfigError(f"{self.names} with {len(self.without)} laws: expected one each")
        for outcome, times in self.draws:
            if type(times) is not int or times < 1:
                raise ConfigError(f"{outcome} drawn {times!r} times: expected 1 or more")
        if self.drafts is not None and (self.drafts.draws or 0) > self.num_draws:
            raise ConfigError(
                f"drafts in {self.drafts.draws} draws of {self.num_draws}: expected no more"
            )
        if self.order is not None:
            self.order.check([times for _, times in self.draws])

    @property
    def label(self) -> str:
        """Name of the cell."""
        return " + ".join(self.names)

    @property
    def num_draws(self) -> int:
        """Draws of any outcome."""
        return sum(times for _, times in self.draws)


@dataclass(frozen=True, slots=True)
class MatrixEvidence:
    """All of one audit.

    Parameters
    ----------
    subject : str
        The decoder, with version and command.
    plan : Plan
        What was decided beforehand; ``alpha`` holds for the whole matrix.
    cells : tuple of Cell
        At least one.
    expects_speculation : bool, default False
        Whether a cell of which no draft is known is no evidence.
    notes : mapping of str to str
        Whatever shall travel with the certificate.
    """

    subject: str
    plan: Plan
    cells: tuple[Cell, ...]
    expects_speculation: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an audit of nothing."""
        if not self.cells:
            raise ConfigError("no cell: expected at least one")

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        return {
            "subject": self.subject,
            "plan": asdict(self.plan),
            "expects_speculation": self.expects_speculation,
            "notes": dict(self.notes),
            "cells": [
                {
                    "names": list(cell.names),
                    "asked": cell.asked,
                    "law": _law_to_json(cell.law),
                    "without": [_law_to_json(law) for law in cell.without],
                    "draws": [[list(outcome), times] for outcome, times in cell.draws],
                    "refusal": cell.refusal,
                    "drafts": None if cell.drafts is None else asdict(cell.drafts),
                    **({} if cell.order is None else {"order": cell.order.to_json()}),
                }
                for cell in self.cells
            ],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> MatrixEvidence:
        """Return the evidence of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        MatrixEvidence
            Equal content.

        Raises
        ------
        ConfigError
            If an entry is missing or malformed.
        """
        try:
            cells = tuple(
                Cell(
                    tuple(cell["names"]),
                    cell["asked"],
                    _law_from_json(cell["law"]),
                    tuple(_law_from_json(law) for law in cell["without"]),
                    tuple((tuple(outcome), times) for outcome, times in cell["draws"]),
                    cell["refusal"],
                    _drafts_of(cell),
                    DrawOrder.stored_in(cell, "order"),
                )
                for cell in stored["cells"]
            )
            return cls(
                stored["subject"],
                Plan(**stored["plan"]),
                cells,
                stored["expects_speculation"],
                dict(stored["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error


def _drafts_of(stored: Mapping[str, Any]) -> DraftTotals | None:
    if "drafts" not in stored:
        drafted = stored["drafted"]
        return None if drafted is None else DraftTotals(0, drafted)
    return None if stored["drafts"] is None else DraftTotals(**stored["drafts"])


def _law_to_json(law: JointLaw) -> dict[str, Any]:
    return {
        "horizon": law.horizon,
        "eos_token_ids": sorted(law.eos_token_ids),
        "outcomes": [list(outcome) for outcome in law.outcomes],
        "probs": law.probs.tolist(),
    }


def _law_from_json(stored: Mapping[str, Any]) -> JointLaw:
    return JointLaw(
        tuple(tuple(outcome) for outcome in stored["outcomes"]),
        np.array(stored["probs"], dtype=np.float64),
        stored["horizon"],
        frozenset(stored["eos_token_ids"]),
    )
