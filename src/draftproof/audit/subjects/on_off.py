"""Speculation on against speculation off, where no reference law is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from scipy.stats import beta

from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.draw_order import DrawOrder, dependence_of, reason_of, smallest_repeat
from draftproof.audit.evidence_file import Plan
from draftproof.audit.judged import Judged
from draftproof.audit.shown_drafts import LEAST_SHARE
from draftproof.errors import ConfigError
from draftproof.evidence import TwoSampleTest, two_sample_counts
from draftproof.evidence.calibration import seed_of
from draftproof.evidence.directions import half_mass_shift, has_half_mass, top_shifts
from draftproof.evidence.independence import DependenceTest

__all__ = ["SCHEMA", "OnOffEvidence", "OnOffVerdict", "TextCounts", "judge_on_off"]

#: Name and version of the stored form.
SCHEMA = "draftproof-on-off/1"
_DIRECTIONS, _REPEATS, _HALVINGS = 8, 400, 12
#: Null samples of a bar.
_NULL = 4000


@dataclass(frozen=True, slots=True)
class TextCounts:
    """One prompt.

    Parameters
    ----------
    name : str
        Name shown to people.
    texts : tuple of str
        Texts that were seen.
    on : tuple of int
        How often each, with speculation.
    off : tuple of int
        How often each, without.
    drafts_on, drafts_off : DraftTotals, optional
        What was told of the drafts of each sample.
    order_on, order_off : DrawOrder, optional
        Texts of each sample in order of request, as numbers in ``texts``.
    """

    name: str
    texts: tuple[str, ...]
    on: tuple[int, ...]
    off: tuple[int, ...]
    drafts_on: DraftTotals | None = None
    drafts_off: DraftTotals | None = None
    order_on: DrawOrder | None = None
    order_off: DrawOrder | None = None

    def __post_init__(self) -> None:
        """Refuse orders that are not of the counts."""
        if (self.order_on is None) != (self.order_off is None):
            raise ConfigError("the order of one sample only: expected that of both or none")
        for order, counts in ((self.order_on, self.on), (self.order_off, self.off)):
            if order is not None:
                order.check(counts)

    @classmethod
    def of(
        cls,
        name: str,
        on: Sequence[str],
        off: Sequence[str],
        drafts_on: DraftTotals | None = None,
        drafts_off: DraftTotals | None = None,
    ) -> TextCounts:
        """Count the texts of two samples."""
        texts = tuple(sorted({*on, *off}))
        slots = {text: slot for slot, text in enumerate(texts)}
        rows = np.zeros((2, len(texts)), dtype=np.int64)
        codes = [[slots[text] for text in drawn] for drawn in (on, off)]
        for row, numbers in zip(rows, codes, strict=True):
            np.add.at(row, numbers, 1)
        counts = [tuple(row) for row in rows.tolist()]
        orders = map(DrawOrder.of, codes)
        return cls(name, texts, counts[0], counts[1], drafts_on, drafts_off, *orders)

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        found: dict[str, Any] = {
            "name": self.name,
            "texts": list(self.texts),
            "on": list(self.on),
            "off": list(self.off),
            "drafts_on": None if self.drafts_on is None else asdict(self.drafts_on),
            "drafts_off": None if self.drafts_off is None else asdict(self.drafts_off),
        }
        if self.order_on is not None and self.order_off is not None:
            found["order_on"] = self.order_on.to_json()
            found["order_off"] = self.order_off.to_json()
        return found


@dataclass(frozen=True, slots=True)
class OnOffEvidence:
    """All of one comparison.

    Parameters
    ----------
    subject : str
        The decoder, with version and command.
    plan : Plan
        What was decided beforehand.
    prompts : tuple of TextCounts
        At least one.
    notes : mapping of str to str
        Whatever shall travel with the certificate.
    expects_speculation : bool, default False
        Whether "exact" needs drafts that show with speculation on.
    """

    subject: str
    plan: Plan
    prompts: tuple[TextCounts, ...]
    notes: Mapping[str, str] = field(default_factory=dict)
    expects_speculation: bool = False

    def __post_init__(self) -> None:
        """Refuse a comparison of nothing."""
        if not self.prompts:
            raise ConfigError("no prompt: expected at least one")

    def to_json(self) -> dict[str, Any]:
        """Return plain lists, numbers and strings."""
        return {
            "subject": self.subject,
            "plan": asdict(self.plan),
            "prompts": [prompt.to_json() for prompt in self.prompts],
            "notes": dict(self.notes),
            "expects_speculation": self.expects_speculation,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> OnOffEvidence:
        """Return the evidence of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        OnOffEvidence
            Equal content.

        Raises
        ------
        ConfigError
            If an entry is missing or malformed.
        """
        try:
            prompts = tuple(
                TextCounts(
                    p["name"],
                    tuple(p["texts"]),
                    tuple(p["on"]),
                    tuple(p["off"]),
                    _totals(p.get("drafts_on")),
                    _totals(p.get("drafts_off")),
                    DrawOrder.stored_in(p, "order_on"),
                    DrawOrder.stored_in(p, "order_off"),
                )
                for p in stored["prompts"]
            )
            return cls(
                stored["subject"],
                Plan(**stored["plan"]),
                prompts,
                dict(stored["notes"]),
                stored.get("expects_speculation", False),
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"stored evidence: {error!r}, expected schema {SCHEMA}") from error


def _totals(stored: Mapping[str, Any] | None) -> DraftTotals | None:
    return None if stored is None else DraftTotals(**stored)


@dataclass(frozen=True, slots=True)
class OnOffVerdict(Judged):
    """What a comparison found.

    Parameters
    ----------
    verdict : str
        ``"exact"``: no difference was seen, and one of the planned size would have been.
        ``"biased"``, or ``"not enough evidence"``.
    reason : str
        One sentence.
    alpha : float
        Chance that two equal laws are called different.
    p_value : float
        Bonferroni's over the prompts.
    tests : tuple of TwoSampleTest
        Each prompt alone.
    smallest : float
        The difference that would have been seen on every prompt with the planned power,
        simulated around the pooled law.
    dependence : tuple of DependenceTest, optional
        Whether draws were independent, of each sample and of one of the other, where
        their order is known.
    smallest_repeat : float, optional
        The share of draws that repeat the one some requests before which would have been
        seen with the planned power, under the pooled law.
    """

    verdict: str
    reason: str
    alpha: float
    p_value: float
    tests: tuple[TwoSampleTest, ...]
    smallest: float
    dependence: tuple[DependenceTest, ...] | None = None
    smallest_repeat: float | None = None


def judge_on_off(evidence: OnOffEvidence) -> OnOffVerdict:
    """Compute a verdict; a pure function of the evidence.

    Parameters
    ----------
    evidence : OnOffEvidence
        Counts and plan.

    Returns
    -------
    OnOffVerdict
        It speaks of the two decoders only: a fault that both share does not show.
    """
    plan = evidence.plan
    level = plan.alpha / len(evidence.prompts)
    samples = max(plan.calibration_samples, int(np.ceil(6 / level)))
    rows = [
        (np.array(p.on, dtype=np.int64), np.array(p.off, dtype=np.int64)) for p in evidence.prompts
    ]
    tests = tuple(
        two_sample_counts(on, off, num_samples=samples, seed=plan.seed) for on, off in rows
    )
    p_value = min(1.0, len(tests) * min(test.p_value for test in tests))
    smallest = max(_smallest(on, off, level, plan) for on, off in rows)
    dependence = _dependence(evidence)
    if dependent := reason_of(dependence or (), plan.alpha):
        verdict, reason = "not enough evidence", dependent
    elif p_value <= plan.alpha:
        verdict, reason = (
            "biased",
            (f"on and off differ: p = {p_value:.2g}, at most {plan.alpha:g} was allowed"),
        )
    elif silent := _silent(evidence) or _one_text(evidence):
        verdict, reason = "not enough evidence", silent
    elif smallest > plan.tv:
        verdict, reason = (
            "not enough evidence",
            (
                f"only a difference of TV {smallest:.3g} or more would have been seen, "
                f"{plan.tv:g} was asked for"
            ),
        )
    else:
        verdict, reason = (
            "exact",
            (
                f"p = {p_value:.2g}; a difference of TV {smallest:.3g} would have been seen with "
                f"probability {plan.power:g}"
            ),
        )
    repeat = None
    if dependence is not None:
        laws = [(on + off) / (on + off).sum() for on, off in rows]
        ordered = [
            (law, order)
            for law, p in zip(laws, evidence.prompts, strict=True)
            for order in (p.order_on, p.order_off)
            if order is not None
        ]
        repeat = smallest_repeat(ordered, len(dependence), plan.alpha, plan.power)
    return OnOffVerdict(verdict, reason, plan.alpha, p_value, tests, smallest, dependence, repeat)


def _dependence(evidence: OnOffEvidence) -> tuple[DependenceTest, ...] | None:
    """Test both samples of each prompt, and one against the other; None without an order."""
    samples, pairs = [], []
    for p in evidence.prompts:
        if p.order_on is not None and p.order_off is not None:
            samples.append((f"draws with speculation on after {p.name!r}", p.order_on))
            samples.append((f"draws with speculation off after {p.name!r}", p.order_off))
            # A server that starts from the same state gives the same texts: no difference shows.
            named = f"draws with speculation off after {p.name!r}"
            pairs.append((named, p.order_on, p.order_off))
    return dependence_of(samples, pairs) if samples else None


def _silent(evidence: OnOffEvidence) -> str:
    """Say where on was not speculation, or off was; empty where neither is known."""
    for p in evidence.prompts:
        if p.drafts_off and _share(p.drafts_off, p.off) >= LEAST_SHARE:
            return f"drafts were made after {p.name!r} with speculation off as well"
    if not evidence.expects_speculation:
        return ""
    for p in evidence.prompts:
        if p.drafts_on is None:
            return (
                f"the server does not tell whether it drafted after {p.name!r}; where that is "
                "known, --drafts assumed says it"
            )
        if (share := _share(p.drafts_on, p.on)) < LEAST_SHARE:
            return (
                f"drafts are certain in {share:.3g} of the draws after {p.name!r}, "
                f"{LEAST_SHARE:g} is expected: take prompts after which the drafter has more to say"
            )
    return ""


def _one_text(evidence: OnOffEvidence) -> str:
    """Say after which prompt no draw differed from another; empty where there is none."""
    for p in evidence.prompts:
        if len(p.texts) == 1 and p.order_on is not None:
            return (
                f"every draw after {p.name!r} gave one text, on and off: seeds or the policy may "
                "be ignored, which no comparison tells from a certain law; take a prompt that "
                "leaves a choice"
            )
    return ""


def _share(totals: DraftTotals, counts: Sequence[int]) -> float:
    return (totals.draws or 0) / max(1, sum(counts))


def _smallest(on: NDArray[np.int64], off: NDArray[np.int64], level: float, plan: Plan) -> float:
    """Return the smallest shift of the pooled law that the test sees; 1 where it sees none."""
    pooled = (on + off) / (on.sum() + off.sum())
    n, m = int(on.sum()), int(off.sum())
    if np.count_nonzero(pooled) == 1:
        return _smallest_other(n, m, level, plan.power)
    is_peaked = not has_half_mass(pooled)
    rng = seed_of(plan.seed, "on-off", on.tobytes(), off.tobytes())

    def bars_of(law: NDArray[np.float64]) -> list[float]:
        # Half of the level for each statistic: a little less power than the min-p test has.
        null = _tv_and_g(rng.multinomial(n, law, _NULL), rng.multinomial(m, law, _NULL))
        return [_quantile(values, 1 - level / 2) for values in null]

    shared = bars_of(pooled)

    def power(tv: float) -> float:
        hits = []
        shifts = [half_mass_shift(pooled, tv, rng) for _ in range(_DIRECTIONS)]
        for moved in top_shifts(pooled, tv) if is_peaked else shifts:
            if moved is None:
                continue
            # Labels are permuted over both samples, and what is shifted into rare outcomes
            # makes a peaked law less so: its bars rise with the shift.
            mixed = n * moved / moved.sum() + m * pooled
            bars = bars_of(mixed / mixed.sum()) if is_peaked else shared
            found = _tv_and_g(
                rng.multinomial(n, moved / moved.sum(), _REPEATS),
                rng.multinomial(m, pooled, _REPEATS),
            )
            hits.append(float(((found[0] >= bars[0]) | (found[1] >= bars[1])).mean()))
        return min(hits, default=0.0)

    low, high = 0.0, 0.35
    if power(high) < plan.power:
        return 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= plan.power else (middle, high)
    return high


def _smallest_other(n: int, m: int, level: float, power: float) -> float:
    """Return the mass of outcomes unseen in both samples that either of them would have shown."""
    masses = []
    for size in (n, m):
        # A permutation puts k such draws on one side with (share of the side)**k.
        needed = int(np.ceil(np.log(level / 4) / np.log(size / (n + m)))) + 1
        if needed >= size:
            return 1.0
        masses.append(float(beta.ppf(power, needed, size - needed + 1)))
    return max(masses)


def _quantile(values: NDArray[np.float64], share: float) -> float:
    """Return an upper quantile; past the samples it goes on as the last tenth falls off."""
    body = float(np.quantile(values, 0.9))
    tail = float(np.mean(values[values > body]) - body) if (values > body).any() else 0.0
    beyond = body + tail * np.log(0.1 / (1 - share))
    return max(float(np.quantile(values, share)), float(beyond))


def _tv_and_g(
    left: NDArray[np.int64], right: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    n, m = left.sum(axis=1)[:, None], right.sum(axis=1)[:, None]
    both = left + right
    tv = np.abs(left / n - right / m).sum(axis=1) / 2
    g = 2 * (xlogy(left, left) + xlogy(right, right) - xlogy(both, both)).sum(axis=1)
    g += 2 * (xlogy(n + m, n + m) - xlogy(n, n) - xlogy(m, m))[:, 0]
    return tv, g
