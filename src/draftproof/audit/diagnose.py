"""Which known fault explains the counts best, and whether any does.

Maximum likelihood over the law of exact decoding and those of the catalogue, with a
parameter fitted where a fault has one. The winner is then tested as if it were the
truth: if the counts refute it too, the fault is not in the catalogue, and no name is
given.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import xlogy

from draftproof.audit.fault import Fault
from draftproof.audit.faults import EXACT, FAULTS
from draftproof.audit.rounds import Prefix, Tables
from draftproof.errors import InvariantError
from draftproof.evidence.calibration import Calibrations, discrepancies
from draftproof.evidence.joint_law import Counts, JointLaw

__all__ = ["Candidate", "Diagnosis", "candidates_of", "diagnose"]

#: Laws closer than this in total variation are one law for any number of draws.
_SAME = 1e-6
#: Steps of the fit of a parameter between two values of its grid.
_FIT_STEPS = 12
#: Explanations this close to the best, in log-likelihood, are fitted by enumeration;
#: the others keep the interpolated fit.
_CLOSE = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One explanation and its laws over the outcomes of the reference.

    Parameters
    ----------
    name : str
        Name of the fault, or ``"exact"``.
    parameter : str
        Name of its parameter, empty for none.
    values : tuple of float
        Values of the parameter, rising; one 0 where there is none.
    laws : ndarray of float64, shape (len(values), K + 1)
        Probability of each possible outcome, and of all impossible ones together.
    between : callable of float, optional
        The law at a value between those; None where the parameter does not vary.
    """

    name: str
    parameter: str
    values: tuple[float, ...]
    laws: NDArray[np.float64]
    between: Callable[[float], NDArray[np.float64]] | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What explains the counts.

    Parameters
    ----------
    name : str
        The fault; ``"exact"``; or ``"unlisted"`` where the counts refute the winner.
    best : str
        The winner of the likelihood, refuted or not.
    parameter : str
        Name of its parameter, empty for none.
    value : float
        Its fitted value; NaN for none.
    fit_p_value : float
        How well the winner fits, Monte-Carlo calibrated.
    runner_up : str
        The next explanation with another law; empty where there is none.
    log_ratio : float
        Logarithm of the likelihood ratio to it.
    same_law : tuple of str
        Other explanations whose law on this fixture is the winner's.
    ranking : tuple of (str, float)
        All explanations and their log-likelihoods relative to the winner's.
    """

    name: str
    best: str
    parameter: str
    value: float
    fit_p_value: float
    runner_up: str
    log_ratio: float
    same_law: tuple[str, ...] = ()
    ranking: tuple[tuple[str, float], ...] = field(default=(), repr=False)


def candidates_of(
    tables: Tables,
    law: JointLaw,
    kappa: int,
    *,
    faults: Iterable[Fault] = FAULTS,
    max_speculative_rounds: int | None = None,
) -> list[Candidate]:
    """Enumerate the laws of all explanations on one fixture.

    Parameters
    ----------
    tables : Tables
        Target and drafter; the target's joint law is ``law``.
    law : JointLaw
        The reference.
    kappa : int
        Most drafts of a round.
    faults : iterable of Fault
        The catalogue. Those that need longer drafts, or show in the length alone, are
        left out.
    max_speculative_rounds : int, optional
        See `draftproof.audit.rounds.decode_law`.

    Returns
    -------
    list of Candidate
        ``exact`` first.
    """

    def cells(fault: Fault, value: float) -> NDArray[np.float64]:
        joint = fault.joint_law(
            tables, kappa, law.horizon, value, max_speculative_rounds=max_speculative_rounds
        )
        return _cells(law, joint)

    found = [Candidate(EXACT.name, "", (0.0,), np.append(law.probs, 0.0)[None, :])]
    for fault in faults:
        if fault.min_kappa > kappa or fault.shows == "length":
            continue
        values = fault.grid or (fault.default,)
        between = None
        if fault.grid and fault.is_continuous:
            between = _between(cells, fault)
        laws = np.array([cells(fault, value) for value in values])
        found.append(Candidate(fault.name, fault.parameter, values, laws, between))
    return found


def _between(
    cells: Callable[[Fault, float], NDArray[np.float64]], fault: Fault
) -> Callable[[float], NDArray[np.float64]]:
    return lambda value: cells(fault, value)


def _cells(law: JointLaw, joint: dict[Prefix, float]) -> NDArray[np.float64]:
    row = np.zeros(len(law) + 1)
    for outcome, prob in joint.items():
        slot = law.slot(outcome)
        row[len(law) if slot is None else slot] += float(prob)
    if not abs(row.sum() - 1) < 1e-9:
        raise InvariantError(f"the law of a fault sums to {row.sum()!r}: expected 1")
    row /= row.sum()  # an outcome that is certain may have summed to a little more
    return row


def diagnose(
    law: JointLaw,
    counts: Counts,
    candidates: Sequence[Candidate],
    calibrations: Calibrations,
    *,
    fit_alpha: float = 1e-3,
) -> Diagnosis:
    """Return the explanation that the counts support best.

    Parameters
    ----------
    law : JointLaw
        The reference, on whose outcomes the candidates stand.
    counts : Counts
        Draws by outcome.
    candidates : sequence of Candidate
        From `candidates_of`, of the same reference.
    calibrations : Calibrations
        The calibrations of the run.
    fit_alpha : float, default 0.001
        Level at which the winner is refuted.

    Returns
    -------
    Diagnosis
        A fitted parameter costs ``log(n) / 2`` in the comparison (Schwarz, 1978), so
        that a lenience close to 1 is not preferred to exactness for its freedom alone.
    """
    cells = np.append(counts.cells, counts.num_impossible)
    if any(candidate.laws.shape[1] != len(law) + 1 for candidate in candidates):
        raise InvariantError(f"candidates of another law than one of {len(law)} outcomes")
    fits = [_fit(candidate, cells, None) for candidate in candidates]
    order = sorted(range(len(fits)), key=lambda i: -fits[i][0])
    bar = fits[order[0]][0] - _CLOSE
    for i in order:
        if candidates[i].between is not None and fits[i][0] >= bar:
            fits[i] = _fit(candidates[i], cells, candidates[i].between)
    order.sort(key=lambda i: -fits[i][0])
    best = order[0]
    top, value, winner = fits[best]
    same: list[int] = []
    others: list[int] = []
    for i in order[1:]:
        twin = float(np.abs(fits[i][2] - winner).sum() / 2) < _SAME
        (same if twin else others).append(i)
    fit_p = _goodness_of_fit(cells, winner, calibrations)
    name = candidates[best].name
    runner_up, ratio = ("", math.inf) if not others else (
        candidates[others[0]].name, top - fits[others[0]][0]
    )  # fmt: skip
    return Diagnosis(
        "unlisted" if fit_p <= fit_alpha else name,
        name,
        candidates[best].parameter,
        value if candidates[best].parameter else math.nan,
        fit_p,
        runner_up,
        ratio,
        tuple(candidates[i].name for i in same),
        tuple((candidates[i].name, fits[i][0] - top) for i in order),
    )


def _log_likelihood(cells: NDArray[np.int64], law: NDArray[np.float64]) -> float:
    with np.errstate(divide="ignore"):
        return float(xlogy(cells, law).sum())


def _fit(
    candidate: Candidate,
    cells: NDArray[np.int64],
    between: Callable[[float], NDArray[np.float64]] | None,
) -> tuple[float, float, NDArray[np.float64]]:
    """Return the penalised log-likelihood, the parameter and the law of a candidate.

    Laws between two values of the grid are enumerated by ``between``, or interpolated
    where it is None: good enough to see which explanations come into question.
    """
    scores = [_log_likelihood(cells, row) for row in candidate.laws]
    at = int(np.argmax(scores))
    best, value, law = scores[at], candidate.values[at], candidate.laws[at]
    penalty = math.log(max(cells.sum(), 1)) / 2 if len(candidate.values) > 1 else 0.0
    if candidate.between is None or not math.isfinite(best):
        return best - penalty, value, law
    law_at = between or partial(_interpolated, candidate)
    low, high = candidate.values[max(at - 1, 0)], candidate.values[min(at + 1, len(scores) - 1)]
    found = minimize_scalar(
        lambda x: -_log_likelihood(cells, law_at(float(x))),
        bounds=(low, high),
        method="bounded",
        options={"maxiter": _FIT_STEPS},
    )
    if -float(found.fun) > best:
        best, value, law = -float(found.fun), float(found.x), law_at(float(found.x))
    return best - penalty, value, law


def _interpolated(candidate: Candidate, value: float) -> NDArray[np.float64]:
    above = min(max(bisect_left(candidate.values, value), 1), len(candidate.values) - 1)
    low, high = candidate.values[above - 1], candidate.values[above]
    share = (value - low) / (high - low)
    mixed: NDArray[np.float64] = (
        np.array([1 - share, share]) @ candidate.laws[above - 1 : above + 1]
    )
    return mixed


def _goodness_of_fit(
    cells: NDArray[np.int64], law: NDArray[np.float64], calibrations: Calibrations
) -> float:
    possible = law > 0
    if cells[~possible].any():
        return 0.0
    if possible.sum() < 2 or not cells.sum():
        return 1.0
    probs = law[possible] / law[possible].sum()
    calibration = calibrations.of(probs, int(cells.sum()))
    return float(calibration.p_values(*discrepancies(cells[None, possible], probs))[0])
