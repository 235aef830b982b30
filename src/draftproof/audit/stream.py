"""The verdict on long texts over the full vocabulary; see `draftproof.evidence.stream`.

A certificate keeps the wealth of every bettor after every text, and a sample of what the
bets turn on, from which the sensitivity is simulated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.special import logsumexp

from draftproof.audit.draw_order import reason_of
from draftproof.audit.evidence_file import Plan, shown
from draftproof.audit.judged import Judged
from draftproof.audit.repeated_texts import Beginning, TextMarks, repeated_text
from draftproof.errors import ConfigError
from draftproof.evidence.independence import DependenceTest
from draftproof.evidence.stream import StreamBets
from draftproof.evidence.stream_power import smallest_share

__all__ = [
    "SCHEMA",
    "PromptDrafts",
    "StreamEvidence",
    "StreamLook",
    "StreamVerdict",
    "judge_stream",
]

#: Name and version of the stored form; the first pooled the drafts of all prompts.
SCHEMA = "draftproof-stream/2"


@dataclass(frozen=True, slots=True)
class StreamLook:
    """The bettors after a text.

    Parameters
    ----------
    num_tokens : int
        Tokens so far.
    num_impossible : int
        Those whose reference probability is 0.
    log_wealth : tuple of float
        Logarithm of the wealth of each bettor, in the order of `StreamBets.log_weights`;
        minus infinity for one that lost everything.
    """

    num_tokens: int
    num_impossible: int
    log_wealth: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse counts that are none, and wealth that is no number."""
        counts = (self.num_tokens, self.num_impossible)
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ConfigError(f"{counts} tokens, impossible: expected whole numbers, 0 or more")
        if not all(value < math.inf for value in self.log_wealth):
            raise ConfigError(f"wealth {self.log_wealth}: expected logarithms of finite numbers")


@dataclass(frozen=True, slots=True)
class PromptDrafts:
    """What was drafted in all texts after one prompt.

    Parameters
    ----------
    prompt : str
        Its name.
    drafted : int
        Drafts of the decoder's own rounds.
    accepted : int
        Those it kept.
    """

    prompt: str
    drafted: int
    accepted: int

    def __post_init__(self) -> None:
        """Refuse counts that cannot be."""
        counts = (self.drafted, self.accepted)
        if not all(type(n) is int for n in counts) or not 0 <= self.accepted <= self.drafted:
            raise ConfigError(
                f"{self.accepted!r} of {self.drafted!r} drafts kept after {self.prompt!r}: "
                "expected counts, the first at most the second"
            )


