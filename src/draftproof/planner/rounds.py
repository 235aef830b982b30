"""What a round costs: drafting, one pass of the target, and everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError
from draftproof.planner.catalogue import published_costs
from draftproof.planner.cost import AffineCost, Floats, StepCost, step_seconds

__all__ = [
    "AutoregressiveDraft",
    "CopyCost",
    "CopyThenModel",
    "DraftCost",
    "ParallelDraft",
    "RoundCost",
    "TableDraft",
    "published_round_cost",
]


class DraftCost(Protocol):
    """What drafting costs, depth by depth."""

    def depth_seconds(self, depth: int, rows: Floats, context: float) -> Floats:
        """Return the seconds that one depth of drafting adds.

        Parameters
        ----------
        depth : int
            The place in the draft, from 1.
        rows : ndarray of float64, shape (N,)
            How many rows draft that deep.
        context : float
            Cached tokens per row.

        Returns
        -------
        ndarray of float64, shape (N,)
            Seconds; 0 where no row drafts that deep.
        """
        ...


@dataclass(frozen=True, slots=True)
class AutoregressiveDraft:
    """A draft model: one pass of its own per depth.

    Parameters
    ----------
    step : StepCost
        Costs of its passes.
    """

    step: StepCost

    def depth_seconds(self, depth: int, rows: Floats, context: float) -> Floats:  # noqa: ARG002
        """Return the seconds of one pass; see `DraftCost.depth_seconds`."""
        out = np.zeros(len(rows))
        for index, count in enumerate(rows):
            if count > 0:
                out[index] = step_seconds(self.step, count, count, count * context)
        return out


@dataclass(frozen=True, slots=True)
class ParallelDraft:
    """A drafter that makes all its tokens at once: in one pass, or by looking them up.

    Parameters
    ----------
    base_s, per_row_s, per_slot_s : float
        Seconds per round, per drafting row, per drafted token.
    per_kv_token_s : float
        Seconds per cached token of a drafting row, which is read or searched.
    """

    base_s: float = 0.0
    per_row_s: float = 0.0
    per_slot_s: float = 0.0
    per_kv_token_s: float = 0.0

    def depth_seconds(self, depth: int, rows: Floats, context: float) -> Floats:
        """Return the seconds of one depth; see `DraftCost.depth_seconds`."""
        seconds = self.per_slot_s * rows
        if depth == 1:
            per_row = self.per_row_s + self.per_kv_token_s * context
            seconds = seconds + np.where(rows > 0, self.base_s, 0.0) + per_row * rows
        return np.asarray(seconds, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class TableDraft:
    """Measured seconds of whole drafts over (rows, kappa).

    Parameters
    ----------
    batches, kappas : tuple of int
        Rising grid points, from 1.
    seconds : ndarray of float64, shape (batches, kappas)
        Measured seconds.
    """

    batches: tuple[int, ...]
    kappas: tuple[int, ...]
    seconds: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Check the grid."""
        shape = (len(self.batches), len(self.kappas))
        if self.seconds.shape != shape or not (self.seconds >= 0).all():
            raise ConfigError(f"draft table of shape {self.seconds.shape}; expected {shape}, >= 0")

    def depth_seconds(self, depth: int, rows: Floats, context: float) -> Floats:  # noqa: ARG002
        """Return what one more depth adds; see `DraftCost.depth_seconds`."""
        added = self._whole(depth, rows) - (self._whole(depth - 1, rows) if depth > 1 else 0.0)
        seconds: Floats = np.where(rows > 0, np.maximum(added, 0.0), 0.0)
        return seconds

    def _whole(self, kappa: int, rows: Floats) -> Floats:
        """Interpolate; outside the grid go on with the last slope."""
        columns = [_linear(self.batches, column, rows) for column in self.seconds.T]
        stacked = np.stack(columns)
        return np.asarray(
            [_linear(self.kappas, line, np.asarray([float(kappa)]))[0] for line in stacked.T]
        )


