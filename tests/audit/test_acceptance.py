"""Too few drafts kept, too many, none at all, and the bonus that never came."""

from __future__ import annotations

import math

import numpy as np
import pytest

from draftproof.audit import RoundLog, audit_acceptance, block_optimum, most_accepted, token_optimum
from draftproof.audit.fixtures import fixture_tables
from draftproof.audit.rounds import round_laws, shipped
from draftproof.errors import ConfigError

TABLES, KAPPA = fixture_tables(), 3


def log_of(accepted: dict[int, float], rounds: int, *, bonus: int = 1, seed: int = 0) -> RoundLog:
    lengths, probs = zip(*sorted(accepted.items()), strict=True)
    kept = np.random.default_rng(seed).choice(lengths, size=rounds, p=np.array(probs) / sum(probs))
    emitted = [n + (bonus if n == KAPPA else 1) for n in kept.tolist()]
    return RoundLog((KAPPA,) * rounds, tuple(kept.tolist()), tuple(emitted), (False,) * rounds)


def laws(rule: str) -> dict[int, float]:
    return round_laws(TABLES, shipped(rule), KAPPA).accepted


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_the_closed_forms_are_the_enumerated_means(rule: str) -> None:
    mean = round_laws(TABLES, shipped(rule), KAPPA).mean_accepted
    assert most_accepted(TABLES, KAPPA, rule) == pytest.approx(mean, abs=1e-12)
    with pytest.raises(ConfigError):
        most_accepted(TABLES, KAPPA, "coupled")


def test_the_papers_example() -> None:
    assert token_optimum([0.5, 2.0]) == pytest.approx(1.0)
    assert block_optimum([0.5, 2.0]) == pytest.approx(1.5)
    assert block_optimum([2.0, 0.5, 0.0]) == pytest.approx(1.5)


def test_a_right_decoder_has_no_finding() -> None:
    for rule in ("standard", "block"):
        found = audit_acceptance(
            log_of(laws(rule), 20_000),
            most_accepted(TABLES, KAPPA, rule),
            most_accepted(TABLES, KAPPA, "block"),
        )
        assert found.findings == ()
        assert found.shortfall[0] <= 0 <= found.shortfall[1]
        assert found.tokens_per_pass == pytest.approx(1 + found.accepted_per_round)


@pytest.mark.statistical
def test_no_finding_is_made_up() -> None:
    """100 logs of a right rule at 0.05: more than 15 findings have a chance of 1e-4."""
    optimum = most_accepted(TABLES, KAPPA, "block")
    wrong = sum(
        bool(audit_acceptance(log_of(laws("block"), 400, seed=s), optimum, optimum, 0.05).findings)
        for s in range(100)
    )
    assert wrong <= 15


def test_timid_hasty_silent_and_short_decoders_are_told() -> None:
    ceiling = most_accepted(TABLES, KAPPA, "block")
    promised = most_accepted(TABLES, KAPPA, "standard")
    timid = audit_acceptance(log_of(laws("sample-match"), 5000), promised, ceiling)
    assert timid.findings == ("slower than the rule",)
    assert timid.shortfall[0] > 0
    hasty = audit_acceptance(log_of({0: 0.1, 3: 0.9}, 2000), promised, ceiling)
    assert hasty.findings == ("faster than any exact rule",)
    short = audit_acceptance(log_of(laws("standard"), 5000, bonus=0), promised, ceiling)
    assert short.findings == ("bonus token missing",)
    assert short.tokens_per_pass < 1 + short.accepted_per_round
    silent = audit_acceptance(RoundLog((0, 0), (0, 0), (1, 1), (False, False)))
    assert silent.findings == ("speculation never happened",)
    assert math.isnan(silent.accepted_per_round)


def test_a_round_that_a_stop_cut_is_not_short() -> None:
    log = RoundLog((3, 3), (3, 1), (2, 2), (True, False))
    assert audit_acceptance(log).findings == ()
    assert audit_acceptance(log).tokens_per_pass == 2.0


def test_optima_may_differ_from_round_to_round() -> None:
    log = RoundLog((1, 0, 1), (1, 0, 0), (2, 1, 1), (False,) * 3)
    assert audit_acceptance(log, [0.5, 0.7]).promised == pytest.approx(0.6)
    with pytest.raises(ConfigError, match="3 optima for 2 drafting rounds"):
        audit_acceptance(log, [0.5, 0.5, 0.5])
    with pytest.raises(ConfigError, match="4 drafts kept of 3"):
        RoundLog((3,), (4,), (5,), (False,))
    with pytest.raises(ConfigError):
        RoundLog((3,), (1, 2), (2,), (False,))
