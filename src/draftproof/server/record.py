"""What a completion cost and how it was decoded, in numbers that readers can add up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from draftproof.core.trace import RoundTrace
from draftproof.core.types import StepRecord
from draftproof.engine import GenerateResult, TokenEvent
from draftproof.proposers import prediction_usage
from draftproof.server.spelling import Speller

__all__ = [
    "round_record",
    "spec_decode_metrics",
    "speculation_record",
    "trace_record",
    "usage",
]


def usage(results: Sequence[GenerateResult], n: int) -> dict[str, Any]:
    """Return OpenAI's usage object.

    Parameters
    ----------
    results : sequence of GenerateResult
        All completions, ``n`` for each prompt.
    n : int
        Completions per prompt; each prompt counts once.

    Returns
    -------
    dict
        Completion tokens are committed tokens. Rejected predictions are reported beside
        them and not added.
    """
    prompt = sum(len(result.prompt_ids) for result in results[::n])
    completion = sum(len(result.tokens) for result in results)
    predicted = prediction_usage(record for result in results for record in result.records)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": predicted.accepted_prediction_tokens,
            "rejected_prediction_tokens": predicted.rejected_prediction_tokens,
        },
    }


def spec_decode_metrics(result: GenerateResult, kappa: int) -> dict[str, Any]:
    """Return the acceptance of one completion under the names that load testers read.

    Parameters
    ----------
    result : GenerateResult
        The completion.
    kappa : int
        Most drafts per round it was given.

    Returns
    -------
    dict
        ``acceptance_histogram[j]`` counts the steps that kept exactly ``j`` drafts; its sum
        is ``num_spec_steps``, its first moment ``num_accepted_draft_tokens``. A rate
        without a denominator is None.
    """
    rounds = [record for record in result.records if record.drafted]
    accepted = [record.num_accepted for record in rounds]
    drafted = [len(record.drafted) for record in rounds]
    histogram = [0] * (max([kappa, *accepted]) + 1)
    for count in accepted:
        histogram[count] += 1
    stats = result.stats
    return {
        "mean_acceptance_length": _or_none(stats.mean_acceptance_length),
        "draft_acceptance_rate": _or_none(stats.acceptance_rate),
        "acceptance_histogram": histogram,
        "num_spec_steps": stats.num_drafts,
        "num_accepted_draft_tokens": stats.num_accepted_tokens,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_spec_tokens": kappa,
        "per_step_accepted": accepted,
        "per_step_drafted": drafted,
    }


def speculation_record(result: GenerateResult, kappa: int) -> dict[str, Any]:
    """Return how a completion was decoded.

    Parameters
    ----------
    result : GenerateResult
        The completion.
    kappa : int
        Most drafts per round it was given.

    Returns
    -------
    dict
        In which sense it is exact, its rule and seed, notes, rounds of any kind, and the
        numbers of `spec_decode_metrics`.
    """
    stats = result.stats
    return {
        "exactness": result.exactness,
        "rule": result.rule,
        "seed": result.seed,
        "notes": list(result.notes),
        "num_rounds": stats.num_rounds,
        "num_committed_tokens": stats.num_emitted_tokens,
        "committed_per_source": dict(stats.num_emitted_per_source),
        "drafted_per_drafter": dict(stats.num_draft_tokens_per_drafter),
        "accepted_per_drafter": dict(stats.num_accepted_tokens_per_drafter),
        **spec_decode_metrics(result, kappa),
    }


def round_record(record: StepRecord, speller: Speller) -> dict[str, Any]:
    """Return one round, with tokens spelled.

    Parameters
    ----------
    record : StepRecord
        The round.
    speller : Speller
        That of the completion.

    Returns
    -------
    dict
        What was drafted and by whom, how much was kept, what was emitted and where each
        token came from.
    """
    return {
        "position": record.position,
        "drafter": record.proposer,
        "drafted": [{"id": token, "text": speller.text(token)} for token in record.drafted],
        "parents": None if record.parents is None else list(record.parents),
        "num_accepted": record.num_accepted,
        "emitted": [
            {"id": token, "text": speller.text(token), "source": source}
            for token, source in zip(record.emitted, record.sources, strict=True)
        ],
    }


def trace_record(
    trace: RoundTrace, tokens: Sequence[TokenEvent], speller: Speller
) -> dict[str, Any]:
    """Return how one round was decided, with tokens spelled.

    Parameters
    ----------
    trace : RoundTrace
        The round.
    tokens : sequence of TokenEvent
        What it committed.
    speller : Speller
        That of the completion.

    Returns
    -------
    dict
        Every draft with its verdict (``"accepted"``, ``"rejected"`` or ``"unjudged"``: the
        rule stopped before it), its probability under the target's law and under the
        drafter's (null: it did not draw), and the coin where the rule used one. Every
        committed token with the text that became printable with it, and the draft it was.
        Seconds are those of the whole pass, which ``batch`` requests shared.
    """
    kept = _kept(trace)
    nodes = zip(trace.draft_ids, trace.p, trace.q, trace.coins, strict=True)
    drafts = [
        {
            "id": token,
            "text": speller.text(token),
            "source": trace.sources[node],
            "parent": node - 1 if trace.parents is None else trace.parents[node],
            "verdict": "accepted" if node in kept else "unjudged" if p is None else "rejected",
            "p": p,
            "q": q,
            "coin": coin,
        }
        for node, (token, p, q, coin) in enumerate(nodes)
    ]
    committed = [
        {
            "id": token.token_id,
            "text": speller.text(token.token_id),
            "shown": token.text,
            "source": token.source,
            "draft": kept[place] if place < len(kept) else None,
        }
        for place, token in enumerate(tokens)
    ]
    return {
        "step": trace.step,
        "round": trace.round,
        "start": trace.start,
        "kappa": trace.kappa,
        "rule": trace.rule,
        "drafter": trace.drafter,
        "drafts": drafts,
        "committed": committed,
        "next": {
            "id": trace.token_id,
            "text": speller.text(trace.token_id),
            "source": trace.token_source,
            "p": _or_none(trace.token_p),
        },
        "batch": trace.batch,
        "pass_tokens": trace.pass_tokens,
        "seconds": {
            "draft": trace.draft_s,
            "target": trace.target_s,
            "verify": trace.verify_s,
            "other": trace.other_s,
        },
    }


def _kept(trace: RoundTrace) -> list[int]:
    """Return the numbers of the drafts that stayed, the last one included where it ended all."""
    if trace.token_source != "accepted":
        return [*trace.path]
    last = trace.path[-1] if trace.path else -1
    parents = range(-1, len(trace.draft_ids) - 1) if trace.parents is None else trace.parents
    children = [
        node
        for node, parent in enumerate(parents)
        if parent == last and trace.draft_ids[node] == trace.token_id
    ]
    return [*trace.path, *children[:1]]


def _or_none(rate: float) -> float | None:
    return None if math.isnan(rate) else rate
