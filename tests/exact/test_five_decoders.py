"""Five decoders of a five-token model, all 125 texts of three tokens enumerated.

Two are right and stand at the noise floor, also with a bad drafter; three are wrong,
each by a size of its own. Exact laws first, then real draws from the shipped coins.
"""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from enumeration import TableModel, emitted_law, first_round_law, shipped, target_law_of
from enumeration import total_variation as tv_of

from draftproof.core.law import DenseLaw
from draftproof.core.rng import CoinSource
from draftproof.testing.fraction_law import FractionLaw
from draftproof.verify import plain_token
from faults import phantom_round, power, token_round

pytestmark = pytest.mark.exact

KAPPA, HORIZON, VOCAB = 2, 3, 5
#: Each row leans to the successor of the token before; rows differ in how much.
TARGET = {
    token: [Fraction(int(w), 100) for w in np.roll(row, token)]
    for token, row in enumerate(
        ([3, 76, 9, 8, 4], [2, 81, 7, 4, 6], [5, 70, 12, 9, 4], [4, 85, 5, 3, 3], [8, 72, 6, 10, 4])
    )
}
DRAFT = {
    token: [Fraction(int(w), 100) for w in np.roll(row, token)]
    for token, row in enumerate(
        (
            [9, 58, 15, 10, 8],
            [8, 62, 6, 14, 10],
            [4, 52, 22, 8, 14],
            [12, 66, 8, 9, 5],
            [6, 55, 16, 9, 14],
        )
    )
}
BAD = [Fraction(w, 100) for w in (34, 18, 12, 9, 27)]


def model(draft=None) -> TableModel:
    start = 2

    @cache
    def target(prefix):
        return FractionLaw(TARGET[prefix[-1] if prefix else start])

    @cache
    def own(prefix):
        return FractionLaw(DRAFT[prefix[-1] if prefix else start])

    return TableModel("five", VOCAB, target, draft or own)


GOOD, WRONG_DRAFT = model(), model(lambda _: FractionLaw(BAD))
MISMATCHED = token_round(scored=lambda q: power(q, 2))
SHIFTED = token_round(row=lambda j: max(j - 1, 0))


def test_right_decoders_are_exact_and_a_bad_draft_only_costs_acceptance() -> None:
    expected = target_law_of(GOOD, HORIZON)
    assert len(expected) == 125
    for rule in ("standard", "block"):
        assert emitted_law(GOOD, shipped(rule), KAPPA, HORIZON) == expected
        assert emitted_law(WRONG_DRAFT, shipped(rule), KAPPA, HORIZON) == expected
    _, good = first_round_law(GOOD, shipped("standard"), 1)
    _, bad = first_round_law(WRONG_DRAFT, shipped("standard"), 1)
    assert 0.7 < good < 0.85
    assert 0.3 < bad < 0.55


def test_wrong_decoders_are_named_by_their_size() -> None:
    expected = target_law_of(GOOD, HORIZON)
    decoders = {
        "mismatched q": (MISMATCHED, KAPPA),
        "phantom token": (phantom_round, 1),
        "shifted row": (SHIFTED, KAPPA),
    }
    sizes = {
        name: tv_of(emitted_law(GOOD, play, kappa, HORIZON), expected)
        for name, (play, kappa) in decoders.items()
    }
    print({name: round(size, 3) for name, size in sizes.items()})  # noqa: T201
    assert 0.05 < sizes["mismatched q"] < 0.4
    assert 0.03 < sizes["phantom token"] < 0.3
    assert sizes["shifted row"] > 0.6
    assert sizes["shifted row"] == max(sizes.values())


# --- the same from draws ----------------------------------------------------------------

DRAWS = 2000
FALSE_ALARM = 1e-6


def as_floats(table: TableModel) -> TableModel:
    @cache
    def target(prefix):
        return DenseLaw(table.target(prefix).dense().astype(np.float32))

    @cache
    def draft(prefix):
        return DenseLaw(table.draft(prefix).dense().astype(np.float32))

    return TableModel(table.name, table.vocab_size, target, draft)


def drawn_tv(table: TableModel, play) -> float:
    """Return the TV of the empirical law from the target over many seeds."""
    table = as_floats(table)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(DRAWS):
        coins, text = CoinSource(seed), ()
        while len(text) < HORIZON:
            if play is None:
                law = table.target(text)
                text += (plain_token("standard", law, coins.round(len(text))),)
            else:
                text = play(table, text, KAPPA, coins.round(len(text))).context
        counts[text[:HORIZON]] += 1
    expected = target_law_of(GOOD, HORIZON)
    empirical = {word: count / DRAWS for word, count in counts.items()}
    return tv_of(empirical, {word: float(prob) for word, prob in expected.items()})


def bounds() -> tuple[float, float]:
    """Return the alarm threshold and the smallest bias it must catch.

    The mean of the empirical TV is at most half the sum of standard deviations, and
    it moves by at most 1/n per draw, so it exceeds the mean by sqrt(ln(1/a) / 2n)
    with probability a (McDiarmid). A bias is at most the mean of its empirical TV.
    """
    expected = [float(prob) for prob in target_law_of(GOOD, HORIZON).values()]
    mean = sum(math.sqrt(p * (1 - p) / DRAWS) for p in expected) / 2
    slack = math.sqrt(math.log(1 / FALSE_ALARM) / (2 * DRAWS))
    return mean + slack, mean + 2 * slack


@pytest.mark.statistical
@pytest.mark.parametrize("rule", [None, "standard", "block", "sample-match"])
def test_draws_of_right_decoders_stay_at_the_floor(rule: str | None) -> None:
    threshold, min_detectable = bounds()
    assert min_detectable < 0.2
    table = GOOD if rule != "standard" else WRONG_DRAFT
    assert drawn_tv(table, shipped(rule) if rule else None) < threshold


@pytest.mark.statistical
def test_draws_of_a_wrong_decoder_leave_it() -> None:
    threshold, _ = bounds()
    squared = token_round(scored=lambda q: DenseLaw(q.dense() ** 2))
    assert drawn_tv(GOOD, SHIFTED) > threshold
    assert drawn_tv(GOOD, squared) > threshold
