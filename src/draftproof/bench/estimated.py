"""What follows from measurements: estimates, crossings, verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["CellSummary", "CrossingRecord", "Estimate", "Verdict"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over rounds and its order-statistic interval.

    Parameters
    ----------
    value : float or None
        The median; None without a round.
    low, high : float or None
        Ends of the interval; None where rounds are too few for the confidence.
    n : int
        Rounds.
    """

    value: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class CellSummary:
    """One arm under one condition.

    Parameters
    ----------
    condition : int
        Index into ``Settings.conditions``.
    arm : str
        Name of the arm.
    tokens_per_s : Estimate
        Decoded tokens per second of all requests in flight.
    tpot_s : Estimate
        Seconds per token after the first ones, pooled within a round.
    ttft_s : Estimate
        Median over a round's requests of the seconds to the first token.
    latency_s : Estimate
        Median over a round's requests of the seconds to the last token.
    speedup : Estimate
        Plain seconds per token by this arm's, within rounds.
    speedup_pooled : float or None
        The same from the sums over all rounds.
    latency_ratio : Estimate
        Plain seconds per token from the schedule to the last token by this arm's.
    acceptance_rate, mean_acceptance_length : float or None
        Pooled over all rounds; None where nothing was drafted.
    acceptance_rate_per_pos : tuple of (float or None)
        Kept over drafted at each offset, pooled.
    acceptance_rate_per_request : float or None
        Mean over requests that drafted; short ones weigh as much as long ones.
    drafted_per_token : float or None
        Drafted tokens by generated tokens: the volume behind the rate.
    tokens_per_chunk : float or None
        Generated tokens by portions.
    gap_p50_s, gap_p99_s : float or None
        Medians over rounds of the pauses' quantiles.
    num_requests, num_failed : int
        Counted requests, and those of them that failed.
    is_settled : bool
        Whether the interval reached the width that was asked for.
    """

    condition: int
    arm: str
    tokens_per_s: Estimate
    tpot_s: Estimate
    ttft_s: Estimate
    latency_s: Estimate
    speedup: Estimate
    speedup_pooled: float | None
    latency_ratio: Estimate
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    acceptance_rate_per_pos: tuple[float | None, ...]
    acceptance_rate_per_request: float | None
    drafted_per_token: float | None
    tokens_per_chunk: float | None
    gap_p50_s: float | None
    gap_p99_s: float | None
    num_requests: int
    num_failed: int
    is_settled: bool


@dataclass(frozen=True, slots=True)
class CrossingRecord:
    """Where the speedup of an arm crosses 1 as concurrency, or the rate, grows.

    Parameters
    ----------
    workload : str
        Kind of the prompts.
    temperature : float
        Of the condition.
    arm : str or None
        The arm; None for whichever arm is best at each load.
    by : {"concurrency", "rate"}
        What grows.
    pays_up_to : float or None
        Largest load up to which every interval lies above 1.
    loses_from : float or None
        Smallest load from which on every interval lies below 1. The crossing lies
        between the two at the run's confidence, if the speedup falls as the load grows.
    estimate : float or None
        Where the medians cross, interpolated on logarithmic axes; None where they do not.
    says : str
        The same in one sentence.
    """

    workload: str
    temperature: float
    arm: str | None
    by: Literal["concurrency", "rate"]
    pays_up_to: float | None
    loses_from: float | None
    estimate: float | None
    says: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do under one condition.

    Parameters
    ----------
    condition : int
        Index into ``Settings.conditions``.
    decision : {"speculate", "do not speculate", "undecided", "unknown"}
        Unknown where there was no plain arm or too few rounds.
    arm : str or None
        The arm with the best median, where the decision is to speculate.
    says : str
        The reason in one sentence.
    """

    condition: int
    decision: Literal["speculate", "do not speculate", "undecided", "unknown"]
    arm: str | None
    says: str
