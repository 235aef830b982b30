"""Survival curves with intervals from counted rounds, and what they do not show.

Rates are products of conditional rates, each with its own denominator, so that rounds
of different lengths can be pooled. Rounds of one request resemble each other: where
requests are told apart, the interval is widened by what their spread says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import norm

from draftproof.errors import ConfigError
from draftproof.planner.acceptance import (
    SurvivalCurve,
    iid_alpha_for_accepted,
    iid_survival,
    mixture_survival,
)
from draftproof.planner.counts import AcceptanceCounts, AcceptanceData, PooledRates
from draftproof.planner.diagnose import differing_requests, rising_rates

__all__ = [
    "Extrapolation",
    "SurvivalEstimate",
    "assumed_survival",
    "estimate_survival",
    "fit_two_kinds",
    "monotone_rates",
    "survival_of",
]

#: A model that may speak about drafts longer than the logged ones.
Extrapolation = Literal["iid", "mixture"]


@dataclass(frozen=True, slots=True)
class SurvivalEstimate:
    """A survival curve and its interval.

    Parameters
    ----------
    curve, low, high : SurvivalCurve
        Estimate and the ends of a pointwise interval.
    confidence : float
        Of the interval; 0 when it says nothing because nothing was counted.
    num_drafts : int
        Rounds at the first position.
    effective_drafts : float
        Independent rounds they are worth; smaller when rounds of a request agree.
    warnings : tuple of str
        What the figures do not show by themselves.
    assumed : str
        The model that fills in what was not counted; empty when nothing is.
    """

    curve: SurvivalCurve
    low: SurvivalCurve
    high: SurvivalCurve
    confidence: float
    num_drafts: int
    effective_drafts: float
    warnings: tuple[str, ...] = ()
    assumed: str = ""

    def __len__(self) -> int:
        """Return the longest draft the estimate speaks about."""
        return len(self.curve)

    def extended(self, kappa: int, model: Extrapolation | None = None) -> SurvivalEstimate:
        """Return the estimate up to a draft length.

        Parameters
        ----------
        kappa : int
            Drafts. Up to the logged length the answer is counted: shorter drafts see
            the same first positions.
        model : {"iid", "mixture"}, optional
            What to assume beyond it.

        Returns
        -------
        SurvivalEstimate
            Of length ``kappa``.

        Raises
        ------
        ConfigError
            If ``kappa`` is beyond the logged length and no model is named.
        """
        if kappa <= len(self):
            return self
        if model is None:
            raise ConfigError(
                f"kappa {kappa} is beyond the logged {len(self)} drafts; acceptance there is not "
                "known. hint: log longer drafts, or assume a model: 'iid' or 'mixture'"
            )
        curve = _continued(self.curve, kappa, model)
        note = f"positions {len(self) + 1} to {kappa} were not logged; assumed: {model}"
        return SurvivalEstimate(
            curve,
            _scaled_tail(self.low, curve),
            _scaled_tail(self.high, curve),
            self.confidence,
            self.num_drafts,
            self.effective_drafts,
            (*self.warnings, note),
            self.assumed or model,
        )


def _continued(curve: SurvivalCurve, kappa: int, model: Extrapolation) -> SurvivalCurve:
    if model == "mixture":
        kinds = fit_two_kinds(curve.rates)
        if kinds is None:
            raise ConfigError("a mixture needs three logged positions that fit one; expected 'iid'")
        (easy, hard), share = kinds
        tail = mixture_survival((easy, hard), (share, 1 - share), kappa).rates[len(curve) :]
    else:
        # The last conditional rate goes on: too low for a mixture of requests, too high
        # for a drafter that loses its way.
        last, start = curve.conditional()[-1], curve.rates[-1]
        tail = tuple(start * last**i for i in range(1, kappa - len(curve) + 1))
    rates = np.minimum.accumulate(np.asarray([*curve.rates, *tail], dtype=np.float64))
    return SurvivalCurve(tuple(float(rate) for rate in np.clip(rates, 0, 1)), model)


def _scaled_tail(end: SurvivalCurve, curve: SurvivalCurve) -> SurvivalCurve:
    """Continue an end of the interval in proportion to the continued estimate."""
    held = len(end)
    factor = end.rates[-1] / curve.rates[held - 1] if curve.rates[held - 1] > 0 else 0.0
    tail = [min(end.rates[-1], factor * rate) for rate in curve.rates[held:]]
    return SurvivalCurve((*end.rates, *tail), curve.model)


def assumed_survival(alpha: float, kappa: int) -> SurvivalEstimate:
    """Return the curve of an assumed constant rate, without an interval.

    Parameters
    ----------
    alpha : float
        Rate in [0, 1].
    kappa : int
        Longest draft.

    Returns
    -------
    SurvivalEstimate
        With ``assumed`` "iid" and equal ends.
    """
    curve = iid_survival(alpha, kappa)
    note = f"acceptance {alpha} is assumed at every position; measured rates differ by position"
    return SurvivalEstimate(curve, curve, curve, 0.0, 0, 0.0, (note,), "iid")


def estimate_survival(
    counts: AcceptanceCounts,
    per_request: Mapping[str, AcceptanceCounts] | None = None,
    *,
    confidence: float = 0.95,
) -> SurvivalEstimate:
    """Estimate the survival curve from counters.

    Parameters
    ----------
    counts : AcceptanceCounts
        Pooled counters.
    per_request : mapping, optional
        The same by request; widens the interval where requests differ.
    confidence : float, default 0.95
        Of each position's interval.

    Returns
    -------
    SurvivalEstimate
        Estimate, Wilson interval on the number of independent rounds that the
        variance is worth (Greenwood's, or that between requests), warnings. It ends
        before the first position that was drafted but never reached.

    Raises
    ------
    ConfigError
        If nothing was drafted: the rate is then not known, which is not zero.
    """
    if not counts.drafted or not counts.drafted[0]:
        raise ConfigError("no drafts were counted, so acceptance is not known")
    per_request = per_request or {}
    rates, effective = _rates(counts, list(per_request.values()))
    z = float(norm.ppf(0.5 + confidence / 2))
    ends = [_wilson(rate, size, z) for rate, size in zip(rates, effective, strict=True)]
    low = monotone_rates([end[0] for end in ends], effective)
    high = monotone_rates([end[1] for end in ends], effective)
    return SurvivalEstimate(
        SurvivalCurve(tuple(rates)),
        SurvivalCurve(low),
        SurvivalCurve(high),
        confidence,
        counts.drafted[0],
        effective[0],
        (*rising_rates(counts), *differing_requests(list(per_request.values()))),
    )


def _rates(
    counts: AcceptanceCounts, requests: Sequence[AcceptanceCounts]
) -> tuple[list[float], list[float]]:
    """Return the survival rates and how many independent rounds each is worth."""
    rates: list[float] = []
    effective: list[float] = []
    survival, greenwood = 1.0, 0.0
    for place, (drafted, reached, accepted) in enumerate(
        zip(counts.drafted, counts.reached, counts.accepted, strict=True)
    ):
        if not reached and survival > 0:
            break  # longer drafts exist, but none got here: nothing is known from here on
        if not reached:
            rates.append(0.0)
            effective.append(float(drafted))
            continue
        rate = accepted / reached
        survival *= rate
        if 0 < rate < 1:
            greenwood += (1 - rate) / (rate * reached)
        size = float(drafted)
        if 0 < survival < 1 and greenwood > 0:
            size = (1 - survival) / (survival * greenwood)
        size = min(size, _clustered(survival, requests, place) or size)
        rates.append(survival)
        effective.append(max(size, 1.0))
    return rates, effective


def _clustered(rate: float, requests: Sequence[AcceptanceCounts], place: int) -> float | None:
    """Return the independent rounds by the spread between requests; None if unknown."""
    held = [
        (request.drafted[place], request.accepted[place])
        for request in requests
        if len(request) > place and request.drafted[place]
    ]
    if len(held) < 5 or not 0 < rate < 1:
        return None
    total = sum(drafted for drafted, _ in held)
    pooled = sum(accepted for _, accepted in held) / total
    spread = sum((accepted - pooled * drafted) ** 2 for drafted, accepted in held)
    variance = spread * len(held) / (len(held) - 1) / total**2
    return pooled * (1 - pooled) / variance if variance > 0 else None


def _wilson(rate: float, size: float, z: float) -> tuple[float, float]:
    centre = (rate + z * z / (2 * size)) / (1 + z * z / size)
    half = z * math.sqrt(rate * (1 - rate) / size + z * z / (4 * size * size)) / (1 + z * z / size)
    return max(0.0, min(centre - half, rate)), min(1.0, max(centre + half, rate))


def monotone_rates(rates: Sequence[float], weights: Sequence[float]) -> tuple[float, ...]:
    """Return the nearest falling rates (pool adjacent violators).

    Parameters
    ----------
    rates : sequence of float
        Rates that should fall and may not, for example because each position has
        other rounds behind it.
    weights : sequence of float
        Rounds behind each.

    Returns
    -------
    tuple of float
        Weighted least squares under the order, inside [0, 1].
    """
    fitted = isotonic_regression(list(rates), weights=list(weights), increasing=False).x
    return tuple(float(rate) for rate in np.clip(fitted, 0.0, 1.0))


def fit_two_kinds(rates: Sequence[float]) -> tuple[tuple[float, float], float] | None:
    """Fit a mixture of two kinds of requests to the first three survival rates.

    Parameters
    ----------
    rates : sequence of float
        ``S_1, S_2, S_3, ...``.

    Returns
    -------
    (easy, hard), share : tuple of float, float
        The two constant rates and the share of the easy kind; None where the curve
        is no such mixture. Prony's method: ``S_i = w a^i + (1 - w) b^i``.
    """
    if len(rates) < 3:
        return None
    one, two, three = rates[:3]
    spread = two - one * one
    if spread <= 1e-12:
        return None
    total = (three - one * two) / spread
    product = one * total - two
    root = total * total - 4 * product
    if root <= 0:
        return None
    easy, hard = (total + math.sqrt(root)) / 2, (total - math.sqrt(root)) / 2
    if not (0.0 <= hard < easy <= 1.0 + 1e-9):
        return None
    share = (one - hard) / (easy - hard)
    return ((min(easy, 1.0), hard), share) if 0.0 <= share <= 1.0 else None


def survival_of(data: AcceptanceData, *, confidence: float = 0.95) -> SurvivalEstimate:
    """Return the survival estimate of a source, by positions where it has them.

    Parameters
    ----------
    data : AcceptanceData
        What a reader found.
    confidence : float, default 0.95
        Of the interval.

    Returns
    -------
    SurvivalEstimate
        From counters; or, from totals alone, the constant rate that yields the same
        number of accepted drafts, with a warning.

    Raises
    ------
    ConfigError
        If the source holds neither.
    """
    if data.counts is not None:
        found = estimate_survival(data.counts, data.per_request, confidence=confidence)
        return SurvivalEstimate(
            found.curve,
            found.low,
            found.high,
            found.confidence,
            found.num_drafts,
            found.effective_drafts,
            (*data.notes, *found.warnings),
        )
    if data.pooled is None:
        raise ConfigError(f"{data.source} holds no drafts, so acceptance is not known")
    return _from_totals(data.pooled, data.notes, confidence)


def _from_totals(
    pooled: PooledRates, notes: tuple[str, ...], confidence: float
) -> SurvivalEstimate:
    kappa = pooled.kappa
    if kappa < 1:
        raise ConfigError("the source does not say how many drafts a round has")
    alpha = iid_alpha_for_accepted(pooled.accepted_per_draft, kappa)
    curve = iid_survival(alpha, kappa)
    note = "the source has no positions; a constant rate is assumed that accepts as many drafts"
    if not pooled.num_drafts:
        note += ", and no counts, so there is no interval"
        return SurvivalEstimate(curve, curve, curve, 0.0, 0, 0.0, (*notes, note), "iid")
    # The number accepted lies in [0, kappa]; its variance follows from the same curve.
    mean = pooled.accepted_per_draft
    square = sum((2 * i - 1) * rate for i, rate in enumerate(curve.rates, start=1))
    error = math.sqrt(max(square - mean * mean, 0.0) / pooled.num_drafts)
    half = float(norm.ppf(0.5 + confidence / 2)) * error
    ends = [
        iid_survival(iid_alpha_for_accepted(min(max(mean + sign * half, 0.0), kappa), kappa), kappa)
        for sign in (-1, 1)
    ]
    size = float(pooled.num_drafts)
    return SurvivalEstimate(
        curve, ends[0], ends[1], confidence, pooled.num_drafts, size, (*notes, note), "iid"
    )