@dataclass(frozen=True, slots=True)
class StreamEvidence:
    """All of one audit.

    Parameters
    ----------
    subject : str
        The decoder, with version and command.
    plan : Plan
        What was decided beforehand; ``tv`` is a bias per token where the drafter speaks.
    bets : StreamBets
        The bets.
    budget : int
        Tokens at which the audit would have stopped without an alarm.
    looks : tuple of StreamLook
        After each text.
    num_with_law : int
        Tokens at whose place the drafter has a law.
    sample_tv : float
        Mean total variation distance of target and drafter at places of the sample.
    gaps : tuple of tuple of tuple of float
        At places of the sample: what the bets turn on for a token of the target, and for
        one of the drafter.
    drafts : tuple of PromptDrafts
        Drafts after every prompt.
    notes : mapping of str to str
        Whatever shall travel with the certificate.
    texts : tuple of TextMarks, optional
        What tells whether a text came before, for each look.
    """

    subject: str
    plan: Plan
    bets: StreamBets
    budget: int
    looks: tuple[StreamLook, ...]
    num_with_law: int
    sample_tv: float
    gaps: tuple[tuple[tuple[float, ...], ...], tuple[tuple[float, ...], ...]]
    drafts: tuple[PromptDrafts, ...]
    notes: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[TextMarks, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse an audit of nothing, and figures that are none."""
        bettors = len(self.bets.log_weights)
        if not self.looks or any(len(look.log_wealth) != bettors for look in self.looks):
            raise ConfigError(f"expected one look or more, with the wealth of {bettors} bettors")
        if not self.drafts:
            raise ConfigError("no prompt: expected at least one")
        if self.texts is not None and len(self.texts) != len(self.looks):
            raise ConfigError(f"{len(self.texts)} texts of {len(self.looks)} looks: expected each")
        most = self.looks[-1].num_tokens
        if type(self.num_with_law) is not int or not 0 <= self.num_with_law <= most:
            raise ConfigError(f"a law at {self.num_with_law} tokens of {most}: expected fewer")
        # Without a sample there is no distance, and no sensitivity either.
        if self.gaps[0] and not 0 <= self.sample_tv <= 1 + 1e-9:
            raise ConfigError(f"distance {self.sample_tv} of target and drafter: expected a TV")
        if not all(math.isfinite(value) for rows in self.gaps for row in rows for value in row):
            raise ConfigError("bets of the sample: expected finite numbers")

    @property
    def drafted(self) -> int:
        """Drafts of the decoder's own rounds, after all prompts."""
        return sum(each.drafted for each in self.drafts)

    @property
    def accepted(self) -> int:
        """Those it kept."""
        return sum(each.accepted for each in self.drafts)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        found: dict[str, Any] = shown(asdict(self)) | {"notes": dict(self.notes)}
        return found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> StreamEvidence:
        """Return the evidence of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        StreamEvidence
            Equal content.

        Raises
        ------
        ConfigError
            If an entry is missing or malformed.
        """
        try:
            held = stored["bets"]
            bets = StreamBets(
                tuple(held["caps"]),
                tuple(held["stakes"]),
                tuple(held["temperatures"]),
                held["ratio_cap"],
                held["tolerance"],
            )
            looks = tuple(
                StreamLook(
                    look["num_tokens"],
                    look["num_impossible"],
                    tuple(map(float, look["log_wealth"])),
                )
                for look in stored["looks"]
            )
            right, wrong = (tuple(map(tuple, rows)) for rows in stored["gaps"])
            return cls(
                stored["subject"],
                Plan(**stored["plan"]),
                bets,
                stored["budget"],
                looks,
                stored["num_with_law"],
                float(stored["sample_tv"]),
                (right, wrong),
                tuple(PromptDrafts(**each) for each in stored["drafts"]),
                dict(stored["notes"]),
                _texts_from_json(stored.get("texts")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error


def _texts_from_json(stored: Any) -> tuple[TextMarks, ...] | None:
    if stored is None:
        return None
    return tuple(
        TextMarks(text["prompt"], tuple(Beginning(**part) for part in text["beginnings"]))
        for text in stored
    )


@dataclass(frozen=True, slots=True)
class StreamVerdict(Judged):
    """What the audit of texts found.

    Parameters
    ----------
    verdict : str
        ``"exact"``, ``"biased"`` or ``"not enough evidence"``.
    reason : str
        One sentence.
    alpha : float
        Chance that an exact decoder is called biased, over the whole run.
    log_peak : float
        Logarithm of the highest evidence at any look.
    alarmed_at : int, optional
        Tokens at the first look with the alarm on.
    num_tokens : int
        Tokens in all.
    smallest_share : float
        The smallest share of tokens, where the drafter has a law, that could be the
        drafter's own without being seen with the planned power; infinite where none is.
    smallest_tv : float
        The same as a bias per such token, in total variation.
    strongest : str
        The bettor that won most, where the alarm is on.
    dependence : tuple of DependenceTest, optional
        Whether a text repeats an earlier one, where that is known.
    """

    verdict: str
    reason: str
    alpha: float
    log_peak: float
    alarmed_at: int | None
    num_tokens: int
    smallest_share: float
    smallest_tv: float
    strongest: str
    dependence: tuple[DependenceTest, ...] | None = None


def judge_stream(evidence: StreamEvidence) -> StreamVerdict:
    """Compute a verdict; a pure function of the evidence.

    Parameters
    ----------
    evidence : StreamEvidence
        Wealth, sample and plan.

    Returns
    -------
    StreamVerdict
        By Ville's inequality the evidence at any look reaches 1/alpha with a probability
        of at most alpha where the decoder is exact up to the stated tolerance.
    """
    plan, bets = evidence.plan, evidence.bets
    weights = bets.log_weights
    bar = -math.log(plan.alpha)
    peak, alarmed_at = 0.0, None
    dependence, dependent, first = None, "", None
    if evidence.texts is not None:
        test, first = repeated_text(evidence.texts, plan.alpha)
        dependence = (test,)
        dependent = reason_of(dependence, plan.alpha)
    for look in evidence.looks[:first]:
        value = float(logsumexp(weights + np.array(look.log_wealth)))
        if look.num_impossible:
            value = math.inf
        peak = max(peak, value)
        if alarmed_at is None and value >= bar:
            alarmed_at = look.num_tokens
    tokens = evidence.looks[-1].num_tokens
    share = math.inf
    if evidence.gaps[0]:
        right, wrong = (np.array(rows, dtype=np.float64) for rows in evidence.gaps)
        share = smallest_share(
            bets,
            (right, wrong),
            evidence.num_with_law,
            tokens - evidence.num_with_law,
            plan.alpha,
            plan.power,
            seed=plan.seed,
        )
    smallest = share * evidence.sample_tv
    verdict, reason = _decide(evidence, peak, alarmed_at, smallest, dependent)
    strongest = ""
    if alarmed_at is not None:
        strongest = _bettors(bets)[int(np.argmax(evidence.looks[-1].log_wealth))]
    return StreamVerdict(
        verdict,
        reason,
        plan.alpha,
        peak,
        alarmed_at,
        tokens,
        share,
        smallest,
        strongest,
        dependence,
    )


def _bettors(bets: StreamBets) -> list[str]:
    """Name the bettors in the order of their wealth."""
    on_q = [
        f"{side} the drafter, ratios up to {cap:g}, stake {stake:g}"
        for cap in bets.caps
        for stake in bets.stakes
        for side in ("towards", "away from")
    ]
    return on_q + [f"the target at {value:g} times its temperature" for value in bets.temperatures]


def _decide(
    evidence: StreamEvidence,
    peak: float,
    alarmed_at: int | None,
    smallest: float,
    dependent: str,
) -> tuple[str, str]:
    plan, last = evidence.plan, evidence.looks[-1]
    if last.num_impossible:
        return "biased", f"{last.num_impossible} tokens that the reference law cannot give"
    if alarmed_at is not None:
        return "biased", (
            f"evidence of {math.exp(min(peak, 700.0)):.3g} to 1 within {alarmed_at} tokens, less "
            f"than {1 / plan.alpha:g} to 1 was allowed at any time"
        )
    if dependent:
        return "not enough evidence", dependent
    if not evidence.drafted:
        return "not enough evidence", "nothing was drafted: plain decoding was audited"
    silent = [repr(each.prompt) for each in evidence.drafts if not each.drafted]
    if silent:
        return "not enough evidence", f"nothing was drafted after {', '.join(silent)}"
    if not smallest <= plan.tv:
        size = "no tilt towards the drafter"
        if math.isfinite(smallest):
            size = f"only a tilt towards the drafter of TV {smallest:.3g} per token or more"
        return "not enough evidence", f"{size} would have been seen, {plan.tv:g} was asked for"
    return "exact", (
        f"no alarm in {last.num_tokens} tokens; a tilt towards the drafter of TV {smallest:.3g} "
        f"per token would have raised it with probability {plan.power:g}"
    )
