"""Where a joint law is wrong: which prefix, and which offset of a block.

The likelihood ratio of the joint counts is the sum of those of the next-token laws,
prefix by prefix (the chain rule), so nothing is lost by looking at nodes.

Blocks may be cut by offset, but only in one way. For every exact rule the next token
given that *at least* ``j`` drafts were kept has the target's law. Given that it was
accepted, or that all drafts were kept, it has not, also for an exact decoder; this
module offers no such cut.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError
from draftproof.evidence.calibration import Calibrations, discrepancies, seed_of, simulate
from draftproof.evidence.joint_law import Counts, JointLaw, Outcome

__all__ = [
    "NextTokenLaw",
    "NodeTest",
    "OffsetTest",
    "RoundSample",
    "holm",
    "localise",
    "next_token_laws",
    "offset_tests",
]

#: Null samples of a node's first calibration, and the p-value that needs no second.
_COARSE = 4000
_COARSE_ENOUGH = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class NextTokenLaw:
    """The law of the token after a prefix.

    Parameters
    ----------
    token_ids : tuple of int
        Possible tokens, rising.
    probs : ndarray of float64, shape (len(token_ids),)
        Their probabilities.
    """

    token_ids: tuple[int, ...]
    probs: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NodeTest:
    """One prefix.

    Parameters
    ----------
    prefix : tuple of int
        The tokens before.
    num_draws : int
        Draws that went through it.
    g : float
        Likelihood ratio of the next token.
    p_value : float
        Monte-Carlo calibrated; 0 after an impossible token.
    adjusted : float
        Holm's p-value over all prefixes.
    observed : dict of int to float
        Frequency of each next token.
    expected : dict of int to float
        Its probability.
    """

    prefix: Outcome
    num_draws: int
    g: float
    p_value: float
    adjusted: float
    observed: dict[int, float]
    expected: dict[int, float]


@dataclass(frozen=True, slots=True)
class RoundSample:
    """One round of a speculative decoder.

    Parameters
    ----------
    prefix : tuple of int
        Tokens emitted before the round.
    emitted : tuple of int
        Tokens that the round committed.
    num_accepted : int
        Drafts that the rule kept.
    drafted : tuple of int, optional
        The drafts, where they are known and the drafter had no choice about them.
    """

    prefix: Outcome
    emitted: Outcome
    num_accepted: int
    drafted: Outcome | None = None


@dataclass(frozen=True, slots=True)
class OffsetTest:
    """The token at one offset of a block, over the rounds that kept all before it.

    Parameters
    ----------
    offset : int
        0 for the first token of a round.
    num_draws : int
        Rounds that kept at least that many drafts.
    g : float
        Sum of the likelihood ratios over all prefixes.
    p_value : float
        Min-p with the total variation, Monte-Carlo calibrated given the prefixes.
    adjusted : float
        Holm's p-value over all offsets.
    """

    offset: int
    num_draws: int
    g: float
    p_value: float
    adjusted: float


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that are valid for all hypotheses together.

    Parameters
    ----------
    p_values : sequence of float
        One for each hypothesis, under any dependence.

    Returns
    -------
    list of float
        Reject where at most alpha: the chance of any false rejection is at most alpha
        (Holm, 1979).
    """
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def next_token_laws(law: JointLaw) -> dict[Outcome, NextTokenLaw]:
    """Return the law of the next token after every possible prefix.

    Parameters
    ----------
    law : JointLaw
        The joint law.

    Returns
    -------
    dict of tuple of int to NextTokenLaw
        Shorter prefixes first.
    """
    masses = _split(law, law.probs)
    laws = {}
    for prefix in sorted(masses, key=lambda p: (len(p), p)):
        tokens = tuple(sorted(masses[prefix]))
        weights = np.array([masses[prefix][token] for token in tokens])
        laws[prefix] = NextTokenLaw(tokens, weights / weights.sum())
    return laws


def _split(law: JointLaw, values: NDArray[Any]) -> dict[Outcome, dict[int, float]]:
    found: dict[Outcome, dict[int, float]] = {}
    for outcome, value in zip(law.outcomes, values.tolist(), strict=True):
        for place, token in enumerate(outcome):
            row = found.setdefault(outcome[:place], {})
            row[token] = row.get(token, 0) + value
    return found


