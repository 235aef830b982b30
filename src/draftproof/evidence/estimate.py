"""How large the bias is: the total variation distance, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from draftproof.evidence.calibration import seed_of
from draftproof.evidence.fixed_budget import empirical_tv
from draftproof.evidence.joint_law import Counts, JointLaw

__all__ = ["TvEstimate", "estimate_tv"]

_RESAMPLES = 200


@dataclass(frozen=True, slots=True)
class TvEstimate:
    """A total variation distance from counts.

    Parameters
    ----------
    value : float
        Bootstrap estimate, corrected for the noise that makes every empirical law look
        biased; inside the interval.
    low : float
        Lower end of the interval.
    high : float
        Upper end.
    confidence : float
        Coverage of the interval, guaranteed at any number of draws.
    """

    value: float
    low: float
    high: float
    confidence: float


def estimate_tv(
    law: JointLaw, counts: Counts, confidence: float = 0.95, seed: int = 0
) -> TvEstimate:
    """Estimate the total variation distance between the law of the draws and a law.

    Parameters
    ----------
    law : JointLaw
        The reference.
    counts : Counts
        Draws by outcome.
    confidence : float, default 0.95
        Coverage of the interval.
    seed : int, default 0
        Seed of the bootstrap.

    Returns
    -------
    TvEstimate
        The whole of [0, 1] without draws.

    Notes
    -----
    One draw moves the empirical distance by at most 1/n, so it is within
    ``sqrt(log(2 / (1 - confidence)) / 2n)`` of its mean (McDiarmid). The mean is at
    least the true distance (Jensen) and exceeds it by at most
    ``sqrt((K - 1) / n) / 2`` (Cauchy and Schwarz), K counting all impossible outcomes
    as one. None of this uses an unknown.
    """
    n = counts.num_draws
    if n == 0:
        return TvEstimate(0.0, 0.0, 1.0, confidence)
    seen = empirical_tv(law, counts)
    slack = math.sqrt(math.log(2 / (1 - confidence)) / (2 * n))
    low = max(0.0, seen - slack - math.sqrt(len(law) / n) / 2)
    high = min(1.0, seen + slack)
    empirical = np.append(counts.cells, counts.num_impossible) / n
    reference = np.append(law.probs, 0.0)
    again = seed_of(seed, "bootstrap", law.digest(), n).multinomial(n, empirical, _RESAMPLES) / n
    bias = float(np.maximum(again - reference, 0.0).sum(axis=1).mean()) - seen
    return TvEstimate(min(max(seen - bias, low), high), low, high, confidence)
