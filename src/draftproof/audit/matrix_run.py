"""Choose the cells of a policy matrix, and draw them from a decoder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple, Protocol

from draftproof.audit.draft_totals import DraftTotals
from draftproof.audit.draw_order import DrawOrder
from draftproof.audit.evidence_file import Plan
from draftproof.audit.matrix import distance
from draftproof.audit.matrix_evidence import Cell, MatrixEvidence
from draftproof.audit.subjects.draws import Policy
from draftproof.core.params import SamplingParams
from draftproof.errors import ConfigError
from draftproof.evidence.joint_law import JointLaw, Outcome
from draftproof.evidence.power import draws_needed

__all__ = ["PAIRS", "Drawn", "Knob", "MatrixSubject", "RefusedError", "groups_of", "run_matrix"]

#: Pairs that engines have got wrong: filters in another order, penalties behind a
#: temperature, masks behind a filter.
PAIRS: tuple[tuple[str, str], ...] = (
    ("temperature", "top_p"),
    ("temperature", "min_p"),
    ("temperature", "repetition_penalty"),
    ("top_k", "top_p"),
    ("presence_penalty", "repetition_penalty"),
    ("frequency_penalty", "temperature"),
    ("logit_bias", "top_k"),
    ("logit_bias", "repetition_penalty"),
    ("allowed_token_ids", "top_p"),
    ("banned_token_ids", "top_k"),
)

#: Values that are tried, the first that changes the law by as much as `_CLEAR`.
_LADDERS: Mapping[str, tuple[Any, ...]] = {
    "temperature": (0.6, 0.35, 2.5),
    "top_k": (2,),
    "top_p": (0.8, 0.6, 0.9, 0.4),
    "min_p": (0.2, 0.5, 0.1, 0.8),
    "repetition_penalty": (1.5, 3.0),
    "presence_penalty": (1.5, 4.0),
    "frequency_penalty": (1.5, 4.0),
}
_CLEAR = 0.15
#: Seeds that a cell may use.
_SEEDS = 10_000_000
#: Tokens that every law is cut down to, so that it can be written down.
_BASE = SamplingParams(top_k=3)


class RefusedError(ConfigError):
    """A decoder refused what it was asked for, and said so."""


class Drawn(NamedTuple):
    """What a decoder gave.

    Parameters
    ----------
    outcomes : sequence of tuple of int
        As the law counts them.
    drafts : DraftTotals, optional
        What was drafted, and in how many draws at least; None where the decoder does not say.
    """

    outcomes: Sequence[Outcome]
    drafts: DraftTotals | None = None


class MatrixSubject(Protocol):
    """A decoder under test, with the laws that it should have."""

    def law(self, policy: Policy) -> JointLaw:
        """Return the law of its outcomes under a policy."""
        ...

    def drawn(self, policy: Policy, num: int, first_seed: int) -> Drawn:
        """Draw.

        Parameters
        ----------
        policy : Policy
            Policy and length.
        num : int
            How many.
        first_seed : int
            Draw ``i`` has the seed ``first_seed + i``, where it takes one.

        Returns
        -------
        Drawn
            Outcomes.

        Raises
        ------
        RefusedError
            If it refuses the policy.
        """
        ...


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter with a value that shows.

    Parameters
    ----------
    name : str
        Field of `SamplingParams`.
    value : object
        Its value.
    ends : frozenset of int
        Tokens that end a text, for ``min_tokens``.
    """

    name: str
    value: Any
    ends: frozenset[int] = field(default_factory=frozenset)

    def __str__(self) -> str:
        """Return name and value."""
        value = f"{self.value:g}" if isinstance(self.value, float) else str(self.value)
        return f"{self.name} {value}"


def groups_of(
    subject: MatrixSubject,
    next_tokens: Callable[[Policy], Sequence[int]],
    horizon: int,
    *,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    without: Sequence[str] = (),
) -> list[tuple[Knob, ...]]:
    """Choose parameters and pairs of them, with values such that the law shows each.

    Parameters
    ----------
    subject : MatrixSubject
        Gives laws.
    next_tokens : callable of Policy
        The most probable next tokens under a policy, best first.
    horizon : int
        Tokens of a continuation.
    pairs : sequence of (str, str)
        Pairs of parameters.
    without : sequence of str
        Parameters that are not asked for.

    Returns
    -------
    list of tuple of Knob
        Every parameter alone, then the pairs. Where no value of a ladder makes a
        parameter visible it has the best one.
    """
    laws = _Laws(subject, horizon)
    best = list(next_tokens(Policy(_BASE, horizon)))
    ladders = {name: tuple(Knob(name, v) for v in values) for name, values in _LADDERS.items()}
    if len(best) > 1:
        biases = ({best[1]: 2.0}, {best[1]: 4.0})
        ladders["logit_bias"] = tuple(Knob("logit_bias", bias) for bias in biases)
        ladders["allowed_token_ids"] = (Knob("allowed_token_ids", tuple(sorted(best[:2]))),)
    ladders["banned_token_ids"] = (Knob("banned_token_ids", (best[0],)),)
    # An end token that may come first, masked until the last place.
    ladders["min_tokens"] = (Knob("min_tokens", horizon, frozenset(best[:1])),)
    names = [name for name in ladders if name not in without]
    asked: list[tuple[str, ...]] = [(name,) for name in names]
    asked += [pair for pair in pairs if set(pair) <= set(names)]
    return [laws.clearest([ladders[name] for name in group]) for group in asked]


