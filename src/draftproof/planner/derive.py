"""From configuration files and a data sheet to costs: floors, and said to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftproof.errors import ConfigError
from draftproof.planner.architecture import ModelShape
from draftproof.planner.cost import RooflineCost, step_seconds
from draftproof.planner.hardware import Hardware
from draftproof.planner.rounds import AutoregressiveDraft, DraftCost, ParallelDraft, RoundCost

__all__ = ["Derived", "DraftKind", "derive_costs"]

#: How a drafter makes its tokens: one pass each, all in one pass, or without a model.
DraftKind = Literal["autoregressive", "parallel", "none"]


@dataclass(frozen=True, slots=True)
class Derived:
    """Derived costs and the figures behind them.

    Parameters
    ----------
    cost : RoundCost
        Rooflines: no pass can be faster at these rates, most are slower.
    plain_floor_s : float
        A plain step at batch 1 and no context.
    cost_ratio : float
        A pass of the drafter over a pass of the target, both at batch 1.
    ridge_tokens : float
        Tokens per pass at which arithmetic takes as long as streaming.
    """

    cost: RoundCost
    plain_floor_s: float
    cost_ratio: float
    ridge_tokens: float


def derive_costs(
    target: ModelShape,
    hardware: Hardware,
    *,
    draft: ModelShape | None = None,
    draft_kind: DraftKind = "autoregressive",
    tensor_parallel: int = 1,
    context: float = 0.0,
    overhead_s: float = 0.0,
) -> Derived:
    """Derive costs from dimensions and rates.

    Parameters
    ----------
    target : ModelShape
        The target.
    hardware : Hardware
        One device.
    draft : ModelShape, optional
        A draft model; it runs on the same devices.
    draft_kind : {"autoregressive", "parallel", "none"}
        How it drafts. ``"parallel"`` prices one pass of it per round. ``"none"`` is a
        drafter without a model and takes no draft model.
    tensor_parallel : int, default 1
        Devices that share each layer.
    context : float, default 0
        Cached tokens per row.
    overhead_s : float, default 0
        Seconds per step outside the passes.

    Returns
    -------
    Derived
        Costs and figures.

    Raises
    ------
    ConfigError
        If the kind of drafting and the draft model do not fit.
    """
    if (draft is None) != (draft_kind == "none"):
        has = "no draft model" if draft is None else f"draft model {draft.name}"
        raise ConfigError(f"draft kind {draft_kind!r} with {has}; they do not fit")
    verify = RooflineCost.of(target, hardware, tensor_parallel=tensor_parallel, context=context)
    plain = step_seconds(verify, 1, 1)
    drafting: DraftCost = ParallelDraft()
    ratio = 0.0
    if draft is not None:
        step = RooflineCost.of(draft, hardware, tensor_parallel=tensor_parallel, context=context)
        ratio = step_seconds(step, 1, 1) / plain
        drafting = AutoregressiveDraft(step)
        if draft_kind == "parallel":
            drafting = ParallelDraft(
                base_s=step_seconds(step, 1, 1),
                per_kv_token_s=step.kv_bytes_per_token / step.bytes_per_s,
            )
    streamed = target.streamed_bytes() / target.active_params
    return Derived(
        cost=RoundCost(verify, drafting, overhead_s=overhead_s),
        plain_floor_s=plain,
        cost_ratio=ratio,
        ridge_tokens=hardware.ridge_tokens(streamed),
    )
