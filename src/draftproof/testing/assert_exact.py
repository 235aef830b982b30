"""One line for a test suite: these draws have this law."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import Calibrations
from draftproof.evidence.estimate import TvEstimate, estimate_tv
from draftproof.evidence.fixed_budget import FixedBudgetTest, fixed_budget_test
from draftproof.evidence.joint_law import JointLaw, count_draws
from draftproof.evidence.localise import localise
from draftproof.evidence.power import draws_needed, smallest_detectable

__all__ = ["ExactnessReport", "assert_exact"]


@dataclass(frozen=True, slots=True)
class ExactnessReport:
    """What `assert_exact` found.

    Parameters
    ----------
    test : FixedBudgetTest
        The test.
    estimate : TvEstimate
        Size of the bias, with its interval.
    false_alarm : float
        Chance that draws of the right law fail.
    smallest_detectable : float
        The smallest bias that fails with the wanted probability.
    """

    test: FixedBudgetTest
    estimate: TvEstimate
    false_alarm: float
    smallest_detectable: float


def assert_exact(
    draws: ArrayLike | Iterable[Sequence[int]],
    law: JointLaw,
    *,
    detects: float,
    false_alarm: float = 1e-4,
    power: float = 0.99,
    seed: int = 0,
) -> ExactnessReport:
    """Fail unless draws of a decoder follow a law.

    Parameters
    ----------
    draws : array_like of int, shape (N, T), or iterable of sequence of int
        Independent continuations of one prompt; their number is fixed beforehand.
    law : JointLaw
        The law, for example from `draftproof.evidence.enumerate_law`.
    detects : float
        The total variation distance that a bias must not hide under. If the draws are
        too few for it, that is an error of the test, not a pass.
    false_alarm : float, default 1e-4
        Chance that draws of the right law fail.
    power : float, default 0.99
        Probability with which a bias of size ``detects`` must fail.
    seed : int, default 0
        Seed of the calibration.

    Returns
    -------
    ExactnessReport
        For messages and records.

    Raises
    ------
    AssertionError
        If the draws refute the law.
    ConfigError
        If a bias of size ``detects`` could hide, or an argument is out of range.
    """
    counts = count_draws(law, draws)
    calibrations = Calibrations(max(10_000, math.ceil(6 / false_alarm)), seed)
    test = fixed_budget_test(law, counts, calibrations)
    estimate = estimate_tv(law, counts, seed=seed)
    if test.rejects(false_alarm):
        where = localise(law, counts, calibrations)[0]
        msg = (
            f"biased: p = {test.p_value:.2g} in {test.num_draws} draws, "
            f"{test.num_impossible} of them impossible, TV in [{estimate.low:.3g}, "
            f"{estimate.high:.3g}]; worst after {where.prefix}: seen {where.observed}, "
            f"expected {where.expected}"
        )
        raise AssertionError(msg)
    smallest = smallest_detectable(
        [law], [counts.num_draws], calibrations, false_alarm, power, directions=4, repeats=400
    )
    if smallest > detects:
        needed = draws_needed(max(2, len(law)), min(detects, 0.5), false_alarm, power)
        msg = (
            f"{counts.num_draws} draws of {len(law)} outcomes show a TV of {smallest:.3g}: "
            f"expected {detects:g}, which takes about {needed} draws"
        )
        raise ConfigError(msg)
    return ExactnessReport(test, estimate, false_alarm, smallest)
