"""The verdict on state: does anything that was rejected, or skipped, leave a trace.

Three questions. After forced rejections, does the target's cache go on as a fresh prefill
does. After rounds in which it was not asked, does the drafter draft as a fresh one does.
And does acceptance, held against what target and drafter promise at the very places, decay
with the rounds of a request. The first two are comparisons with measured rounding, the
third is a test with a false-alarm rate. What could not be examined, for want of a drafter,
of rounds, or of logits that stand out from rounding, leaves the verdict open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from draftproof.audit.judged import Judged
from draftproof.audit.state_evidence import SCHEMA, DrafterCheck, Rollback, StateEvidence
from draftproof.evidence.trend import DecayTest, LevelTest, decay_test, level_test

__all__ = [
    "SCHEMA",
    "DrafterCheck",
    "Rollback",
    "StateEvidence",
    "StateVerdict",
    "judge_state",
]

#: Tests of acceptance that share the false-alarm rate: decay, too little, too much.
_TESTS = 3


@dataclass(frozen=True, slots=True)
class StateVerdict(Judged):
    """What the audit of state found.

    Parameters
    ----------
    verdict : str
        ``"exact"``: no trace was found. ``"biased"``: the target's cache keeps one, or
        more drafts are kept than the law allows, which changes the text; or the drafter
        keeps one or decays, which costs speed; the findings say which. ``"not enough
        evidence"``: part of it could not be examined; the reason says what was.
    reason : str
        One sentence.
    alpha : float
        False-alarm rate of the tests of acceptance; the other questions are comparisons.
    noise : float
        Largest measured difference of a logit without any rollback.
    tolerance : float
        Largest difference that is taken for rounding.
    spread : float
        Standard deviation of the logits of a row, the median of the passes; NaN where it
        is not known.
    largest_gap : float
        Largest difference after a rollback; infinite where one is no number.
    drafter_distance : float
        Largest distance of a drafter's law after silent rounds.
    decay : DecayTest, optional
        Acceptance over the rounds; None where it was not measured.
    level : LevelTest, optional
        Acceptance over all rounds against its promise; None where it was not measured.
    findings : tuple of str
        In words.
    """

    verdict: str
    reason: str
    alpha: float
    noise: float
    tolerance: float
    spread: float
    largest_gap: float
    drafter_distance: float
    decay: DecayTest | None
    level: LevelTest | None
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
        All three questions. The tests of acceptance share ``alpha`` evenly.
    """
    rollbacks = evidence.rollbacks
    noise = max(each.noise for each in rollbacks)
    tolerance = evidence.margin * noise
    known = [each.spread for each in rollbacks if not math.isnan(each.spread)]
    spread = median(known) if known else math.nan
    decay = level = None
    if any(evidence.rounds):
        rates = {"alpha": evidence.alpha / _TESTS, "power": evidence.power}
        decay = decay_test(evidence.rounds, **rates)
        level = level_test(evidence.rounds, tolerance=evidence.drafter_tolerance, **rates)
    faults = _faults(evidence, tolerance, decay, level)
    largest = max(_number(each.gap) for each in rollbacks)
    taken_back = sum(each.drafts > each.kept for each in rollbacks)
    seen = (
        f"after {taken_back} rollbacks no logit is off by more than {largest:.3g}, rounding "
        f"explains {tolerance:.3g}"
    )
    unseen = _unseen(evidence, tolerance, spread, decay)
    if faults:
        verdict, reason = "biased", faults[0]
    elif unseen:
        verdict, reason = "not enough evidence", f"{'; '.join(unseen)}; what was examined: {seen}"
    else:
        verdict, reason = "exact", seen
    slow = _slow(level, evidence.alpha, verdict)
    if slow and verdict == "exact":
        reason = f"{slow[0]}; {seen}"
    return StateVerdict(
        verdict,
        reason,
        evidence.alpha,
        noise,
        tolerance,
        spread,
        largest,
        max((_number(each.distance) for each in evidence.drafters), default=0.0),
        decay,
        level,
        (*faults, *slow),
    )


def _number(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _faults(
    evidence: StateEvidence, tolerance: float, decay: DecayTest | None, level: LevelTest | None
) -> list[str]:
    """Return what is wrong, in words."""
    found = []
    wrong = [
        each
        for each in evidence.rollbacks
        if not each.gap <= tolerance or each.length != each.expected_length
    ]
    if wrong:
        worst = max(wrong, key=lambda each: _number(each.gap))
        found.append(
            f"the target's cache keeps what was rejected: after {worst.kept} of {worst.drafts} "
            f"drafts were kept, logits at position {worst.position} are off by {worst.gap:.3g}, "
            f"rounding explains {tolerance:.3g}"
        )
    bar = evidence.alpha / _TESTS
    if level is not None and level.p_fast <= bar:
        found.append(
            f"accepts more than the law allows: {level.kept:.3g} first drafts kept per round, "
            f"{level.promised:.3g} promised, p = {level.p_fast:.2g}"
        )
    for check in evidence.drafters:
        if not check.distance <= evidence.drafter_tolerance:
            found.append(
                f"drafter {check.drafter} drafts otherwise after {check.silent} silent rounds: TV "
                f"{check.distance:.3g} from a fresh request"
            )
    # A loss of the same share in every round is no decay: `_slow` tells it.
    is_slow = level is not None and level.p_slow <= bar
    if decay is not None and decay.p_value <= bar and (decay.grows or not is_slow):
        found.append(
            f"acceptance decays over the rounds of a request: p = {decay.p_value:.2g}, "
            f"{decay.late_shortfall:.3g} too few kept per round in the later half"
        )
    return found


def _slow(level: LevelTest | None, alpha: float, verdict: str) -> list[str]:
    if level is None or level.p_slow > alpha / _TESTS:
        return []
    word = "exact but slow" if verdict == "exact" else "slower than the rule"
    return [
        f"{word}: {level.kept:.3g} first drafts kept per round, {level.promised:.3g} promised, "
        f"p = {level.p_slow:.2g}"
    ]


def _unseen(
    evidence: StateEvidence, tolerance: float, spread: float, decay: DecayTest | None
) -> list[str]:
    """Return what the evidence leaves open, in words."""
    found = []
    if not any(each.drafts > each.kept for each in evidence.rollbacks):
        found.append("nothing was taken back in any pass")
    # Without any noise the smallest trace shows, however close the logits stand.
    if tolerance > 0 and not tolerance <= evidence.most_rounding * spread:
        found.append(
            f"rounding explains {tolerance:.3g}, more than {evidence.most_rounding:g} of the "
            f"spread of the logits, {spread:.3g}: a trace could hide in it"
        )
    if not evidence.drafters and not evidence.unasked:
        found.append("no drafter was examined after silent rounds")
    found += [f"drafter {name} had nothing to draft where asked" for name in evidence.unasked]
    if decay is None:
        found.append(
            "acceptance was not examined: no first draft under a rule whose promise is known"
        )
        return found
    silent = [
        repr(name)
        for name, rounds in zip(evidence.names, evidence.rounds, strict=False)
        if not rounds
    ]
    if silent:
        found.append(f"no first draft was seen after {', '.join(silent)}")
    if not decay.smallest_decay <= evidence.decay:
        size = "no loss of kept drafts"
        if math.isfinite(decay.smallest_decay):
            size = f"only a loss of {decay.smallest_decay:.3g} kept drafts per round"
        found.append(
            f"{size} at the end of a request would have been seen in {decay.num_rounds} rounds, "
            f"{evidence.decay:g} was asked for"
        )
    return found
