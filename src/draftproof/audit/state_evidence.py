"""What an audit of state keeps: passes after rejections, drafters asked again, rounds.

The verdict is a function of these; see `draftproof.audit.state`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from draftproof.audit.evidence_file import shown
from draftproof.errors import ConfigError
from draftproof.evidence.fixed_budget import check_alpha

__all__ = ["SCHEMA", "DrafterCheck", "Rollback", "StateEvidence"]

#: Name and version of the stored form; the first had no spread of the logits.
SCHEMA = "draftproof-state/2"


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
    spread : float
        Standard deviation of the logits of a row, the mean of the pass; NaN where it is
        not known.

    Raises
    ------
    ConfigError
        If a figure is none. A gap may be infinite or NaN: logits that are no numbers
        after a rollback are a trace of it.
    """

    position: int
    drafts: int
    kept: int
    gap: float
    noise: float
    length: int
    expected_length: int
    spread: float = math.nan

    def __post_init__(self) -> None:
        """Refuse counts that cannot be, and noise that is no number."""
        counts = (self.position, self.drafts, self.kept, self.length, self.expected_length)
        if not all(type(n) is int and n >= 0 for n in counts) or self.kept > self.drafts:
            raise ConfigError(f"rollback {counts}: expected whole numbers, kept drafts at most all")
        if not 0 <= self.noise < math.inf:
            raise ConfigError(f"noise {self.noise} at {self.position}: expected a finite number")
        if self.gap < 0 or self.spread < 0 or math.isinf(self.spread):
            raise ConfigError(
                f"gap {self.gap}, spread {self.spread} at {self.position}: expected 0 or more"
            )


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
        same text; 1 where only one of the two drafts. NaN is none, and a fault.
    """

    drafter: str
    silent: int
    distance: float

    def __post_init__(self) -> None:
        """Refuse distances that cannot be."""
        if self.distance < 0 or self.distance > 1 + 1e-9:
            raise ConfigError(f"distance {self.distance} of {self.drafter}: expected a TV")


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
    names : tuple of str
        The prompts of these requests; empty where nobody says.
    unasked : tuple of str
        Drafters that drafted nothing where they were to be compared.
    alpha : float
        False-alarm rate of the tests of acceptance: decay, too little, too much.
    power : float
        Probability with which the stated decay would have been seen.
    decay : float
        The loss of kept first drafts per round, at the end of a request, that must be
        detectable before "exact" is said.
    most_rounding : float
        Largest share of the logits' spread that may be taken for rounding before "exact"
        is said. On SmolLM2-135M one rejected token that stays in the cache moves a
        logit of the pass by 1.2 times the spread or more, and rounding takes 1e-4 of it.
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
    names: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()
    alpha: float = 1e-3
    power: float = 0.99
    decay: float = 0.5
    most_rounding: float = 0.25
    margin: float = 3.0
    drafter_tolerance: float = 0.02
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an audit of nothing, and rates that are none."""
        check_alpha(self.alpha)
        if not self.rollbacks:
            raise ConfigError("no rollback: expected at least one")
        if not self.alpha < self.power < 1 or not 1 <= self.margin < math.inf:
            raise ConfigError(f"power {self.power}, margin {self.margin}: expected < 1, >= 1")
        shares = (self.decay, self.most_rounding, self.drafter_tolerance)
        if not all(0 <= share < 1 for share in shares):
            raise ConfigError(
                f"decay {self.decay}, most_rounding {self.most_rounding}, drafter_tolerance "
                f"{self.drafter_tolerance}: expected shares in [0, 1)"
            )
        if self.names and len(self.names) != len(self.rounds):
            raise ConfigError(f"{len(self.names)} names for {len(self.rounds)} requests")
        if not all(type(kept) is bool for request in self.rounds for _, kept in request):
            raise ConfigError("rounds: expected pairs of a probability and true or false")

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
                    Rollback(**r | {name: float(r[name]) for name in ("gap", "noise", "spread")})
                    for r in stored["rollbacks"]
                ),
                tuple(
                    DrafterCheck(**each | {"distance": float(each["distance"])})
                    for each in stored["drafters"]
                ),
                tuple(tuple((float(p), kept) for p, kept in each) for each in stored["rounds"]),
                tuple(stored["names"]),
                tuple(stored["unasked"]),
                stored["alpha"],
                stored["power"],
                stored["decay"],
                stored["most_rounding"],
                stored["margin"],
                stored["drafter_tolerance"],
                dict(stored["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error
