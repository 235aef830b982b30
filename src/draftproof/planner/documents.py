"""A plan as JSON's own types."""

from __future__ import annotations

from typing import Any

from draftproof.planner.plan import BatchPlan, Crossing, Plan

__all__ = ["plan_document"]


def plan_document(plan: Plan) -> dict[str, Any]:
    """Describe a plan.

    Parameters
    ----------
    plan : Plan
        The decision.

    Returns
    -------
    dict
        Finite numbers only; what is not known is null.
    """
    survival = plan.survival
    return {
        "speculate": plan.speculate,
        "reason": plan.reason,
        "certain": plan.certain,
        "context": plan.context,
        "acceptance": {
            "survival": list(survival.curve.rates),
            "survival_low": list(survival.low.rates),
            "survival_high": list(survival.high.rates),
            "confidence": survival.confidence or None,
            "num_drafts": survival.num_drafts,
            "effective_drafts": survival.effective_drafts,
            "assumed": survival.assumed or None,
            "warnings": list(survival.warnings),
        },
        "crossing": _crossing(plan.crossing),
        "fixed_crossing": _crossing(plan.fixed_crossing),
        "schedule": [
            {"batch_from": low, "batch_to": high, "kappa": kappa}
            for low, high, kappa in plan.schedule
        ],
        "batches": [_batch(each) for each in plan.batches],
    }


def _crossing(crossing: Crossing) -> dict[str, Any]:
    return {
        "kappa": crossing.kappa,
        "batch": crossing.batch,
        "low": crossing.low,
        "high": crossing.high,
    }


def _batch(plan: BatchPlan) -> dict[str, Any]:
    return {
        "batch": plan.batch,
        "plain_s": plan.plain_s,
        "plain_tokens_per_s": plan.batch / plan.plain_s,
        "best_kappa": plan.best,
        "kappas": [
            {
                "kappa": point.kappa,
                "tokens_per_round": point.tokens,
                "round_s": point.round_s,
                "tokens_per_s": point.tokens_per_s,
                "speedup": point.speedup,
                "speedup_low": point.speedup_low,
                "speedup_high": point.speedup_high,
                "break_even_tokens": point.break_even_tokens,
                "break_even_alpha": point.break_even_alpha,
            }
            for point in plan.points
        ],
    }
