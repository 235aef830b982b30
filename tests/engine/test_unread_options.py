"""Options that only some drafters read: refused or told where nobody would."""

from __future__ import annotations

import pytest
from engine_kit import NEAR, answers, make_core, make_engine, requests, run

from draftproof.backends.table import TableBackend
from draftproof.core.kappa_policy import RowChoice
from draftproof.engine import GenerateRequest
from draftproof.errors import ConfigError
from draftproof.proposers import (
    DraftModelProposer,
    HybridProposer,
    NgramProposer,
    PredictionProposer,
    SuffixProposer,
)


def reading_core(**options):
    drafters = [NgramProposer(1, 3), SuffixProposer(), PredictionProposer()]
    return make_core(proposers=drafters, **{"kappa": 2, **options})


@pytest.mark.parametrize(
    ("options", "asked", "told"),
    [
        ({}, {}, "prediction has no effect with the drafter 'ngram'"),
        ({}, {"proposer": "suffix"}, "prediction has no effect with the drafter 'suffix'"),
        ({}, {"proposer": "prediction", "kappa": 0}, "no effect with num_speculative_tokens 0"),
        ({}, {"proposer": "prediction", "max_kappa": 0}, "no effect with num_speculative_tokens 0"),
        ({"kappa": 0, "default_proposer": "prediction"}, {}, "with num_speculative_tokens 0"),
    ],
)
def test_a_prediction_that_nobody_would_read_is_refused(options, asked, told):
    core = reading_core(**options)
    with pytest.raises(ConfigError, match=told):
        core.submit(GenerateRequest((1, 2), prediction=(3, 4), **asked))
    assert not core.has_work


def test_a_prediction_without_any_drafter_is_refused():
    with pytest.raises(ConfigError, match="no effect with the drafter 'none'"):
        make_engine().generate((1, 2), prediction=(3, 4))


def test_a_prediction_that_one_of_the_drafters_reads_is_taken():
    known = answers(requests(3, max_tokens=8))["a"]
    request = requests(3, max_tokens=8, prediction=tuple(known[3:]), proposer="prediction")
    assert run(reading_core(), request)["a"].stats.acceptance_rate == 1.0
    hybrid = HybridProposer([PredictionProposer()], DraftModelProposer(TableBackend(NEAR)))
    request = requests(3, max_tokens=8, prediction=tuple(known[3:]))
    assert run(make_core(proposers=[hybrid], kappa=2), request)["a"].stats.num_drafts > 0
    # A policy may choose a drafter that reads it.
    core = reading_core(kappa_policy=Always())
    assert run(core, requests(3, max_tokens=8, prediction=(1, 2)))["a"].error is None


class Always:
    """A policy that drafts nothing and learns nothing."""

    def choose(self, rows):
        return [RowChoice(0) for _ in rows]

    def observe(self, record):
        pass

    def release(self, request_id):
        pass

    def reset(self):
        pass


NO_TENANT = "tenant has no effect: no drafter of this request keeps earlier outputs"


@pytest.mark.parametrize(
    ("asked", "tenant_tokens", "is_told"),
    [
        ({}, 100, True),
        ({"proposer": "suffix"}, 0, True),
        ({"proposer": "suffix", "kappa": 0}, 100, True),
        ({"proposer": "suffix"}, 100, False),
    ],
)
def test_a_tenant_that_has_no_effect_is_told(asked, tenant_tokens, is_told):
    drafters = [NgramProposer(1, 3), SuffixProposer(tenant_tokens=tenant_tokens)]
    core = make_core(proposers=drafters, kappa=2)
    result = run(core, requests(3, max_tokens=4, tenant="t", **asked))["a"]
    assert (NO_TENANT in result.notes) is is_told
    anonymous = run(core, requests(3, max_tokens=4, **asked))["a"]
    assert NO_TENANT not in anonymous.notes