def localise(law: JointLaw, counts: Counts, calibrations: Calibrations) -> list[NodeTest]:
    """Test the next-token law after every prefix.

    Parameters
    ----------
    law : JointLaw
        The reference.
    counts : Counts
        Draws by outcome.
    calibrations : Calibrations
        The calibrations of the run.

    Returns
    -------
    list of NodeTest
        The strongest evidence first. Prefixes that were never drawn, and those with
        one possible token, are left out unless an impossible token followed.

    Notes
    -----
    Draws that end in an impossible token count at the prefixes before it.
    """
    drawn = _split(law, counts.cells)
    stray: defaultdict[Outcome, dict[int, float]] = defaultdict(dict)
    laws = next_token_laws(law)
    for outcome, times in counts.impossible.items():
        for place, token in enumerate(outcome):
            known = laws[outcome[:place]]
            if token not in known.token_ids:
                row = stray[outcome[:place]]
                row[token] = row.get(token, 0) + times
                break
            drawn[outcome[:place]][token] += times
    found: list[tuple[Outcome, int, float, float, dict[int, float]]] = []
    for prefix, known in laws.items():
        cells = np.array([drawn[prefix][token] for token in known.token_ids], dtype=np.int64)
        num_stray = int(sum(stray[prefix].values())) if prefix in stray else 0
        n = int(cells.sum())
        if n + num_stray == 0 or (len(cells) == 1 and not num_stray):
            continue
        g = float(discrepancies(cells[None, :], known.probs)[0][0])
        p = 0.0
        if num_stray:
            g = np.inf
        else:
            p = _node_p_value(known.probs, n, g, calibrations)
        seen = {**drawn[prefix], **stray.get(prefix, {})}
        total = n + num_stray
        found.append((prefix, total, g, p, {t: c / total for t, c in seen.items()}))
    adjusted = holm([p for _, _, _, p, _ in found])
    tests = [
        NodeTest(prefix, n, g, p, q, seen, _as_dict(laws[prefix]))
        for (prefix, n, g, p, seen), q in zip(found, adjusted, strict=True)
    ]
    return sorted(tests, key=lambda test: (test.adjusted, test.p_value, -test.g))


def _node_p_value(
    probs: NDArray[np.float64], num_draws: int, g: float, calibrations: Calibrations
) -> float:
    """Return the p-value of one node; a coarse calibration will do for a good one.

    The second look keeps the level, as in `fixed_budget_test`.
    """
    coarse = min(_COARSE, calibrations.num_samples)
    for size in sorted({coarse, calibrations.num_samples}):
        calibration = calibrations.of(probs, num_draws, num_samples=size)
        p = float(calibration.single_p_values(np.array([g]))[0])
        if p > _COARSE_ENOUGH:
            break
    return p


def _as_dict(known: NextTokenLaw) -> dict[int, float]:
    return dict(zip(known.token_ids, known.probs.tolist(), strict=True))


def offset_tests(
    law: JointLaw,
    rounds: Iterable[RoundSample] | Mapping[RoundSample, int],
    *,
    num_samples: int = 20_000,
    seed: int = 0,
) -> list[OffsetTest]:
    """Test the token at every offset of a block.

    Parameters
    ----------
    law : JointLaw
        The reference law of the whole continuation.
    rounds : iterable of RoundSample, or mapping of RoundSample to int
        All rounds that drafted, whatever became of them; or how often each was played.
    num_samples : int, default 20000
        Null samples for each offset.
    seed : int, default 0
        Seed of the calibration.

    Returns
    -------
    list of OffsetTest
        By offset. The condition is always "at least ``offset`` drafts were kept".

    Raises
    ------
    ConfigError
        If a round emitted nothing.
    """
    laws = next_token_laws(law)
    tables: defaultdict[int, dict[Outcome, dict[int, int]]] = defaultdict(dict)
    for sample, times in Counter(rounds).items():
        if not sample.emitted:
            raise ConfigError("a round emitted no token: expected at least one")
        last = min(sample.num_accepted, len(sample.emitted) - 1)
        for offset in range(last + 1):
            prefix = sample.prefix + sample.emitted[:offset]
            if len(prefix) >= law.horizon or (prefix[-1:] and prefix[-1] in law.eos_token_ids):
                break
            if prefix not in laws:
                break  # an impossible token came before; the node test reports it
            row = tables[offset].setdefault(prefix, {})
            token = sample.emitted[offset]
            row[token] = row.get(token, 0) + times
    tests = [
        _offset_test(offset, tables[offset], laws, num_samples, seed) for offset in sorted(tables)
    ]
    adjusted = holm([test.p_value for test in tests])
    return [
        OffsetTest(t.offset, t.num_draws, t.g, t.p_value, q)
        for t, q in zip(tests, adjusted, strict=True)
    ]


def _offset_test(
    offset: int,
    table: dict[Outcome, dict[int, int]],
    laws: dict[Outcome, NextTokenLaw],
    num_samples: int,
    seed: int,
) -> OffsetTest:
    rows = []
    num_draws = sum(sum(row.values()) for row in table.values())
    for prefix, row in sorted(table.items()):
        known = laws[prefix]
        if not set(row) <= set(known.token_ids):
            return OffsetTest(offset, num_draws, np.inf, 0.0, 0.0)
        cells = np.array([row.get(token, 0) for token in known.token_ids], dtype=np.int64)
        if len(cells) > 1:
            rows.append((cells, known.probs))
    if not rows:
        return OffsetTest(offset, num_draws, 0.0, 1.0, 1.0)

    def pooled(
        draws: Iterable[NDArray[np.int64]],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        pairs = [
            (discrepancies(counts, probs), cells.sum())
            for counts, (cells, probs) in zip(draws, rows, strict=True)
        ]
        g_sums = np.sum([g for (g, _), _ in pairs], axis=0)
        return g_sums, np.sum([tv * size for (_, tv), size in pairs], axis=0)

    g, tv = pooled(cells[None, :] for cells, _ in rows)
    rng = seed_of(seed, "offset", offset, *(cells.tobytes() for cells, _ in rows))
    calibration = simulate(
        lambda count: pooled(rng.multinomial(cells.sum(), probs, count) for cells, probs in rows),
        num_samples,
        max(len(cells) for cells, _ in rows),
    )
    return OffsetTest(offset, num_draws, float(g[0]), float(calibration.p_values(g, tv)[0]), 1.0)
