"""Drafters that requests may choose, and that nobody uses unasked."""

from __future__ import annotations

import pytest

from draftproof.backends.table import FunctionTable, TableBackend, seeded_probs
from draftproof.build.drafters import DRAFTLESS, make_more_proposers
from draftproof.build.speculative import SpeculativeConfig
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.proposers import NgramProposer

PLAIN = SpeculativeConfig()
SUFFIX = SpeculativeConfig.parse({"method": "suffix"})


@pytest.mark.parametrize(
    ("methods", "config", "names"),
    [
        ((), PLAIN, []),
        (DRAFTLESS, PLAIN, ["ngram", "suffix", "prediction"]),
        (("prediction", "ngram", "ngram"), PLAIN, ["prediction", "ngram"]),
        (DRAFTLESS, SUFFIX, ["ngram", "prediction"]),
    ],
)
def test_each_is_made_once(methods, config, names):
    assert [drafter.name for drafter in make_more_proposers(methods, config)] == names


@pytest.mark.parametrize("method", ["draft_model", "hybrid", "ngram_tree", "none", "magic"])
def test_what_needs_more_is_refused(method):
    with pytest.raises(ConfigError, match=f"also has '{method}'"):
        make_more_proposers(["ngram", method], PLAIN)


def make_core(**options):
    table = FunctionTable(5, lambda held: seeded_probs(5, held, seed=1), span=1)
    return EngineCore(TableBackend(table), proposers=[NgramProposer(min_n=1, max_n=2)], **options)


def drafts_of(core, **options):
    request = GenerateRequest((1, 2, 1, 2, 1), max_tokens=30, seed=1, **options)
    core.submit(request)
    (result,) = core.run().values()
    return result.stats.num_draft_tokens


def test_nobody_drafts_unasked():
    core = make_core(default_proposer="none")
    assert drafts_of(core) == 0
    assert drafts_of(core, proposer="ngram", kappa=3) > 0
    with pytest.raises(ConfigError, match="none"):
        drafts_of(core, kappa=3)
    assert drafts_of(make_core(kappa=3)) > 0


def test_an_unknown_default_is_refused():
    with pytest.raises(ConfigError, match="magic"):
        make_core(default_proposer="magic")