def _linear(axis: tuple[int, ...], values: Floats, at: Floats) -> Floats:
    grid = np.asarray(axis, dtype=np.float64)
    found = np.interp(at, grid, values)
    if len(grid) > 1:
        slope = (values[-1] - values[-2]) / (grid[-1] - grid[-2])
        found = found + np.maximum(at - grid[-1], 0.0) * max(slope, 0.0)
    return np.asarray(found, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class CopyThenModel:
    """A copy that a model may go on behind.

    Parameters
    ----------
    copy : DraftCost
        Copying.
    model : DraftCost
        The model.
    depths : int
        Most passes of the model in such a round; all are priced, though behind a long copy
        there are none.
    """

    copy: DraftCost
    model: DraftCost
    depths: int

    def depth_seconds(self, depth: int, rows: Floats, context: float) -> Floats:
        """Return the seconds of one depth; see `DraftCost.depth_seconds`."""
        seconds = self.copy.depth_seconds(depth, rows, context)
        if depth > self.depths:
            return seconds
        return seconds + self.model.depth_seconds(depth, rows, context)


@dataclass(frozen=True, slots=True)
class CopyCost:
    """What is known of a drafter that copies where it can and elsewhere drafts with a model.

    Parameters
    ----------
    cost : DraftCost
        Drafts of which it told beforehand that it would copy.
    model_tokens : int
        Most drafts of a round where it does not copy.
    """

    cost: DraftCost
    model_tokens: int


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of plain steps and of speculative rounds.

    Parameters
    ----------
    target : StepCost
        Passes of the target.
    draft : DraftCost
        Drafting.
    overhead_s : float
        Seconds that every step adds, speculative or not: scheduling, sampling.
    overhead_per_token_s : float
        Seconds per scored token outside the pass: laws and the rule.
    speculative_s : float
        Seconds that only speculative rounds add.
    change_s : float
        Seconds that a pass takes longer which has another shape than the one before. Policies
        count it; the seconds of passes and rounds here are of equal shapes.
    """

    target: StepCost
    draft: DraftCost
    overhead_s: float = 0.0
    overhead_per_token_s: float = 0.0
    speculative_s: float = 0.0
    change_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse negative overheads."""
        for name in ("overhead_s", "overhead_per_token_s", "speculative_s", "change_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 or more")

    def pass_seconds(self, batch: int, tokens: Floats, context: float) -> Floats:
        """Return the seconds of passes with their overhead, drafting left out.

        Parameters
        ----------
        batch : int
            Rows.
        tokens : ndarray of float64, shape (N,)
            Tokens of each pass.
        context : float
            Cached tokens per row.

        Returns
        -------
        ndarray of float64, shape (N,)
            Seconds.
        """
        passes = self.target.many(batch, tokens, batch * context)
        extra = np.where(tokens > batch, self.speculative_s, 0.0)
        seconds: Floats = passes + self.overhead_s + self.overhead_per_token_s * tokens + extra
        return seconds

    def plain_s(self, batch: int, context: float = 0.0) -> float:
        """Return the seconds of a step without drafts.

        Parameters
        ----------
        batch : int
            Rows, at least 1.
        context : float
            Cached tokens per row.

        Returns
        -------
        float
            Seconds.
        """
        return float(self.pass_seconds(batch, np.asarray([float(batch)]), context)[0])

    def round_s(self, batch: int, kappa: int, context: float = 0.0) -> float:
        """Return the seconds of a round in which every row drafts kappa tokens.

        Parameters
        ----------
        batch : int
            Rows, at least 1.
        kappa : int
            Drafts per row; with 0 this is `plain_s`.
        context : float
            Cached tokens per row.

        Returns
        -------
        float
            Seconds.
        """
        tokens = np.asarray([float(batch * (kappa + 1))])
        rows = np.asarray([float(batch)])
        drafting = sum(
            float(self.draft.depth_seconds(depth, rows, context)[0])
            for depth in range(1, kappa + 1)
        )
        return float(self.pass_seconds(batch, tokens, context)[0]) + drafting


def published_round_cost(name: str) -> RoundCost:
    """Return published constants of an engine on a device.

    Parameters
    ----------
    name : str
        A name of the shipped list, for example ``"llama-3.1-8b-h100-eagle"``.

    Returns
    -------
    RoundCost
        The affine law with a parallel drafter.

    Raises
    ------
    ConfigError
        If the name is unknown.
    """
    held = published_costs(name)
    target = AffineCost(held["base_s"], held["per_token_s"], held["per_kv_token_s"])
    draft = ParallelDraft(held["draft_base_s"], per_kv_token_s=held["draft_per_kv_token_s"])
    return RoundCost(target, draft, overhead_s=held["overhead_s"])
