"""Both ends of a coin: no token without target mass, and the slips that emit one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw
from draftproof.core.types import Draft, Verdict
from draftproof.errors import InvariantError
from draftproof.verify import RULES, plain_token, verify

pytestmark = pytest.mark.exact

LAST = 1 - 2.0**-53
ENDS = (0.0, 2.0**-53, 0.5, LAST, 1.0)
TABLES = [(0, 1, 3, 0), (0, 0, 0, 1), (1, 0, 0, 0), (0, 2, 0, 2), (3, 0, 1, 0), (1, 1, 1, 1)]


class EndCoins:
    """Each purpose has one value; the noise is at an end as well."""

    start = 0

    def __init__(self, draft: float, accept: float, sample: float) -> None:
        self.values = draft, accept, sample

    def draft(self, i: int) -> float:
        return self.values[0]

    def accept(self, i: int) -> float:
        return self.values[1]

    def sample(self, i: int) -> float:
        return self.values[2]

    def noise(self, i: int, vocab_size: int) -> np.ndarray:
        return np.full(vocab_size, 37.0 if self.values[2] > 0.5 else 1e-16)


def forms(weights):
    array = np.array(weights, dtype=np.float32)
    yield DenseLaw(array)
    yield DenseLaw(np.pad(array, (300, 300)))  # the same law inside longer blocks
    ids = np.flatnonzero(array)
    yield SparseLaw(ids, array[ids], len(array))
    yield SparseLaw(range(len(array)), array, len(array))  # holds zeros


@pytest.mark.parametrize("table", TABLES)
def test_a_draw_at_the_ends_has_mass(table) -> None:
    for law in forms(table):
        for u in ENDS:
            assert law.prob(law.draw(u)) > 0
        for value in (0.0, 5e-324, 1e-16, 1.0, 37.0):
            assert law.prob(law.race(np.full(law.vocab_size, value))) > 0
        assert law.draw(0.0) == np.flatnonzero(law.dense())[0]
        assert law.draw(1 - 2.0**-53) == np.flatnonzero(law.dense())[-1]


def check_ends(decide) -> None:
    """Raise if a rule emits a token without target mass at any corner of the coins."""
    for p, q in product(TABLES, TABLES):
        for target, proposal in zip(forms(p), forms(q), strict=True):
            for corner in product((0.0, LAST), (0.0, LAST, 1.0), (0.0, LAST, 1.0)):
                coins = EndCoins(*corner)
                draft = Draft((proposal.draw(coins.draft(0)),) * 2, (proposal,) * 2)
                verdict = decide(draft, lambda j, target=target: target, coins)
                emitted = (*draft.token_ids[: verdict.num_accepted], verdict.token_id)
                assert all(target.prob(token) > 0 for token in emitted)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_emits_a_token_without_mass_at_any_corner(rule: str) -> None:
    check_ends(lambda *args: verify(rule, *args))
    for table in TABLES:
        for law in forms(table):
            for u in ENDS:
                assert law.prob(plain_token(rule, law, EndCoins(u, u, u))) > 0


# --- the slips ------------------------------------------------------------------------


def weak_accept(draft, law_at, coins):
    """``u <= p / q`` in place of ``u * q < p``."""
    for i, token in enumerate(draft.token_ids):
        target = law_at(i)
        if not coins.accept(i) <= target.prob(token) / draft.laws[i].prob(token):
            law = target.residual(draft.laws[i])
            return Verdict(i, law.draw(coins.sample(i)), "recovered")
    return Verdict(len(draft), law_at(len(draft)).draw(coins.sample(len(draft))), "bonus")


def slack_draw(side: str):
    """Draw by a search over the cumulative sums without looking at the mass."""

    def decide(draft, law_at, coins):
        cumulative = np.cumsum(law_at(0).dense())
        slot = int(np.searchsorted(cumulative, coins.sample(0), side=side))
        return Verdict(0, min(slot, len(cumulative) - 1), "recovered")

    return decide


@pytest.mark.parametrize(
    "decide", [weak_accept, slack_draw("left"), slack_draw("right")], ids=lambda f: f.__name__
)
def test_the_corners_show_slack_comparisons(decide) -> None:
    with pytest.raises(AssertionError):
        check_ends(decide)


def test_a_float32_coin_may_be_one() -> None:
    words = np.arange(2**32 - 128, 2**32, dtype=np.uint64).astype(np.uint32)
    coins = words.astype(np.float32) / np.float32(2**32)
    assert (coins == 1.0).all()
    law = DenseLaw(np.array([1, 1, 0], dtype=np.float32))
    assert {law.draw(float(u)) for u in coins} == {1}


# --- padding ------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tokens", [(-1,), (3, -1), (-1, 3)])
def test_padding_is_refused_and_never_read_as_the_last_token(rule: str, tokens) -> None:
    last = OneHotLaw(3, 4)
    with pytest.raises(InvariantError, match="ids >= 0"):
        verify(rule, Draft(tokens), lambda j: last, EndCoins(0.0, 0.0, 0.0))


def test_an_id_outside_the_vocabulary_has_no_mass() -> None:
    for law in (*forms((0, 1, 1, 2)), OneHotLaw(3, 4)):
        assert law.prob(-1) == 0.0
        assert law.prob(law.vocab_size) == 0.0
    # The slip that this prevents: the row itself answers for id -1.
    assert DenseLaw(np.array([0, 0, 1.0])).dense()[-1] == 1.0
