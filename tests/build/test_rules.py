"""Rules in a speculative configuration: exact by name, others by opt-in."""

from __future__ import annotations

import pytest

from draftproof.build.speculative import SpeculativeConfig
from draftproof.errors import ConfigError
from draftproof.verify import (
    RULES,
    AcceptThreshold,
    AllowLossy,
    Lenience,
    SyntheticAcceptance,
    TypicalAcceptance,
)


def rule_of(**keys):
    return SpeculativeConfig.parse({"method": "ngram", **keys}).rule


def test_exact_rules_go_by_name():
    assert rule_of() is None
    for name in RULES:
        assert rule_of(rejection_sample_method=name) == name


LOSSY = {
    "lenience": ({"lenience": 0.9}, Lenience(0.9)),
    "threshold": ({"threshold_acc": 0.9, "threshold_single": 0.7}, AcceptThreshold(0.9, 0.7)),
    "typical": ({"typical_alpha": 0.1}, TypicalAcceptance(0.3, 0.1)),
    "synthetic": (
        {"synthetic_acceptance_rates": [0.9, 0.5]},
        SyntheticAcceptance((0.9, 0.5)),
    ),
}


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_rule_needs_the_users_word(name):
    knobs, expected = LOSSY[name]
    assert rule_of(rejection_sample_method=name, allow_lossy=True, **knobs) == AllowLossy(expected)
    with pytest.raises(ConfigError, match="expected allow_lossy: true"):
        rule_of(rejection_sample_method=name, **knobs)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rejection_sample_method": "typo"}, "rule 'typo' is unknown"),
        ({"allow_lossy": True}, "allow_lossy has no effect"),
        ({"rejection_sample_method": "block", "allow_lossy": True}, "which is exact"),
        ({"lenience": 0.9}, "lenience has no effect with rejection_sample_method None"),
        (
            {"rejection_sample_method": "typical", "allow_lossy": True, "lenience": 0.9},
            "use 'lenience'",
        ),
        ({"rejection_sample_method": "lenience", "allow_lossy": True}, "needs lenience"),
        (
            {"rejection_sample_method": "lenience", "allow_lossy": True, "lenience": 1.5},
            "lenience 1.5",
        ),
        (
            {
                "rejection_sample_method": "synthetic",
                "allow_lossy": True,
                "synthetic_acceptance_rates": [0.5, 0.9],
            },
            "synthetic rate 1 is 0.9",
        ),
    ],
)
def test_what_a_rule_cannot_honour_is_refused_by_name(keys, message):
    with pytest.raises(ConfigError, match=message):
        rule_of(**keys)
