"""Whether as many drafts survive as the rule allows: too few, or too many to be right.

An exact rule may still reject too much, and then only this shows it. A rule that
keeps more than any exact one can is biased, whatever a test of the law has seen so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.audit.rounds import Prefix, Tables
from draftproof.audit.table_law import items_of
from draftproof.errors import ConfigError

__all__ = [
    "AcceptanceAudit",
    "RoundLog",
    "audit_acceptance",
    "block_optimum",
    "check_whole",
    "is_whole",
    "most_accepted",
    "token_optimum",
]


def token_optimum(ratios: ArrayLike) -> float:
    """Return how many of the drafts of a round the token rule keeps, on average.

    Parameters
    ----------
    ratios : array_like of float, shape (K,)
        ``p(x_i) / q(x_i)`` of each draft, q = 1 for a deterministic one.

    Returns
    -------
    float
        ``sum_i prod_{j <= i} min(1, ratio_j)``, over the coins alone.
    """
    kept = np.cumprod(np.minimum(np.asarray(ratios, dtype=np.float64), 1.0))
    return float(kept.sum())


def block_optimum(ratios: ArrayLike) -> float:
    """Return a value whose mean over drafts is what block verification keeps.

    Parameters
    ----------
    ratios : array_like of float, shape (K,)
        See `token_optimum`.

    Returns
    -------
    float
        ``sum_i P_i`` with ``P_i = min(1, P_{i-1} ratio_i)`` (2403.10444, theorem 2).
        No exact rule of one pass keeps more on average.
    """
    weight, total = 1.0, 0.0
    for ratio in np.asarray(ratios, dtype=np.float64).tolist():
        weight = min(1.0, weight * ratio)
        total += weight
    return total


def most_accepted(tables: Tables, kappa: int, rule: str = "block", context: Prefix = ()) -> float:
    """Return the mean number of kept drafts of one round, enumerated.

    Parameters
    ----------
    tables : Tables
        Target and drafter.
    kappa : int
        Drafts of the round.
    rule : str, default "block"
        ``"standard"`` for the optimum token by token, ``"block"`` for that of all
        exact rules.
    context : tuple of int
        Text before the round.

    Returns
    -------
    float
        In [0, kappa].

    Raises
    ------
    ConfigError
        If the rule is neither.
    """
    if rule not in ("standard", "block"):
        raise ConfigError(f"rule {rule!r}: expected standard or block")
    total = 0.0
    stack: list[tuple[Prefix, float, float]] = [((), 1.0, 1.0)]
    while stack:
        drafted, mass, weight = stack.pop()
        if len(drafted) == kappa:
            continue
        target = tables.target(context + drafted)
        for token, prob in items_of(tables.draft(context + drafted)):
            if prob > 0:
                ratio = float(target.prob(token) / prob)
                kept = min(1.0, weight * ratio) if rule == "block" else weight * min(1.0, ratio)
                total += mass * float(prob) * kept
                if kept > 0:
                    stack.append(((*drafted, token), mass * float(prob), kept))
    return total


def is_whole(number: object) -> bool:
    """Say whether something is an integer, and no truth value.

    Parameters
    ----------
    number : object
        Anything.

    Returns
    -------
    bool
        True for Python's and numpy's integers.
    """
    return isinstance(number, Integral) and not isinstance(number, bool)


def check_whole(what: str, numbers: Iterable[object], least: int) -> None:
    """Refuse numbers of a file that cannot be.

    Parameters
    ----------
    what : str
        What they are.
    numbers : iterable of object
        The numbers.
    least : int
        The smallest that may be.

    Raises
    ------
    ConfigError
        If one is no integer, or smaller.
    """
    for number in numbers:
        if not is_whole(number) or number < least:  # type: ignore[operator]
            raise ConfigError(f"{what} is {number!r}; expected a whole number from {least} on")


@dataclass(frozen=True, slots=True)
class RoundLog:
    """What a decoder reports of its rounds.

    Parameters
    ----------
    drafted : tuple of int
        Drafts of each round, 0 for plain ones.
    accepted : tuple of int
        Drafts kept.
    emitted : tuple of int
        Tokens committed.
    cut : tuple of bool
        Whether a stop or a limit cut the round.
    """

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    emitted: tuple[int, ...]
    cut: tuple[bool, ...]

    def __post_init__(self) -> None:
        """Refuse rounds that cannot be."""
        count = len(self.drafted)
        if {len(self.accepted), len(self.emitted), len(self.cut)} != {count}:
            raise ConfigError(f"{count} rounds with other numbers of accepted, emitted or cut")
        for drafted, accepted, emitted in zip(
            self.drafted, self.accepted, self.emitted, strict=True
        ):
            if not all(is_whole(number) for number in (drafted, accepted, emitted)):
                told = f"drafted {drafted!r}, kept {accepted!r}, emitted {emitted!r}"
                raise ConfigError(f"a round that {told}: expected whole numbers")
            if not 0 <= accepted <= drafted:
                raise ConfigError(f"{accepted} drafts kept of {drafted}: expected 0..{drafted}")
            if emitted < 0:
                raise ConfigError(f"{emitted} tokens emitted in a round: expected 0 or more")


@dataclass(frozen=True, slots=True)
class AcceptanceAudit:
    """Measured acceptance against what the rule allows.

    Parameters
    ----------
    num_rounds : int
        Rounds of any kind.
    num_drafting_rounds : int
        Rounds that drafted.
    num_drafted : int
        Drafted tokens.
    accepted_per_round : float
        Kept drafts per drafting round; NaN without one.
    promised : float
        What the rule keeps on average over the same rounds; NaN where unknown.
    ceiling : float
        What no exact rule exceeds; NaN where unknown.
    shortfall : tuple of float
        Interval of ``promised - accepted_per_round``.
    surplus : tuple of float
        Interval of ``accepted_per_round - ceiling``.
    tokens_per_pass : float
        Committed tokens per round that nothing cut.
    findings : tuple of str
        ``"speculation never happened"``, ``"slower than the rule"``, ``"faster than any
        exact rule"``, ``"bonus token missing"``.
    """

    num_rounds: int
    num_drafting_rounds: int
    num_drafted: int
    accepted_per_round: float
    promised: float
    ceiling: float
    shortfall: tuple[float, float]
    surplus: tuple[float, float]
    tokens_per_pass: float
    findings: tuple[str, ...]


def audit_acceptance(
    log: RoundLog,
    promised: float | Sequence[float] = math.nan,
    ceiling: float | Sequence[float] = math.nan,
    alpha: float = 1e-3,
) -> AcceptanceAudit:
    """Compare kept drafts with the optimum.

    Parameters
    ----------
    log : RoundLog
        All rounds of the audit.
    promised : float or sequence of float
        What the rule keeps on average: one number where all drafting rounds start from
        the same text with the same kappa, else one for each drafting round
        (`token_optimum`, `block_optimum`). NaN where it is unknown.
    ceiling : float or sequence of float
        The same for the best exact rule.
    alpha : float, default 0.001
        Chance that any finding is wrong.

    Returns
    -------
    AcceptanceAudit
        The intervals are empirical Bernstein bounds (0907.3740, theorem 4): valid at
        any number of rounds, for independent ones.
    """
    drafted = np.array(log.drafted, dtype=np.int64)
    accepted = np.array(log.accepted, dtype=np.float64)
    emitted, cut = np.array(log.emitted, dtype=np.int64), np.array(log.cut, dtype=bool)
    drafting = drafted > 0
    count = int(drafting.sum())
    whole = drafting & ~cut
    # A round that nothing cut commits what it kept and one token more.
    lost = whole & (emitted <= accepted)
    widest = int(drafted.max(initial=0))
    findings = []
    if not count:
        findings.append("speculation never happened")
    kept = accepted[drafting]
    shortfall = _interval(_spread(promised, count) - kept, widest, alpha / 2)
    surplus = _interval(kept - _spread(ceiling, count), widest, alpha / 2)
    if shortfall[0] > 0:
        findings.append("slower than the rule")
    if surplus[0] > 0:
        findings.append("faster than any exact rule")
    if lost.any():
        findings.append("bonus token missing")
    return AcceptanceAudit(
        len(drafted),
        count,
        int(drafted.sum()),
        float(kept.mean()) if count else math.nan,
        float(np.mean(promised)),
        float(np.mean(ceiling)),
        shortfall,
        surplus,
        float(emitted[whole].mean()) if whole.any() else math.nan,
        tuple(findings),
    )


def _spread(value: float | Sequence[float], count: int) -> NDArray[np.float64]:
    values = np.asarray(value, dtype=np.float64)
    if values.ndim and len(values) != count:
        raise ConfigError(f"{len(values)} optima for {count} drafting rounds: expected one each")
    return np.broadcast_to(values, (count,))


def _interval(gaps: NDArray[np.float64], width: int, alpha: float) -> tuple[float, float]:
    """Return the empirical Bernstein interval of a mean of values in [-width, width]."""
    count = len(gaps)
    if count < 2 or np.isnan(gaps).any():
        return -math.inf, math.inf
    log_term = math.log(4 / alpha)
    slack = math.sqrt(2 * float(gaps.var(ddof=1)) * log_term / count)
    slack += 7 * (2 * width) * log_term / (3 * (count - 1))
    mean = float(gaps.mean())
    return mean - slack, mean + slack
