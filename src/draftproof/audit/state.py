"""The verdict on state: does anything that was rejected, or skipped, leave a trace.

Three questions. After forced rejections, does the target's cache go on as a fresh prefill
does. After rounds in which it was not asked, does the drafter draft as a fresh one does.
And does acceptance, held against what target and drafter promise at the very places, decay
with the rounds of a request. The first two are comparisons with measured rounding, the
third is a test with a false-alarm rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from draftproof.audit.evidence_file import shown
from draftproof.audit.judged import Judged
from draftproof.errors import ConfigError
from draftproof.evidence.fixed_budget import check_alpha
from draftproof.evidence.trend import DecayTest, decay_test

__all__ = [
    "SCHEMA",
    "DrafterCheck",
    "Rollback",
    "StateEvidence",
    "StateVerdict",
    "judge_state",
]

#: Name and version of the stored form.
SCHEMA = "draftproof-state/1"


@dataclass(frozen=True, slots=True)
class Rollback:
    """One pass after forced rejections.

    Parameters
    ----------
    position : int
        Where the row began.
    drafts : int
        Drafts of the row before.
    kept : int
        Those that were kept; the others were taken back.
    gap : float
        Largest difference of a logit from a fresh prefill of the same text.
    noise : float
        The same for a sequence that was fed in such rows and never rolled back.
    length : int
        Cached tokens after the rollback.
    expected_length : int
        What they should be.
    """

    position: int
    drafts: int
    kept: int
    gap: float
    noise: float
    length: int
    expected_length: int


@dataclass(frozen=True, slots=True)
class DrafterCheck:
    """A drafter after rounds in which it was not asked.

    Parameters
    ----------
    drafter : str
        Its name.
    silent : int
        Rounds without it.
    distance : float
        Total variation of the law of its first draft from that of a fresh request on the
        same text; 1 where only one of the two drafts.
    """

    drafter: str
    silent: int
    distance: float


@dataclass(frozen=True, slots=True)
class StateEvidence:
    """All of one audit.

    Parameters
    ----------
    subject : str
        The engine, with version and command.
    rollbacks : tuple of Rollback
        Passes after forced rejections.
    drafters : tuple of DrafterCheck
        Drafters after kappa-0 periods.
    rounds : tuple of tuple of (float, bool)
        For each request the rounds in order: the probability with which the first draft
        is kept, by a fresh target and a fresh drafter, and whether it was.
    alpha : float
        False-alarm rate of the test of decay.
    power : float
        Probability with which the stated decay would have been seen.
    margin : float
        Multiple of the largest measured noise that is still taken for rounding.
    drafter_tolerance : float
        Largest distance of a drafter's law that is taken for rounding; it costs at most
        as much acceptance, and no exactness.
    notes : mapping of str to str
        Whatever shall travel with the certificate.
    """

    subject: str
    rollbacks: tuple[Rollback, ...]
    drafters: tuple[DrafterCheck, ...] = ()
    rounds: tuple[tuple[tuple[float, bool], ...], ...] = ()
    alpha: float = 1e-3
    power: float = 0.99
    margin: float = 3.0
    drafter_tolerance: float = 0.02
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an audit of nothing, and rates that are none."""
        check_alpha(self.alpha)
        if not self.rollbacks:
            raise ConfigError("no rollback: expected at least one")
        if not self.alpha < self.power < 1 or self.margin < 1:
            raise ConfigError(f"power {self.power}, margin {self.margin}: expected < 1, >= 1")

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        found: dict[str, Any] = shown(asdict(self)) | {"notes": dict(self.notes)}
        return found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StateEvidence:
        """Return the evidence of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        StateEvidence
            Equal content.

        Raises
        ------
        ConfigError
            If an entry is missing or malformed.
        """
        try:
            return cls(
                stored["subject"],
                tuple(
                    Rollback(**r | {"gap": float(r["gap"]), "noise": float(r["noise"])})
                    for r in stored["rollbacks"]
                ),
                tuple(DrafterCheck(**each) for each in stored["drafters"]),
                tuple(tuple((p, kept) for p, kept in rounds) for rounds in stored["rounds"]),
                stored["alpha"],
                stored["power"],
                stored["margin"],
                stored["drafter_tolerance"],
                dict(stored["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error


@dataclass(frozen=True, slots=True)
class StateVerdict(Judged):
    """What the audit of state found.

    Parameters
    ----------
    verdict : str
        ``"exact"``: no trace was found. ``"biased"``: the target's cache keeps one, which
        changes the text, or the drafter does or decays, which costs speed; the findings
        say which. ``"not enough evidence"``: nothing was taken back.
    reason : str
        One sentence.
    alpha : float
        False-alarm rate of the test of decay; the other questions are comparisons.
    noise : float
        Largest measured difference of a logit without any rollback.
    tolerance : float
        Largest difference that is taken for rounding.
    largest_gap : float
        Largest difference after a rollback.
    drafter_distance : float
        Largest distance of a drafter's law after silent rounds.
    decay : DecayTest, optional
        Acceptance over the rounds; None where it was not measured.
    findings : tuple of str
        In words.
    """

    verdict: str
    reason: str
    alpha: float
    noise: float
    tolerance: float
    largest_gap: float
    drafter_distance: float
    decay: DecayTest | None
    findings: tuple[str, ...]


def judge_state(evidence: StateEvidence) -> StateVerdict:
    """Compute a verdict; a pure function of the evidence.

    Parameters
    ----------
    evidence : StateEvidence
        What was compared.

    Returns
    -------
    StateVerdict
        All three questions.
    """
    rollbacks = evidence.rollbacks
    noise = max(each.noise for each in rollbacks)
    tolerance = evidence.margin * noise
    largest = max(each.gap for each in rollbacks)
    distance = max((each.distance for each in evidence.drafters), default=0.0)
    decay = None
    if any(evidence.rounds):
        decay = decay_test(evidence.rounds, power=evidence.power, alpha=evidence.alpha)
    findings = []
    wrong = [r for r in rollbacks if not r.gap <= tolerance or r.length != r.expected_length]
    if wrong:
        worst = max(wrong, key=lambda r: math.inf if math.isnan(r.gap) else r.gap)
        findings.append(
            f"the target's cache keeps what was rejected: after {worst.kept} of {worst.drafts} "
            f"drafts were kept, logits at position {worst.position} are off by {worst.gap:.3g}, "
            f"rounding explains {tolerance:.3g}"
        )
    for each in evidence.drafters:
        if not each.distance <= evidence.drafter_tolerance:
            findings.append(
                f"drafter {each.drafter} drafts otherwise after {each.silent} silent rounds: TV "
                f"{each.distance:.3g} from a fresh request"
            )
    if decay is not None and decay.p_value <= evidence.alpha:
        findings.append(
            f"acceptance decays over the rounds of a request: p = {decay.p_value:.2g}, "
            f"{decay.late_shortfall:.3g} too few kept per round in the later half"
        )
    taken_back = sum(each.drafts > each.kept for each in rollbacks)
    if findings:
        verdict, reason = "biased", findings[0]
    elif not taken_back:
        verdict, reason = "not enough evidence", "nothing was taken back in any pass"
    else:
        verdict = "exact"
        reason = (
            f"after {taken_back} rollbacks no logit is off by more than {largest:.3g}, rounding "
            f"explains {tolerance:.3g}"
        )
    return StateVerdict(
        verdict,
        reason,
        evidence.alpha,
        noise,
        tolerance,
        largest,
        distance,
        decay,
        tuple(findings),
    )
