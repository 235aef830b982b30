"""Rules that are not exact need an explicit opt-in, carry a label, and strict modes refuse."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.core.law import DenseLaw
from draftproof.core.rng import CoinSource
from draftproof.core.types import Draft
from draftproof.errors import ConfigError, InvariantError
from draftproof.verify import (
    RULES,
    AcceptThreshold,
    AllowLossy,
    Lenience,
    SyntheticAcceptance,
    TypicalAcceptance,
    refuse_lossy,
    verify,
)

LAW = DenseLaw(np.array([1, 1, 2], dtype=np.float32))
LOSSY = [
    Lenience(0.9),
    AcceptThreshold(acc=0.5),
    AcceptThreshold(single=0.75),
    TypicalAcceptance(),
    SyntheticAcceptance((0.5,)),
]


@pytest.mark.parametrize(
    "name",
    ["lenience", "lenience=0.9", "threshold", "typical", "synthetic", *map(repr, LOSSY)],
)
def test_no_name_reaches_a_lossy_rule(name: str) -> None:
    with pytest.raises(ConfigError, match="expected one of standard, block"):
        verify(name, Draft((0,)), lambda _: LAW, CoinSource(1).round(0))


@pytest.mark.parametrize("rule", LOSSY, ids=repr)
def test_a_lossy_rule_without_the_opt_in_is_refused(rule) -> None:
    with pytest.raises(ConfigError, match="expected one of standard, block"):
        verify(rule, Draft((0,)), lambda _: LAW, CoinSource(1).round(0))
    verdict = verify(AllowLossy(rule), Draft((0,)), lambda _: LAW, CoinSource(1).round(0))
    assert verdict.num_accepted in (0, 1)


@pytest.mark.parametrize("rule", LOSSY, ids=repr)
def test_strict_modes_refuse_by_label(rule) -> None:
    with pytest.raises(ConfigError, match="expected an exact rule"):
        refuse_lossy(AllowLossy(rule), 3)


def test_strict_modes_pass_exact_rules() -> None:
    assert [refuse_lossy(rule, 3) for rule in RULES] == list(RULES)


@pytest.mark.parametrize(
    ("rule", "label"),
    [
        (LOSSY[0], "lossy(lenience=0.9, per-token TV <= 0.1)"),
        (LOSSY[1], "lossy(threshold_acc=0.5, threshold_single=1, per-token TV <= 0.5)"),
        (LOSSY[2], "lossy(threshold_acc=1, threshold_single=0.75, per-token TV <= 0.25)"),
        (
            LOSSY[3],
            "lossy(typical_epsilon=0.3, typical_alpha=0.09, per-token TV <= 0.9982)",
        ),
        (LOSSY[4], "synthetic(acceptance=0.5)"),
        (Lenience(0.99999), "lossy(lenience=0.99999, per-token TV <= 0.0001)"),
    ],
)
def test_labels_name_the_knob_and_a_bound_that_is_rounded_up(rule, label: str) -> None:
    assert AllowLossy(rule).label(50) == label


@pytest.mark.parametrize("rule", LOSSY, ids=repr)
def test_without_drafts_the_plain_token_is_drawn(rule) -> None:
    coins = CoinSource(3).round(4)
    verdict = verify(AllowLossy(rule), Draft(), lambda _: LAW, coins)
    assert (verdict.num_accepted, verdict.source) == (0, "sampled")
    assert verdict.token_id == LAW.draw(coins.sample(0))
    with pytest.raises(InvariantError, match="ids >= 0"):
        verify(AllowLossy(rule), Draft((-1,)), lambda _: LAW, coins)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Lenience(0.0), r"lenience 0.0: expected a number in \(0, 1\]"),
        (lambda: Lenience(1.5), "lenience 1.5"),
        (lambda: Lenience(float("nan")), "lenience nan"),
        (lambda: AcceptThreshold(acc=0.0), "threshold_acc 0.0"),
        (lambda: AcceptThreshold(single=-1.0), "threshold_single -1.0"),
        (lambda: TypicalAcceptance(epsilon=2.0), "typical epsilon 2.0"),
        (lambda: TypicalAcceptance(alpha=0.0), "typical alpha 0.0"),
        (lambda: SyntheticAcceptance(()), "expected at least one"),
        (lambda: SyntheticAcceptance((0.5, 0.6)), "rate 1 is 0.6: expected at most 0.5"),
        (lambda: SyntheticAcceptance((1.1,)), r"rate 0 is 1.1: expected a number in \[0, 1\]"),
        (lambda: SyntheticAcceptance((0.5, float("nan"))), "rate 1 is nan"),
    ],
)
def test_bad_knobs_are_named(make, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()


def test_rates_become_conditional() -> None:
    rule = SyntheticAcceptance((0.8, 0.4, 0.0, 0.0))
    assert [rule.conditional(i) for i in range(6)] == [0.8, 0.5, 0.0, 0, 0, 0]
