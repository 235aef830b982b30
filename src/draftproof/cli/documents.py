"""Results as JSON documents.

Rates stand beside their numerators and denominators. An undefined one is null.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from draftproof.cli.compare import Agreement, Comparison, Spread
from draftproof.cli.run import Run
from draftproof.core.stats import SpecDecodeStats

if TYPE_CHECKING:
    from draftproof.engine import GenerateResult

__all__ = [
    "comparison_document",
    "result_document",
    "run_document",
    "stats_document",
]


def result_document(result: GenerateResult) -> dict[str, Any]:
    """Describe what was generated.

    Parameters
    ----------
    result : GenerateResult
        A request that did not fail.

    Returns
    -------
    dict
        Text, tokens with their sources, why it ended, seed and label, counters.
    """
    document: dict[str, Any] = {
        "text": result.text,
        "token_ids": result.token_ids,
        "sources": [token.source for token in result.tokens],
        "num_prompt_tokens": len(result.prompt_ids),
        "num_tokens": len(result.tokens),
        "finish_reason": result.finish_reason,
        "stop_reason": result.stop_reason,
        "exactness": result.exactness,
        "rule": result.rule,
        "seed": result.seed,
        "notes": list(result.notes),
        "stats": stats_document(result.stats),
    }
    if any(token.logprob is not None for token in result.tokens):
        document["logprobs"] = [
            {
                "token_id": token.token_id,
                "logprob": _number(token.logprob),
                "top": [[best, _number(value)] for best, value in token.top_logprobs or ()],
            }
            for token in result.tokens
        ]
    return document


def run_document(run: Run) -> dict[str, Any]:
    """Describe a run: its result, its rounds and its times.

    Parameters
    ----------
    run : Run
        The run.

    Returns
    -------
    dict
        As `result_document`, with ``rounds`` and ``times``.
    """
    document = result_document(run.result)
    document["rounds"] = [
        {
            "position": record.position,
            "drafted": list(record.drafted),
            "num_accepted": record.num_accepted,
            "emitted": list(record.emitted),
            "sources": list(record.sources),
            "proposer": record.proposer,
        }
        | ({} if record.parents is None else {"parents": list(record.parents)})
        for record in run.result.records
    ]
    document["times"] = _times_document(run)
    return document


def stats_document(stats: SpecDecodeStats) -> dict[str, Any]:
    """Describe counters and the rates that follow from them.

    Parameters
    ----------
    stats : SpecDecodeStats
        The counters.

    Returns
    -------
    dict
        Counters, and rates beside their numerators and denominators.
    """
    per_position = zip(
        stats.num_accepted_tokens_per_pos,
        stats.num_drafted_per_pos,
        stats.acceptance_rate_per_pos,
        strict=True,
    )
    return {
        "num_rounds": stats.num_rounds,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_emitted_per_source": dict(stats.num_emitted_per_source),
        "num_draft_tokens_per_drafter": dict(stats.num_draft_tokens_per_drafter),
        "num_accepted_tokens_per_drafter": dict(stats.num_accepted_tokens_per_drafter),
        "mean_acceptance_length": _number(stats.mean_acceptance_length),
        "acceptance_rate": _number(stats.acceptance_rate),
        "committed_per_round": _number(stats.committed_per_round),
        "acceptance_per_position": [
            {"accepted": accepted, "drafted": drafted, "rate": _number(rate)}
            for accepted, drafted, rate in per_position
        ],
    }


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Describe a comparison.

    Parameters
    ----------
    comparison : Comparison
        The pairs of runs.

    Returns
    -------
    dict
        Paces, ratio with its range, agreement and the times of every run.
    """
    agreement = comparison.agreement
    return {
        "plain_tokens_per_s": _spread_document(comparison.plain_tokens_per_s),
        "speculative_tokens_per_s": _spread_document(comparison.speculative_tokens_per_s),
        "ratio": _spread_document(comparison.ratio),
        "outputs": None if agreement is None else _agreement_document(agreement),
        "plain": [_times_document(run) for run in comparison.plain],
        "speculative": [_times_document(run) for run in comparison.speculative],
    }


def _spread_document(value: Spread) -> dict[str, float | None]:
    return {name: _number(getattr(value, name)) for name in ("median", "low", "high")}


def _agreement_document(agreement: Agreement) -> dict[str, Any]:
    return {
        "equal": agreement.equal,
        "fork_position": agreement.position,
        "plain_token": agreement.plain_token,
        "speculative_token": agreement.speculative_token,
        "gap_nats": _number(agreement.gap_nats),
    }


def _times_document(run: Run) -> dict[str, float | int | None]:
    times = run.times
    return {
        "total_s": times.total_s,
        "first_token_s": _number(times.first_token_s),
        "tokens_per_s": _number(run.tokens_per_s),
        "draft_s": times.draft_s,
        "target_s": times.target_s,
        "verify_s": times.verify_s,
        "policy_s": times.policy_s,
        "other_s": times.other_s,
        "num_passes": times.num_passes,
        "num_pass_tokens": times.num_pass_tokens,
    }


def _number(value: float | None) -> float | None:
    """Return a number JSON can hold: -inf, inf and NaN become null."""
    return value if value is not None and math.isfinite(value) else None
