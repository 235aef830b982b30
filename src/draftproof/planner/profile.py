"""A calibrated machine and model, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from draftproof.errors import ConfigError
from draftproof.planner.calibrate import MachineRates
from draftproof.planner.calibrate_rounds import Overheads
from draftproof.planner.fit import Cell, FitReport, fit_affine, fit_report, table_of
from draftproof.planner.rounds import DraftCost, ParallelDraft, RoundCost, TableDraft

__all__ = ["FORMAT", "Profile", "read_profile", "write_profile"]

#: Version of the file format.
FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What was measured.

    Parameters
    ----------
    model, runtime, precision : str
        The target and how it ran.
    machine : mapping of str to Any
        Processor, cores, versions.
    cells : tuple of Cell
        Passes of the target.
    drafters : mapping of str to TableDraft
        Drafting, by drafter.
    overheads : Overheads
        What steps add to passes.
    rates : MachineRates
        Bandwidth and arithmetic.
    """

    model: str
    runtime: str
    precision: str
    machine: Mapping[str, Any]
    cells: tuple[Cell, ...]
    drafters: Mapping[str, TableDraft]
    overheads: Overheads
    rates: MachineRates

    def report(self) -> FitReport:
        """Return where the affine law is bad; the table is used all the same."""
        return fit_report(self.cells, fit_affine(self.cells))

    def round_cost(self, drafter: str | None = None) -> RoundCost:
        """Return the cost model with a drafter.

        Parameters
        ----------
        drafter : str, optional
            One of ``drafters``; None takes the only one, or drafts at no cost when
            none was measured.

        Returns
        -------
        RoundCost
            The measured table, the drafter's table and the overheads.

        Raises
        ------
        ConfigError
            If the drafter was not measured, or several were and none is named.
        """
        draft: DraftCost
        if drafter is not None or len(self.drafters) == 1:
            name = drafter or next(iter(self.drafters))
            if name not in self.drafters:
                known = ", ".join(self.drafters) or "none"
                raise ConfigError(f"drafter {name!r} is not in the profile; measured: {known}")
            draft = self.drafters[name]
        elif self.drafters:
            raise ConfigError(f"the profile has drafters {', '.join(self.drafters)}; name one")
        else:
            draft = ParallelDraft()
        return RoundCost(
            table_of(self.cells, fit_affine(self.cells)),
            draft,
            overhead_s=self.overheads.step_s,
            overhead_per_token_s=self.overheads.token_s,
            speculative_s=self.overheads.speculative_s,
            change_s=self.overheads.change_s,
        )

    def document(self) -> dict[str, Any]:
        """Return the profile as JSON's own types."""
        return {
            "format": FORMAT,
            "model": self.model,
            "runtime": self.runtime,
            "precision": self.precision,
            "machine": dict(self.machine),
            "cells": [
                {
                    "batch": cell.batch,
                    "width": cell.width,
                    "context": cell.context,
                    "seconds": [round(value, 7) for value in cell.seconds],
                }
                for cell in self.cells
            ],
            "drafters": {
                name: {
                    "batches": list(table.batches),
                    "kappas": list(table.kappas),
                    "seconds": table.seconds.tolist(),
                }
                for name, table in self.drafters.items()
            },
            "overheads": asdict(self.overheads),
            "rates": asdict(self.rates),
        }


def write_profile(profile: Profile, path: Path) -> None:
    """Write a profile.

    Parameters
    ----------
    profile : Profile
        What was measured.
    path : Path
        The file; its folder is made if needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(profile.document(), indent=1) + "\n", encoding="utf-8")


def read_profile(path: str | Path) -> Profile:
    """Read a profile.

    Parameters
    ----------
    path : str or Path
        A file of ``draftproof calibrate``.

    Returns
    -------
    Profile
        What was measured.

    Raises
    ------
    ConfigError
        If the file is missing, damaged or of another version.
    """
    try:
        held = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a profile: {error}") from error
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        found = held.get("format") if isinstance(held, dict) else type(held).__name__
        raise ConfigError(f"{path}: profile format {found!r}; expected {FORMAT}")
    try:
        return Profile(
            model=held["model"],
            runtime=held["runtime"],
            precision=held["precision"],
            machine=held["machine"],
            cells=tuple(
                Cell(c["batch"], c["width"], c["context"], tuple(c["seconds"]))
                for c in held["cells"]
            ),
            drafters={
                name: TableDraft(
                    tuple(table["batches"]),
                    tuple(table["kappas"]),
                    np.asarray(table["seconds"], dtype=np.float64),
                )
                for name, table in held["drafters"].items()
            },
            overheads=Overheads(**held["overheads"]),
            rates=MachineRates(**held["rates"]),
        )
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{path}: damaged profile: {error!r}") from error
