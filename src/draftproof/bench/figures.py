"""Figures of one measurement, and ratios within rounds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from draftproof.bench.measured import Measurement, RequestRecord
from draftproof.bench.run_record import Condition, Settings

__all__ = ["by_round", "decode_sums", "figure", "ratios"]

Figure = Literal["tokens_per_s", "tpot_s", "ttft_s", "latency_s", "latency_per_token_s"]


def decode_sums(measurement: Measurement) -> tuple[float, int]:
    """Return seconds and tokens after the first ones, over the requests that did not fail.

    Tokens that came with the first portion are left out of both, so that it does not
    matter how many tokens a portion holds.

    Parameters
    ----------
    measurement : Measurement
        The measurement.

    Returns
    -------
    seconds : float
        Summed over requests.
    tokens : int
        Likewise.
    """
    seconds, tokens = 0.0, 0
    for request in measurement.requests:
        if request.first_s is None or request.last_s is None or request.error:
            continue
        seconds += request.last_s - request.first_s
        tokens += request.num_tokens - request.num_first_tokens
    return seconds, tokens


def figure(what: Figure, measurement: Measurement, condition: Condition) -> float | None:
    """Return one figure of a measurement.

    Parameters
    ----------
    what : str
        ``tpot_s``: pooled seconds per token after the first ones. ``tokens_per_s``: in
        the closed loop the requests in flight by that, under arrivals all tokens by the
        seconds until the last. ``ttft_s`` and ``latency_s``: medians over requests, from
        the schedule on. ``latency_per_token_s``: pooled seconds from the schedule to the
        last token, by all tokens.
    measurement : Measurement
        The measurement.
    condition : Condition
        Its condition.

    Returns
    -------
    float or None
        None where nothing defines it.
    """
    held = [each for each in measurement.requests if each.last_s is not None and not each.error]
    if not held:
        return None
    if what == "ttft_s":
        return statistics.median((each.first_s or 0.0) - each.scheduled_s for each in held)
    if what == "latency_s":
        return statistics.median(_latency(each) for each in held)
    total = sum(each.num_tokens for each in held)
    if what == "latency_per_token_s":
        return sum(map(_latency, held)) / total if total else None
    if what == "tokens_per_s" and condition.concurrency is None:
        last = max(each.last_s or 0.0 for each in held)
        return total / last if last > 0 else None
    seconds, tokens = decode_sums(measurement)
    if not tokens or seconds <= 0:
        return None
    if what == "tpot_s":
        return seconds / tokens
    return (condition.concurrency or 1) * tokens / seconds


def by_round(
    measurements: Sequence[Measurement], condition: int, arm: str
) -> dict[int, Measurement]:
    """Return an arm's measurements under a condition by their round.

    Parameters
    ----------
    measurements : sequence of Measurement
        All of a run.
    condition : int
        Index of the condition.
    arm : str
        Name of the arm.

    Returns
    -------
    dict of int to Measurement
        In rising order of rounds.
    """
    mine = [each for each in measurements if each.condition == condition and each.arm == arm]
    return {each.round: each for each in sorted(mine, key=lambda each: each.round)}


def ratios(
    settings: Settings,
    measurements: Sequence[Measurement],
    condition: int,
    arm: str,
    what: Figure = "tpot_s",
) -> list[float]:
    """Return plain decoding's figure by an arm's, within each round that has both.

    Parameters
    ----------
    settings : Settings
        Of the run.
    measurements : sequence of Measurement
        All of it.
    condition : int
        Index of the condition.
    arm : str
        Name of the arm.
    what : str
        Seconds of some kind: the ratio is above 1 where the arm is faster.

    Returns
    -------
    list of float
        One per round; empty without a plain arm.
    """
    plain = next((each.name for each in settings.arms if each.is_plain), None)
    if plain is None:
        return []
    asked = settings.conditions[condition]
    base, own = (by_round(measurements, condition, name) for name in (plain, arm))
    found = []
    for number, measurement in own.items():
        if number not in base:
            continue
        above, below = figure(what, base[number], asked), figure(what, measurement, asked)
        if above and below:
            found.append(above / below)
    return found


def _latency(request: RequestRecord) -> float:
    return (request.last_s or 0.0) - request.scheduled_s
