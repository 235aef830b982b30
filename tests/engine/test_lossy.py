"""Rules that change the law run by opt-in only, under their own label."""

from __future__ import annotations

import pytest
from engine_kit import GREEDY, NEAR, WARM, ids, make_core, plain, requests, run
from test_exact_law import PROMPT, drafters, engine_law, plain_warp, reference_law, total_variation

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.core.params import SamplingParams
from draftproof.errors import ConfigError
from draftproof.proposers import DraftModelProposer
from draftproof.verify import (
    AcceptThreshold,
    AllowLossy,
    Lenience,
    SyntheticAcceptance,
    TypicalAcceptance,
)

LENIENT = AllowLossy(Lenience(0.5))
LABELS = {
    "lossy(lenience=0.5, per-token TV <= 0.5)": LENIENT,
    "lossy(threshold_acc=0.9, threshold_single=0.8, per-token TV <= 0.2)": AllowLossy(
        AcceptThreshold(0.9, 0.8)
    ),
    "lossy(typical_epsilon=0.3, typical_alpha=0.09, per-token TV <= 0.9872)": AllowLossy(
        TypicalAcceptance()
    ),
    "synthetic(acceptance=0.9,0.5)": AllowLossy(SyntheticAcceptance((0.9, 0.5))),
}


def core_with(rule=None, *, allow=True, kappa=3):
    drafter = DraftModelProposer(TableBackend(NEAR))
    return make_core(proposers=[drafter], kappa=kappa, rule=rule, allow_lossy=allow)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("by", ["engine", "request"])
def test_a_lossy_run_carries_its_label_and_its_bound(label, by):
    rule = LABELS[label]
    asked = requests(3, params=WARM, max_tokens=9, rule=rule if by == "request" else None)
    (result,) = run(core_with(rule if by == "engine" else None), asked).values()
    assert result.exactness == label
    assert result.rule == rule.name
    (greedy,) = run(core_with(rule), requests(3, params=GREEDY, max_tokens=9)).values()
    assert greedy.exactness == label


@pytest.mark.parametrize("rule", LABELS.values())
def test_an_engine_is_strict_unless_it_is_told_otherwise(rule):
    with pytest.raises(ConfigError, match="expected an exact rule"):
        core_with(rule, allow=False)
    with pytest.raises(ConfigError, match="expected an exact rule"):
        run(core_with(allow=False), requests(3, params=WARM, max_tokens=9, rule=rule))


def test_a_neighbour_of_a_lossy_request_stays_exact():
    batch = requests(3, 5, params=WARM, max_tokens=20, rule="sample-match")
    expected = ids(plain(batch))
    lossy = requests(9, params=WARM, max_tokens=20, rule=LENIENT)[0]
    core = core_with()
    for request in (*batch, type(lossy)(lossy.prompt_ids, WARM, 20, rule=LENIENT, seed=4)):
        core.submit(request)
    results = core.run()
    assert {name: results[name].token_ids for name in expected} == expected


@pytest.mark.exact
def test_the_law_of_a_lossy_engine_differs_and_keeps_its_bound():
    """Per token at most 0.5, so at most 1 - 0.5**n over n tokens; and it is not exact."""
    table = MarkovTable(3, None, seed=14)
    law = engine_law(
        TableBackend(table),
        [drafters()["model"]()],
        params=SamplingParams(),
        horizon=4,
        kappa=2,
        rule=LENIENT,
        allow_lossy=True,
    )
    distance = total_variation(law, reference_law(table, PROMPT, 4, plain_warp))
    assert 0.005 < distance <= 1 - 0.5**4


def test_synthetic_acceptance_keeps_its_schedule():
    """Counts of 600 rounds; each rate within 5 standard errors (false alarm below 2e-6)."""
    rates = (0.9, 0.5, 0.2)
    rule = AllowLossy(SyntheticAcceptance(rates))
    asked = requests(3, 4, 5, 6, params=WARM, max_tokens=400, rule=rule)
    stats = None
    for result in run(core_with(), asked).values():
        stats = result.stats if stats is None else stats.merge(result.stats)
    drafted = stats.num_drafted_per_pos
    for i, rate in enumerate(rates):
        error = (rate * (1 - rate) / drafted[i]) ** 0.5
        assert abs(stats.acceptance_rate_per_pos[i] - rate) < 5 * error
