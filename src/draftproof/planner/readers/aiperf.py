"""Per-request records of aiperf (``profile_export.jsonl``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.errors import ConfigError
from draftproof.planner.counts import AcceptanceCounts, AcceptanceData, PooledRates

__all__ = ["from_aiperf", "is_aiperf"]


def is_aiperf(objects: Sequence[dict[str, Any]]) -> bool:
    """Say whether the objects are records with metrics or acceptance histograms."""
    return any(
        "acceptance_histogram" in each
        or "spec_decode" in each
        or (isinstance(each.get("metrics"), dict) and "metadata" in each)
        for each in objects
    )


def from_aiperf(objects: Sequence[dict[str, Any]], source: str) -> AcceptanceData:
    """Read acceptance from records.

    Parameters
    ----------
    objects : sequence of dict
        One record per request. An ``acceptance_histogram`` (rounds by accepted
        drafts) gives positions; otherwise the metrics ``draft_token_count``,
        ``accepted_draft_token_count`` and ``decode_iteration_count`` give totals.
    source : str
        Name for people.

    Returns
    -------
    AcceptanceData
        Counters by request, or pooled totals: sums over requests, not means of rates.

    Raises
    ------
    ConfigError
        If no record speculated.
    """
    per_request: dict[str, AcceptanceCounts] = {}
    rounds = drafted = accepted = 0
    for place, record in enumerate(objects):
        histogram = _histogram(record)
        if histogram is not None:
            kappa = max(histogram[1], len(histogram[0]) - 1)
            pairs = [(kappa, kept) for kept, n in enumerate(histogram[0]) for _ in range(n)]
            per_request[str(place)] = AcceptanceCounts.from_rounds(pairs)
            continue
        metrics = record.get("metrics", {})
        total = _value(metrics, "draft_token_count")
        if total:
            drafted += total
            accepted += _value(metrics, "accepted_draft_token_count")
            rounds += _value(metrics, "decode_iteration_count")
    if per_request:
        pooled = AcceptanceCounts()
        for counts in per_request.values():
            pooled = pooled.merge(counts)
        return AcceptanceData(f"{source} (records of aiperf)", pooled, None, per_request)
    if not rounds:
        raise ConfigError(f"{source}: records of aiperf without speculative decoding")
    note = "aiperf takes every draft as full; stops that cut a round count as rejections"
    rates = PooledRates(accepted / rounds, max(1, round(drafted / rounds)), rounds)
    return AcceptanceData(f"{source} (records of aiperf)", None, rates, {}, (note,))


def _histogram(record: dict[str, Any]) -> tuple[list[int], int] | None:
    for holder in (record, record.get("spec_decode"), record.get("spec_decode_stats")):
        if isinstance(holder, dict) and isinstance(holder.get("acceptance_histogram"), list):
            return [int(n) for n in holder["acceptance_histogram"]], int(
                holder.get("num_spec_tokens") or 0
            )
    return None


def _value(metrics: dict[str, Any], name: str) -> int:
    held = metrics.get(name)
    value = held.get("value") if isinstance(held, dict) else held
    return int(value) if isinstance(value, int | float) else 0
