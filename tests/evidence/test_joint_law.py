"""A law of continuations, and draws counted by outcome."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import ConfigError, InvariantError
from draftproof.evidence import Counts, JointLaw, count_draws, draw_slots

END = 2
LAW = JointLaw.from_mapping(
    {(0, 0): 0.25, (0, 1): 0.25, (0, END): 0.1, (1, 0): 0.2, (END,): 0.2, (1, 1): 0.0}, 2, [END]
)


def test_outcomes_are_sorted_and_zero_mass_is_left_out() -> None:
    assert LAW.outcomes == ((0, 0), (0, 1), (0, 2), (1, 0), (2,))
    assert LAW.prob((1, 1)) == 0.0
    assert LAW.probs.sum() == pytest.approx(1, abs=1e-15)
    assert not LAW.probs.flags.writeable


@pytest.mark.parametrize(
    ("outcomes", "probs"),
    [
        (((0, 0), (0, 0)), [0.5, 0.5]),
        (((0, 0), (0,)), [0.5, 0.5]),
        (((0, 0), (0, 1, 1)), [0.5, 0.5]),
        (((0, 0), (END, 1)), [0.5, 0.5]),
        (((0, 0), (0, 1)), [0.5, 0.6]),
        (((0, 0), (0, 1)), [1.0, 0.0]),
        (((0, 0), (0, 1)), [1.0]),
        ((), []),
    ],
)
def test_what_is_no_law_is_refused(outcomes, probs) -> None:
    with pytest.raises(InvariantError):
        JointLaw(outcomes, np.array(probs), 2, frozenset([END]))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=4), max_size=60))
def test_counts_are_those_of_the_cut_draws(draws) -> None:
    expected = Counter(LAW.cut(draw) for draw in draws)
    counts = count_draws(LAW, draws)
    possible = {o: n for o, n in expected.items() if LAW.prob(o) > 0}
    assert dict(zip(LAW.outcomes, counts.cells.tolist(), strict=True)) == {
        outcome: possible.get(outcome, 0) for outcome in LAW.outcomes
    }
    assert counts.impossible == {o: n for o, n in expected.items() if LAW.prob(o) == 0}
    assert counts.num_draws == len(draws)
    if draws:
        padded = np.array([([*draw, 0, 0])[:4] for draw in draws])
        again = count_draws(LAW, padded)
        assert (again.cells == counts.cells).all()
        assert again.impossible == counts.impossible


def test_an_array_may_be_filled_after_an_end_token() -> None:
    counts = count_draws(LAW, np.array([[END, -1], [0, END], [0, 1]]))
    assert counts.cells.tolist() == [0, 1, 1, 0, 1]


def test_large_ids_are_counted_too() -> None:
    ids = np.array([[151_000, 3, 9, 7, 151_000]] * 3 + [[5, 5, 5, 5, 5]])
    law = JointLaw.from_mapping({(151_000, 3, 9, 7, 151_000): 0.5, (5,) * 5: 0.5}, 5)
    assert count_draws(law, ids).cells.tolist() == [1, 3]


@pytest.mark.parametrize("draws", [[(0,)], np.array([[0], [0]]), np.array([[0, -1]])])
def test_a_draw_that_was_cut_short_is_an_error_not_a_bias(draws) -> None:
    with pytest.raises(ConfigError, match="a draw of 1 tokens"):
        count_draws(LAW, draws)


GAPS = [[5, 9], [5, -1, 9]]


@pytest.mark.parametrize("draws", [GAPS, np.array([[5, 9, -1], [5, -1, 9]]), [[5, 9], [5, -2]]])
def test_a_gap_before_a_token_is_refused_with_its_draw_and_place(draws) -> None:
    law = JointLaw.from_mapping({(5, 9): 0.5, (9,): 0.25, (5, 5, 5): 0.25}, 3, [9])
    for count in (count_draws, draw_slots):
        with pytest.raises(ConfigError, match=r"draw 1 .*-[12] at place 1, expected token ids"):
            count(law, draws)


def test_the_order_of_draws_is_that_of_their_outcomes() -> None:
    draws = [(0, 1), (END,), (7, 7), (0, 1)]
    slots = [LAW.slot((0, 1)), LAW.slot((END,)), -1, LAW.slot((0, 1))]
    assert list(draw_slots(LAW, draws)) == slots
    assert list(draw_slots(LAW, np.array([(*d, -1)[:2] for d in draws]))) == slots


@pytest.mark.parametrize("draws", [np.array([0, 1]), np.array([[0.0, 1.0]])])
def test_other_arrays_are_refused(draws) -> None:
    with pytest.raises(ConfigError, match="expected integers"):
        count_draws(LAW, draws)


def test_merging_loses_nothing_in_any_order() -> None:
    parts = [count_draws(LAW, [(0, 0), (1, 1)]), count_draws(LAW, [(1, 1), (END,)])]
    for first, second in (parts, parts[::-1]):
        merged = first.merge(second)
        assert merged.cells.tolist() == [1, 0, 0, 0, 1]
        assert merged.impossible == {(1, 1): 2}
    with pytest.raises(InvariantError):
        parts[0].merge(Counts(np.zeros(2, dtype=np.int64)))


def test_a_stored_law_comes_back_to_the_bit() -> None:
    for seed in range(20):
        probs = np.random.default_rng(seed).dirichlet(np.ones(27)) * (1 + 1e-11 * seed)
        law = JointLaw(tuple((i,) for i in range(27)), probs, 1)
        again = JointLaw(law.outcomes, np.array(law.probs.tolist()), 1)
        assert (again.probs == law.probs).all()
        assert again.digest() == law.digest()
