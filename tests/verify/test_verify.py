"""What the rules touch, and what they refuse; that their law is right is in tests/exact."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.law import DenseLaw, OneHotLaw, SparseLaw
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft, Verdict
from draftproof.errors import ConfigError, InvariantError
from draftproof.verify import RULES, plain_token, verify

RATIO_RULES = ("standard", "block")


class Counting:
    """A target that notes which positions were asked for, and how often."""

    def __init__(self, laws) -> None:
        self.laws = laws
        self.asked: list[int] = []

    def __call__(self, j: int):
        self.asked.append(j)
        return self.laws[j]


class Scripted:
    """Coins from lists; notes which ones were asked for."""

    start = 0

    def __init__(self, accepts=(), sample: float = 0.5, noise=None) -> None:
        self.accepts, self.value, self.exponentials = accepts, sample, noise
        self.asked: list[tuple[str, int]] = []

    def accept(self, i: int) -> float:
        self.asked.append(("accept", i))
        return self.accepts[i]

    def sample(self, i: int) -> float:
        self.asked.append(("sample", i))
        return self.value

    def noise(self, i: int, vocab_size: int) -> np.ndarray:
        self.asked.append(("noise", i))
        return self.exponentials


def dense(*weights) -> DenseLaw:
    return DenseLaw(np.array(weights, dtype=np.float32))


HALF = dense(1, 1, 0)
DRAFT = Draft((0, 0, 0), (OneHotLaw(0, 3),) * 3, "d")

# --- laziness ----------------------------------------------------------------------------


@pytest.mark.parametrize("accepted", range(4))
def test_standard_scores_only_the_positions_it_reaches(accepted: int) -> None:
    law_at = Counting([HALF] * 4)
    coins = Scripted([0.1] * accepted + [0.9] * 3)
    verdict = verify("standard", DRAFT, law_at, coins)
    assert verdict.num_accepted == accepted
    assert verdict.source == ("bonus" if accepted == 3 else "recovered")
    assert law_at.asked == list(range(accepted + 1))
    assert coins.asked[-1] == ("sample", accepted)
    assert len(coins.asked) == min(accepted + 1, 3) + 1


@pytest.mark.parametrize("rule", ["coupled", "sample-match"])
@pytest.mark.parametrize("accepted", range(4))
def test_matching_rules_score_only_the_positions_they_reach(rule: str, accepted: int) -> None:
    draft = Draft((0,) * accepted + (1,) * (3 - accepted))
    law_at = Counting([dense(3, 1, 0)] * 4)
    coins = Scripted(sample=0.2, noise=np.ones(3))
    verdict = verify(rule, draft, law_at, coins)
    assert (verdict.num_accepted, verdict.token_id) == (accepted, 0)
    assert law_at.asked == list(range(accepted + 1))
    assert [i for _, i in coins.asked] == list(range(accepted + 1))


def test_block_scores_no_position_behind_an_impossible_draft() -> None:
    draft = Draft((0, 2, 0, 0), (HALF, dense(1, 1, 1), HALF, HALF))
    law_at = Counting([HALF] * 5)
    verdict = verify("block", draft, law_at, Scripted([0.0] * 4))
    assert law_at.asked == [0, 1]
    assert verdict.num_accepted == 1


def test_block_scores_the_bonus_position_only_if_all_survive() -> None:
    for coin, asked in [(0.99, [0, 1, 2]), (0.01, [0, 1, 2, 3])]:
        law_at = Counting([HALF] * 4)
        verdict = verify("block", DRAFT, law_at, Scripted([coin] * 3))
        assert law_at.asked == asked
        assert verdict.source == ("bonus" if coin < 0.1 else "recovered")


def test_block_keeps_the_last_success_not_the_run_before_the_first_failure() -> None:
    q = dense(3, 1, 0)
    draft = Draft((0, 0, 0), (q, q, q))
    laws = [dense(1, 3, 0), dense(1, 1, 2), dense(9, 0, 1), HALF]
    verdict = verify("block", draft, lambda j: laws[j], Scripted([0.99, 0.99, 0.05]))
    assert verdict == Verdict(3, plain_token("standard", HALF, Scripted()), "bonus")


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_certain_drafts_need_no_coin(rule: str) -> None:
    coins = Scripted([])
    assert verify(rule, Draft((0, 0), (HALF, HALF)), lambda _: HALF, coins).num_accepted == 2
    assert coins.asked == [("sample", 2)]


@pytest.mark.parametrize("rule", RULES)
def test_without_drafts_the_plain_path_runs_and_takes_its_one_coin(rule: str) -> None:
    law = dense(1, 1, 2)
    coins = Scripted(noise=np.array([0.1, 0.3, 0.4]))
    verdict = verify(rule, Draft(), Counting([law]), coins)
    assert verdict.source == "sampled"
    assert verdict.token_id == plain_token(rule, law, coins)
    assert coins.asked[0] == coins.asked[1]
    assert len(coins.asked) == 2
    assert coins.asked[0] == (("noise" if rule == "coupled" else "sample"), 0)
    greedy = Scripted()
    assert plain_token(rule, OneHotLaw(2, 3), greedy) == 2
    assert greedy.asked == []


# --- equal to plain decoding, token for token -----------------------------------------------


def table_law(prefix) -> DenseLaw:
    return DenseLaw(np.random.default_rng([7, *prefix]).random(6).astype(np.float32) ** 3)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 2**64 - 1), st.sampled_from(["coupled", "sample-match"]))
def test_the_text_is_a_function_of_the_seed_whatever_is_drafted(data, seed: int, rule: str) -> None:
    source = CoinSource(seed)
    plain: tuple[int, ...] = ()
    while len(plain) < 8:
        plain += (plain_token(rule, table_law(plain), source.round(len(plain))),)
    text: tuple[int, ...] = ()
    while len(text) < 8:
        kappa = data.draw(st.integers(0, 4))
        tokens = data.draw(st.lists(st.integers(0, 5), min_size=kappa, max_size=kappa))
        if data.draw(st.booleans()):  # an oracle, so that long runs are accepted too
            tokens = list(plain[len(text) : len(text) + kappa])
        draft = Draft(tuple(tokens))
        verdict = verify(
            rule,
            draft,
            lambda j, text=text, tokens=tokens: table_law((*text, *tokens[:j])),
            source.round(len(text)),
        )
        text += (*tokens[: verdict.num_accepted], verdict.token_id)
    assert text[:8] == plain


@pytest.mark.parametrize("rule", RULES)
def test_greedy_rounds_emit_the_greedy_text(rule: str) -> None:
    laws = [OneHotLaw(t, 5) for t in (3, 1, 4, 1)]
    for tokens in [(3, 1, 4), (3, 1, 0), (3, 2, 4), (0, 1, 4)]:
        verdict = verify(rule, Draft(tokens), lambda j: laws[j], CoinSource(1).round(0))
        right = next((i for i, t in enumerate(tokens) if t != laws[i].token), 3)
        assert (verdict.num_accepted, verdict.token_id) == (right, laws[right].token)


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_unequal_drafts_do_not_touch_each_other(rule: str) -> None:
    laws = [dense(1, 2, 3, 2)] * 6
    q = SparseLaw([0, 2, 3], [1.0, 2.0, 1.0], 4)

    def row(kappa: int) -> Verdict:
        coins = CoinSource(100 + kappa).round(10)
        tokens = tuple(q.draw(coins.draft(i)) for i in range(kappa))
        return verify(rule, Draft(tokens, (q,) * kappa), lambda j: laws[j], coins)

    solo = {kappa: row(kappa) for kappa in (0, 1, 3, 5)}
    for order in permutations(solo):
        assert {kappa: row(kappa) for kappa in order} == solo
    assert all(0 <= verdict.token_id < 4 for verdict in solo.values())


# --- numbers at the edge ------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_equal_disjoint_and_certain_laws_always_give_a_token_of_the_target(rule: str) -> None:
    p = np.array([0.3, 0.25, 0.45, 0.0])
    pairs = [
        (DenseLaw(p), DenseLaw(p)),
        (DenseLaw(p), DenseLaw(np.nextafter(p, 1.0))),
        (DenseLaw(np.nextafter(p, 1.0) * [1, 1, 1, 0]), DenseLaw(p)),
        (DenseLaw(p), OneHotLaw(3, 4)),
        (OneHotLaw(3, 4), DenseLaw(p + 1e-3)),
        (OneHotLaw(1, 4), OneHotLaw(1, 4)),
        (OneHotLaw(1, 4), OneHotLaw(2, 4)),
        (DenseLaw(np.array([1e-20, 1.0, 0, 0])), OneHotLaw(1, 4)),
        (SparseLaw([1], [2.0], 4), SparseLaw([1, 2], [1.0, 1.0], 4)),
    ]
    for target, proposal in pairs:
        for seed in range(40):
            coins = CoinSource(seed).round(3)
            tokens = tuple(proposal.draw(coins.draft(i)) for i in range(3))
            verdict = verify(rule, Draft(tokens, (proposal,) * 3), lambda _, t=target: t, coins)
            emitted = (*tokens[: verdict.num_accepted], verdict.token_id)
            assert all(target.prob(token) > 0 for token in emitted)


def test_block_survives_ratios_that_leave_the_floats() -> None:
    tiny = DenseLaw(np.array([1e-300, 1.0]))
    draft = Draft((0,) * 4, (DenseLaw(np.array([1.0, 0.0])),) * 4)
    verdict = verify("block", draft, lambda _: tiny, Scripted([0.5] * 4))
    assert (verdict.num_accepted, verdict.token_id) == (0, 1)
    verdict = verify("block", draft, lambda _: tiny, Scripted([0.0] * 4))
    assert verdict.num_accepted <= 4


# --- refusals -----------------------------------------------------------------------------


def test_an_unknown_rule_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'typical': expected one of standard, block"):
        verify("typical", DRAFT, lambda _: HALF, Scripted())


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_a_draft_that_its_own_law_excludes_is_refused(rule: str) -> None:
    lying = Draft((2,), (HALF,), "liar")
    with pytest.raises(InvariantError, match="draft 0 of liar is token 2"):
        verify(rule, lying, lambda _: dense(1, 1, 1), Scripted([0.5]))


@pytest.mark.parametrize("rule", RATIO_RULES)
def test_a_draft_outside_the_vocabulary_is_refused(rule: str) -> None:
    with pytest.raises(InvariantError, match=r"token 3: expected an id in \[0, 3\)"):
        verify(rule, Draft((3,)), lambda _: HALF, Scripted([0.5]))


@pytest.mark.parametrize("rule", ["coupled", "sample-match"])
def test_matching_rules_never_keep_an_id_outside_the_vocabulary(rule: str) -> None:
    verdict = verify(rule, Draft((3,)), lambda _: HALF, Scripted(noise=np.ones(3)))
    assert verdict.num_accepted == 0
