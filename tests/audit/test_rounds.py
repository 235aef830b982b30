"""Laws of tables, rounds with nothing exchanged, and the joint law of a decoder."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from draftproof.audit.fixtures import fixture_tables, seeded_tables
from draftproof.audit.rounds import (
    Tables,
    argmax_draft,
    decode_law,
    plain_law,
    raced_draft,
    round_laws,
    sampled_draft,
    shipped,
)
from draftproof.audit.table_law import TableLaw, bend, items_of, like, most_probable
from draftproof.audit.wrong_rounds import block_round, token_round, top_mass
from draftproof.audit.wrong_siblings import by_confidence, sibling_round, walk_round
from draftproof.core.rng import CoinSource
from draftproof.errors import ConfigError, InvariantError
from draftproof.testing.fraction_law import FractionLaw

TABLES = seeded_tables(5)
HORIZON = 3
PLAIN = plain_law(TABLES, HORIZON)


def tv(left, right) -> float:
    return sum(abs(left.get(k, 0) - right.get(k, 0)) for k in {*left, *right}) / 2


def test_a_table_law_does_what_a_fraction_law_does() -> None:
    p, q = ([0.5, 0.0, 0.25, 0.25], [0.1, 0.2, 0.3, 0.4])
    floats, exact = (TableLaw(p), TableLaw(q)), (FractionLaw(p), FractionLaw(q))
    for scale in (1, 0.75):
        mass, rest = floats[0].residual_with_mass(floats[1], scale)
        exact_mass, exact_rest = exact[0].residual_with_mass(exact[1], Fraction(scale))
        assert mass == pytest.approx(float(exact_mass))
        assert rest.dense() == pytest.approx(exact_rest.dense())
    assert floats[0].probs_at(np.array([0, 1])).tolist() == [0.5, 0.0]
    assert [floats[0].draw(u) for u in (0.0, 0.49, 0.5, 0.75, 1.0)] == [0, 0, 2, 3, 3]
    assert most_probable(floats[0], 2) == most_probable(exact[0], 2) == [0, 2]
    assert dict(items_of(floats[0])) == {0: 0.5, 2: 0.25, 3: 0.25}
    assert bend(exact[0], lambda t, prob: prob**2).probs[0] == Fraction(2, 3)
    assert like(floats[0], {1: 0.0}) is floats[0]
    assert top_mass(floats[0], 0.6).dense().tolist() == pytest.approx([2 / 3, 0, 1 / 3, 0])
    with pytest.raises(InvariantError):
        TableLaw([0.0, 0.0])


def test_races_over_real_noise_follow_the_law() -> None:
    law, rng = TableLaw([0.5, 0.0, 0.2, 0.3]), np.random.default_rng(0)
    wins = np.bincount([law.race(rng.exponential(size=4)) for _ in range(4000)], minlength=4)
    assert wins / 4000 == pytest.approx([0.5, 0.0, 0.2, 0.3], abs=0.04)


@pytest.mark.parametrize(
    "play",
    [
        shipped("standard"),
        shipped("block"),
        shipped("coupled", raced_draft),
        shipped("sample-match", argmax_draft),
        token_round(),
        block_round(),
        sibling_round(2),
        sibling_round(2, redraw=True, drop="never"),
        walk_round(lambda q, coins: by_confidence([0, 1], q)),
    ],
)
def test_with_nothing_exchanged_the_law_is_right(play) -> None:
    assert tv(decode_law(TABLES, play, 2, HORIZON), PLAIN) < 1e-14
    assert tv(decode_law(TABLES, play, 2, HORIZON, max_speculative_rounds=1), PLAIN) < 1e-14


def test_texts_end_at_end_tokens() -> None:
    ending = Tables("ends", 3, TABLES.target, TABLES.draft, frozenset([1]))
    plain = plain_law(ending, HORIZON)
    assert (1,) in plain
    assert all(1 not in text[:-1] for text in plain)
    assert sum(plain.values()) == pytest.approx(1)
    assert tv(decode_law(ending, shipped("block"), 2, HORIZON), plain) < 1e-14
    assert tv(decode_law(ending, shipped("block"), 2, HORIZON, whole_blocks=True), plain) < 1e-14


def test_draws_of_the_round_have_the_enumerated_lengths() -> None:
    """3,000 rounds; a share that is off by 0.05 would be seen, by chance once in 1e6."""
    laws = round_laws(TABLES, shipped("standard"), 2)
    play, counts = shipped("standard", sampled_draft), np.zeros(3)
    for seed in range(3000):
        counts[play(TABLES, (), 2, CoinSource(seed).round(0)).num_accepted] += 1
    for length, prob in laws.accepted.items():
        assert counts[length] / 3000 == pytest.approx(prob, abs=0.05)
    assert laws.mean_emitted == pytest.approx(1 + laws.mean_accepted)


def test_the_fixture_has_no_impossible_outcome() -> None:
    law = plain_law(fixture_tables(), 4)
    assert len(law) == 81
    assert min(law.values()) > 5e-5
    with pytest.raises(ConfigError):
        decode_law(TABLES, shipped("standard"), -1, 2)