class _Laws:
    """Laws with and without parameters, each enumerated once."""

    def __init__(self, subject: MatrixSubject, horizon: int) -> None:
        self._subject = subject
        self._horizon = horizon
        self._known: dict[str, JointLaw] = {}

    def of(self, policy: Policy) -> JointLaw:
        """Return the law of a policy."""
        name = repr(policy)
        if name not in self._known:
            self._known[name] = self._subject.law(policy)
        return self._known[name]

    def without(self, group: Sequence[Knob]) -> list[JointLaw]:
        """Return for each parameter the law of the others."""
        ends = _policy(group, self._horizon).eos_token_ids
        found = []
        for knob in group:
            rest = _policy([other for other in group if other is not knob], self._horizon)
            # The end tokens stay: only the mask of min_tokens goes.
            found.append(self.of(replace(rest, eos_token_ids=ends)))
        return found

    def clearest(self, ladders: Sequence[Sequence[Knob]]) -> tuple[Knob, ...]:
        """Return the first values that show all their parameters, or the best."""
        found: tuple[float, tuple[Knob, ...]] = (-1.0, ())
        for group in product(*ladders):
            law = self.of(_policy(group, self._horizon))
            least = min(distance(law, other) for other in self.without(group))
            found = max(found, (least, group), key=lambda pair: pair[0])
            if least >= _CLEAR:
                break
        return found[1]


def _policy(knobs: Sequence[Knob], horizon: int) -> Policy:
    params, ends = _BASE, frozenset[int]()
    for knob in knobs:
        ends |= knob.ends
        params = replace(params, **{knob.name: knob.value})
    if params.min_tokens:
        params = replace(params, eos_token_ids=ends)
    return Policy(params, horizon, ends)


def run_matrix(
    subject: MatrixSubject,
    name: str,
    plan: Plan,
    groups: Sequence[tuple[Knob, ...]],
    *,
    horizon: int,
    first_seed: int,
    draws: int | None = None,
    expects_speculation: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> MatrixEvidence:
    """Draw every cell.

    Parameters
    ----------
    subject : MatrixSubject
        The decoder.
    name : str
        What it is called in the certificate.
    plan : Plan
        Rates, decided beforehand.
    groups : sequence of tuple of Knob
        The cells: parameters with their values.
    horizon : int
        Tokens of a continuation.
    first_seed : int
        Seed of the first draw; cells share none.
    draws : int, optional
        Draws of a cell; as many as the plan asks for by default.
    expects_speculation : bool, default False
        Whether a cell in which nothing was drafted is no evidence.
    say : callable of str
        Gets a line for each cell.

    Returns
    -------
    MatrixEvidence
        Laws and draws.

    Raises
    ------
    ConfigError
        If there is no cell.
    """
    if not groups:
        raise ConfigError("no parameter: expected at least one")
    level = plan.alpha / len(groups)
    laws = _Laws(subject, horizon)
    cells = []
    for index, group in enumerate(groups):
        policy = _policy(group, horizon)
        law, without = laws.of(policy), laws.without(group)
        asked = ", ".join(map(str, group))
        num = draws
        if num is None:
            num = 1 + int(1.25 * draws_needed(max(2, len(law)), plan.tv, level, plan.power))
        drawn, refusal = Drawn(()), ""
        try:
            drawn = subject.drawn(policy, num, first_seed + index * _SEEDS)
        except RefusedError as error:
            refusal = str(error)
        say(f"{asked}: {refusal or f'{num} draws'}")
        counted = tuple(sorted(Counter(drawn.outcomes).items()))
        numbers = {outcome: number for number, (outcome, _) in enumerate(counted)}
        order = None
        if counted:
            order = DrawOrder.of([numbers[outcome] for outcome in drawn.outcomes])
        names = tuple(knob.name for knob in group)
        cells.append(Cell(names, asked, law, tuple(without), counted, refusal, drawn.drafts, order))
    return MatrixEvidence(name, plan, tuple(cells), expects_speculation)
