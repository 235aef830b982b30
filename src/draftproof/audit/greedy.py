"""The verdict on greedy texts: rounding, or a defect.

A greedy decoder emits the largest logit at every place. Passes of other shapes round
otherwise, so speculation may part from plain decoding where the two best logits all but
coincide, and nowhere else. Three things are held against each other at every place of a
text: how far the emitted token's logit is below the best in a fresh prefill, how far the
runner-up is, and how much the difference of the two moves with the shape of the pass.

Nothing here is drawn, so there is no false-alarm rate: a right decoder is called wrong only
where rounding moves logits by more than the tolerance, a stated multiple of the largest
movement that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from draftproof.audit.evidence_file import shown
from draftproof.audit.judged import Judged
from draftproof.errors import ConfigError

__all__ = ["SCHEMA", "Fork", "GreedyEvidence", "GreedyText", "GreedyVerdict", "judge_greedy"]

#: Name and version of the stored form.
SCHEMA = "draftproof-greedy/1"
#: Defects that a verdict lists.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class GreedyText:
    """A text with what a fresh prefill says at each of its places.

    Parameters
    ----------
    prompt : str
        Name of the prompt.
    kappa : int
        Most drafts of a round; 0 for plain decoding.
    tokens : tuple of int, length T
        The text.
    gaps : tuple of float, length T
        Best logit less that of the emitted token; 0 where it is the best, infinite where
        the model cannot give it.
    lower : tuple of bool, length T
        Whether the best logit also belongs to a lower id than the emitted one: a tie that
        a right decoder breaks the other way.
    leads : tuple of float, length T
        Best logit less that of the runner-up.
    noise : tuple of float, length T
        Largest change, over the measured pass shapes, of the difference between the best
        logit and the emitted token's, or the runner-up's where the best was emitted;
        finite.
    drafted : int
        Drafts of the rounds that wrote it.

    Raises
    ------
    ConfigError
        If there is no token, a column has another length, or a figure is none: NaN,
        negative, or a noise that is infinite.
    """

    prompt: str
    kappa: int
    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    lower: tuple[bool, ...]
    leads: tuple[float, ...]
    noise: tuple[float, ...]
    drafted: int = 0

    def __post_init__(self) -> None:
        """Refuse columns of other lengths, and figures that are none."""
        columns = (self.gaps, self.lower, self.leads, self.noise)
        if {len(column) for column in columns} != {len(self.tokens)} or not self.tokens:
            raise ConfigError(f"{len(self.tokens)} tokens: expected some, and a figure for each")
        for name in ("gaps", "leads", "noise"):
            for place, value in enumerate(getattr(self, name)):
                # NaN is below nothing and above nothing: it would pass every comparison.
                if not value >= 0 or (name == "noise" and math.isinf(value)):
                    raise ConfigError(
                        f"{name} of token {place} after {self.prompt!r}: {value}, expected 0 or "
                        "more, from logits that are numbers"
                    )
        if not all(type(flag) is bool for flag in self.lower):
            raise ConfigError(f"lower after {self.prompt!r}: expected true or false for each token")
        counts = (self.kappa, self.drafted, *self.tokens)
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ConfigError(
                f"kappa {self.kappa!r}, drafted {self.drafted!r}, or a token after "
                f"{self.prompt!r}: expected whole numbers, 0 or more"
            )


@dataclass(frozen=True, slots=True)
class GreedyEvidence:
    """All of one audit.

    Parameters
    ----------
    subject : str
        The decoder, with version and command.
    texts : tuple of GreedyText
        For each prompt one of plain decoding where there is one, and others.
    margin : float
        Multiple of the largest measured movement of a difference of logits that is still
        taken for rounding.
    most_blind : float
        Largest share of places that may lie within the tolerance before "exact" is said:
        a wrong runner-up would pass there.
    notes : mapping of str to str
        Whatever shall travel with the certificate.
    """

    subject: str
    texts: tuple[GreedyText, ...]
    margin: float = 3.0
    most_blind: float = 0.5
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an audit of nothing."""
        if not self.texts:
            raise ConfigError("no text: expected at least one")
        if not 1 <= self.margin < math.inf or not 0 < self.most_blind < 1:
            raise ConfigError(
                f"margin {self.margin}, most_blind {self.most_blind}: expected 1 or more, and a "
                "share inside (0, 1)"
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        found: dict[str, Any] = shown(asdict(self)) | {"notes": dict(self.notes)}
        return found

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> GreedyEvidence:
        """Return the evidence of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        GreedyEvidence
            Equal content.

        Raises
        ------
        ConfigError
            If an entry is missing or malformed.
        """
        try:
            texts = tuple(
                GreedyText(
                    text["prompt"],
                    text["kappa"],
                    tuple(text["tokens"]),
                    tuple(map(float, text["gaps"])),
                    tuple(text["lower"]),
                    tuple(map(float, text["leads"])),
                    tuple(map(float, text["noise"])),
                    text["drafted"],
                )
                for text in stored["texts"]
            )
            return cls(
                stored["subject"],
                texts,
                stored["margin"],
                stored["most_blind"],
                dict(stored["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error


@dataclass(frozen=True, slots=True)
class Fork:
    """Where a text first parts from plain decoding.

    Parameters
    ----------
    prompt : str
        Name of the prompt.
    kappa : int
        Most drafts of a round.
    place : int
        Place in the output, from 0.
    tokens : tuple of (int, int)
        The plain token and the other.
    gap : float
        How far the worse of the two is below the best logit.
    noise : float
        Movement of that difference with the shape of the pass, there.
    is_near_tie : bool
        Whether rounding explains it.
    """

    prompt: str
    kappa: int
    place: int
    tokens: tuple[int, int]
    gap: float
    noise: float
    is_near_tie: bool


@dataclass(frozen=True, slots=True)
class GreedyVerdict(Judged):
    """What the audit of greedy texts found.

    Parameters
    ----------
    verdict : str
        ``"exact"``: every token is the best one of a fresh prefill, up to the tolerance.
        ``"biased"``: one is not. ``"not enough evidence"``: neither can be said, or
        nothing was drafted after a prompt.
    reason : str
        One sentence.
    tolerance : float
        Largest difference of logits that is taken for rounding.
    noise : float
        Largest movement that was measured.
    blind : float
        Share of places whose runner-up lies within the tolerance.
    num_places : int
        Places that were checked.
    num_near_ties : int
        Places where another token than the best was emitted, within the tolerance.
    forks : tuple of Fork
        First differences from plain decoding, by prompt and kappa.
    defects : tuple of (str, int, int, float)
        Prompt, kappa, place and gap of tokens that rounding does not explain, the first
        ten.
    num_defects : int
        How many there are.
    findings : tuple of str
        In words.
    """

    verdict: str
    reason: str
    tolerance: float
    noise: float
    blind: float
    num_places: int
    num_near_ties: int
    forks: tuple[Fork, ...]
    defects: tuple[tuple[str, int, int, float], ...]
    num_defects: int
    findings: tuple[str, ...]


def judge_greedy(evidence: GreedyEvidence) -> GreedyVerdict:
    """Compute a verdict; a pure function of the evidence.

    Parameters
    ----------
    evidence : GreedyEvidence
        Texts with the figures of a fresh prefill.

    Returns
    -------
    GreedyVerdict
        A token below the best one by more than the tolerance is a defect. So is the higher
        id of a tie that no shape of a pass breaks.
    """
    noise = max(max(text.noise) for text in evidence.texts)
    tolerance = evidence.margin * noise
    defects, near = [], 0
    for text in evidence.texts:
        for place in range(len(text.tokens)):
            if _is_defect(text, place, tolerance):
                defects.append((text.prompt, text.kappa, place, text.gaps[place]))
            elif text.gaps[place] > 0 or text.lower[place]:
                near += 1
    places = sum(len(text.tokens) for text in evidence.texts)
    blind = sum(lead <= tolerance for t in evidence.texts for lead in t.leads) / places
    if tolerance == 0:
        blind = 0.0  # ties are broken by the id, so that every place can show a defect
    forks = _forks(evidence.texts, tolerance)
    verdict, reason = _decide(evidence, defects, near, tolerance, blind, places)
    return GreedyVerdict(
        verdict,
        reason,
        tolerance,
        noise,
        blind,
        places,
        near,
        forks,
        tuple(defects[:_SHOWN]),
        len(defects),
        _findings(evidence, forks),
    )


def _is_defect(text: GreedyText, place: int, tolerance: float) -> bool:
    gap = text.gaps[place]
    if gap > 0:
        return not gap <= tolerance
    return text.lower[place] and text.noise[place] == 0


def _forks(texts: Sequence[GreedyText], tolerance: float) -> tuple[Fork, ...]:
    plain = {text.prompt: text for text in texts if text.kappa == 0}
    found = []
    for text in texts:
        other = plain.get(text.prompt)
        if other is None or text is other:
            continue
        pairs = zip(other.tokens, text.tokens, strict=False)
        places = (place for place, (a, b) in enumerate(pairs) if a != b)
        place = next(places, None)
        if place is None:
            continue
        both = (other, text)
        found.append(
            Fork(
                text.prompt,
                text.kappa,
                place,
                (other.tokens[place], text.tokens[place]),
                max(each.gaps[place] for each in both),
                max(each.noise[place] for each in both),
                not any(_is_defect(each, place, tolerance) for each in both),
            )
        )
    return tuple(found)


def _decide(
    evidence: GreedyEvidence,
    defects: list[tuple[str, int, int, float]],
    near: int,
    tolerance: float,
    blind: float,
    places: int,
) -> tuple[str, str]:
    if defects:
        prompt, kappa, place, gap = defects[0]
        size = f"{gap:.3g} below the best logit" if gap > 0 else "the higher id of an exact tie"
        return "biased", (
            f"{len(defects)} of {places} tokens are defects: token {place} after {prompt!r} with "
            f"{kappa} drafts is {size}, rounding explains {tolerance:.3g}"
        )
    drafted = {text.prompt: 0 for text in evidence.texts}
    for text in evidence.texts:
        if text.kappa:
            drafted[text.prompt] += text.drafted
    if not any(drafted.values()):
        return "not enough evidence", "nothing was drafted: plain decoding was audited"
    silent = [repr(prompt) for prompt, count in drafted.items() if not count]
    if silent:
        return "not enough evidence", f"nothing was drafted after {', '.join(silent)}"
    if blind > evidence.most_blind:
        return "not enough evidence", (
            f"at {blind:.0%} of the places the runner-up is within the rounding, {tolerance:.3g}; "
            "a defect could hide there"
        )
    ties = f"{near} within rounding" if near else "no near-tie among them"
    return "exact", (
        f"all {places} tokens are the best of a fresh prefill, {ties}; a wrong runner-up would "
        f"have shown at {1 - blind:.1%} of the places"
    )


def _findings(evidence: GreedyEvidence, forks: Sequence[Fork]) -> tuple[str, ...]:
    compared = [text for text in evidence.texts if text.kappa]
    has_plain = any(text.kappa == 0 for text in evidence.texts)
    if has_plain and compared and not forks:
        return (f"token-identical to plain greedy decoding in {len(compared)} texts",)
    found = []
    places: dict[str, dict[int, int]] = {}
    for fork in forks:
        places.setdefault(fork.prompt, {})[fork.kappa] = fork.place
    kappas = sorted({text.kappa for text in compared})
    for prompt, by_kappa in places.items():
        shown_places = ", ".join(
            f"kappa {kappa}: {by_kappa.get(kappa, 'none')}" for kappa in kappas
        )
        moves = len({by_kappa.get(kappa) for kappa in kappas}) > 1
        word = "moves with kappa" if moves else "does not move with kappa"
        found.append(f"the first fork after {prompt!r} {word} ({shown_places})")
    return tuple(found)
