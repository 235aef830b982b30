"""The auditor's own score: every known fault through the whole pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.diagnose import Candidate, candidates_of, diagnose
from draftproof.audit.fault import Fault
from draftproof.audit.faults import EXACT, FAULTS
from draftproof.audit.fixtures import FIXTURE_HORIZON, FIXTURE_KAPPA, fixture_tables
from draftproof.audit.rounds import Tables, plain_law, shipped
from draftproof.audit.rounds import round_laws as laws_of_round
from draftproof.errors import ConfigError
from draftproof.evidence.calibration import Calibrations, seed_of
from draftproof.evidence.fixed_budget import fixed_budget_test
from draftproof.evidence.joint_law import Counts, JointLaw
from draftproof.evidence.power import draws_to_detect

__all__ = ["FaultScore", "self_test"]


@dataclass(frozen=True, slots=True)
class FaultScore:
    """How the auditor did on one fault.

    Parameters
    ----------
    name : str
        The fault, or ``"exact"``.
    shows : str
        Where it shows: ``"law"``, ``"texts"`` or ``"length"``.
    tv : float
        How far its law is from the target's.
    draws : int or None
        Draws that raise the alarm with probability 0.99 at a false-alarm rate of
        0.001; None where nothing in the law is wrong.
    alarms : float
        Share of the simulated audits that called it biased.
    diagnosed : float
        Share of the simulated audits that named it.
    tokens_per_pass : float
        Mean tokens of its first round.
    tokens_promised : float
        What the right rule commits there.
    """

    name: str
    shows: str
    tv: float
    draws: int | None
    alarms: float
    diagnosed: float
    tokens_per_pass: float
    tokens_promised: float


def self_test(
    *,
    faults: Iterable[Fault] = FAULTS,
    tables: Tables | None = None,
    num_draws: int = 20_000,
    repeats: int = 20,
    calibration_samples: int = 20_000,
    alpha: float = 1e-3,
    seed: int = 0,
    needs_draws: bool = True,
) -> Iterator[FaultScore]:
    """Audit every fault of the catalogue as a decoder, and the right rule as well.

    Parameters
    ----------
    faults : iterable of Fault
        The catalogue.
    tables : Tables, optional
        The fixture; the shipped one where not given.
    num_draws : int, default 20000
        Draws of one audit.
    repeats : int, default 20
        Audits of each fault.
    calibration_samples : int, default 20000
        Null samples of each calibration.
    alpha : float, default 0.001
        False-alarm rate of an audit.
    seed : int, default 0
        Seed of all draws.
    needs_draws : bool, default True
        Whether to search for the number of draws that each fault needs.

    Yields
    ------
    FaultScore
        The right rule first. Faults of the length alone have ``alarms`` 0: compare
        their tokens per pass.

    Raises
    ------
    ConfigError
        If nothing would be drawn or repeated.
    """
    if num_draws < 1 or repeats < 1:
        raise ConfigError(f"draws {num_draws}, repeats {repeats}: expected 1 or more of each")
    tables = fixture_tables() if tables is None else tables
    kappa, horizon = FIXTURE_KAPPA, FIXTURE_HORIZON
    law = JointLaw.from_mapping(plain_law(tables, horizon), horizon)
    catalogue = tuple(faults)
    candidates = candidates_of(tables, law, kappa, faults=catalogue)
    calibrations = Calibrations(calibration_samples, seed)
    by_name = {candidate.name: candidate for candidate in candidates}
    promised = {
        rule: laws_of_round(tables, shipped(rule), kappa).mean_emitted
        for rule in ("standard", "block")
    }
    for fault in (EXACT, *catalogue):
        row = _row(by_name.get(fault.name), fault, law)
        rng = seed_of(seed, "self-test", fault.name)
        alarms = named = 0
        for _ in range(repeats):
            cells = rng.multinomial(num_draws, row)
            stray = {(-1,) * horizon: int(cells[-1])} if cells[-1] else {}
            counts = Counts(cells[:-1], stray)
            alarms += fixed_budget_test(law, counts, calibrations).rejects(alpha)
            named += diagnose(law, counts, candidates, calibrations).name == fault.name
        tv = float(np.abs(row - np.append(law.probs, 0)).sum() / 2)
        wrong = tv > 1e-9 and needs_draws
        yield FaultScore(
            fault.name,
            fault.shows,
            tv,
            draws_to_detect(law, row, calibrations, alpha, repeats=300) if wrong else None,
            alarms / repeats,
            named / repeats,
            fault.round_laws(tables, kappa).mean_emitted,
            promised.get(fault.rule, promised["standard"]),
        )


def _row(candidate: Candidate | None, fault: Fault, law: JointLaw) -> NDArray[np.float64]:
    """Return the law of a fault at its usual parameter; that of the target for none."""
    if candidate is None:
        return np.append(law.probs, 0.0)
    at = candidate.values.index(fault.default) if fault.grid else 0
    row: NDArray[np.float64] = candidate.laws[at]
    return row
