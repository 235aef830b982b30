"""The test of a fixed number of draws against a known law, and of several together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import chi2

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import Calibrations, discrepancies, mc_interval
from draftproof.evidence.joint_law import Counts, JointLaw

__all__ = [
    "CombinedTest",
    "FixedBudgetTest",
    "check_alpha",
    "combine",
    "empirical_tv",
    "fixed_budget_test",
]

#: The null samples of a second look, as a multiple of what the level asks for.
_FINE = 6


@dataclass(frozen=True, slots=True)
class FixedBudgetTest:
    """How far counts are from a law.

    Parameters
    ----------
    num_draws : int
        Draws in all.
    g : float
        Likelihood ratio of the possible outcomes.
    tv : float
        Total variation distance of the empirical law, impossible outcomes included.
    p_value : float
        Min-p of both, Monte-Carlo calibrated; 0 where an impossible outcome was seen.
    p_interval : tuple of float
        99 % interval of the p-value for the noise of the calibration.
    num_impossible : int
        Draws of outcomes of probability 0.
    """

    num_draws: int
    g: float
    tv: float
    p_value: float
    p_interval: tuple[float, float]
    num_impossible: int

    def rejects(self, alpha: float) -> bool:
        """Return whether the law is refuted at a level."""
        return self.p_value <= alpha


@dataclass(frozen=True, slots=True)
class CombinedTest:
    """Several prompts, tested together.

    Parameters
    ----------
    smallest : float
        Bonferroni: the smallest p-value times the number of prompts; finds one bad
        prompt.
    fisher : float
        Fisher: the p-value of the product; finds a bias that all prompts share.
    p_value : float
        Twice the smaller of both: a level of ``alpha`` spends half on each.
    worst : int
        Index of the prompt of the smallest p-value.
    """

    smallest: float
    fisher: float
    p_value: float
    worst: int

    def rejects(self, alpha: float) -> bool:
        """Return whether the laws are refuted at a level."""
        return self.p_value <= alpha


def check_alpha(alpha: float) -> None:
    """Refuse a level that is none.

    Parameters
    ----------
    alpha : float
        False-alarm rate.

    Raises
    ------
    ConfigError
        If it is not inside (0, 1).
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha {alpha}: expected a false-alarm rate inside (0, 1)")


def fixed_budget_test(
    law: JointLaw,
    counts: Counts,
    calibrations: Calibrations,
    *,
    stream: int = 0,
    refine_below: float = 0.0,
) -> FixedBudgetTest:
    """Test whether draws follow a law.

    Parameters
    ----------
    law : JointLaw
        The law.
    counts : Counts
        Draws by outcome; their number was fixed before they were looked at.
    calibrations : Calibrations
        The calibrations of this run.
    stream : int, default 0
        Index of the prompt, where several p-values will be combined.
    refine_below : float, default 0
        A level that matters. Where the calibration of the run is too coarse to tell
        whether p is below it, p is computed again from a finer, independent one.

    Returns
    -------
    FixedBudgetTest
        The verdict of this law alone.

    Notes
    -----
    The second look keeps the level: it is taken only where the first p-value is small,
    and ``{first <= c and second <= t}`` has at most the probability ``t``.
    """
    tv = empirical_tv(law, counts)
    if counts.num_impossible:
        return FixedBudgetTest(counts.num_draws, np.inf, tv, 0.0, (0.0, 0.0), counts.num_impossible)
    n = counts.num_draws
    g_rows, tv_rows = discrepancies(counts.cells[None, :], law.probs)
    if n == 0 or len(law) == 1:
        return FixedBudgetTest(n, 0.0, tv, 1.0, (1.0, 1.0), 0)
    size = calibrations.num_samples
    p = float(calibrations.of(law.probs, n, stream=stream).p_values(g_rows, tv_rows)[0])
    fine = int(min(4e6, _FINE / refine_below)) if refine_below else 0
    if fine > size and p <= max(_FINE / size, refine_below):
        size = fine
        finer = calibrations.of(law.probs, n, stream=stream, num_samples=size)
        p = float(finer.p_values(g_rows, tv_rows)[0])
    return FixedBudgetTest(n, float(g_rows[0]), tv, p, mc_interval(p, size), 0)


def empirical_tv(law: JointLaw, counts: Counts) -> float:
    """Return the TV of the empirical law from the reference, impossible draws included.

    Parameters
    ----------
    law : JointLaw
        The law.
    counts : Counts
        Draws by outcome.

    Returns
    -------
    float
        In [0, 1]; 0 without draws.
    """
    n = counts.num_draws
    if n == 0:
        return 0.0
    excess = np.maximum(counts.cells / n - law.probs, 0.0).sum()
    return float(excess + counts.num_impossible / n)


def combine(p_values: Sequence[float]) -> CombinedTest:
    """Combine the p-values of independent prompts.

    Parameters
    ----------
    p_values : sequence of float
        One for each prompt, from draws and calibrations that no two prompts share.

    Returns
    -------
    CombinedTest
        Half of the level is spent on Bonferroni, half on Fisher.

    Raises
    ------
    ConfigError
        If there are none, or one lies outside [0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.size == 0 or not ((p >= 0) & (p <= 1)).all():
        raise ConfigError(f"p-values {list(p_values)}: expected at least one, each in [0, 1]")
    worst = int(p.argmin())
    if p.size == 1:
        return CombinedTest(float(p[0]), float(p[0]), float(p[0]), 0)
    smallest = min(1.0, float(p[worst]) * p.size)
    with np.errstate(divide="ignore"):
        fisher = float(chi2.sf(-2 * np.log(p).sum(), 2 * p.size))
    return CombinedTest(smallest, fisher, min(1.0, 2 * min(smallest, fisher)), worst)
