"""Every key of a speculative configuration reaches the drafter that it is for."""

from __future__ import annotations

import pytest

from draftproof.backends.table import MarkovTable, TableBackend
from draftproof.build import SpeculativeConfig
from draftproof.build.drafters import enough_copied, make_proposers
from draftproof.build.lengths import drafter_key
from draftproof.build.methods import DEFAULT_KAPPA, OWNERS
from draftproof.build.rules import RULE_OWNERS
from draftproof.errors import ConfigError
from draftproof.proposers import (
    DraftHeadProposer,
    DraftHeadTreeProposer,
    DraftModelProposer,
    DraftModelTreeProposer,
    HybridHeadProposer,
    HybridProposer,
    HybridTreeHeadProposer,
    HybridTreeProposer,
    NgramProposer,
    NgramTreeProposer,
    PredictionProposer,
    PredictionTreeProposer,
    SuffixProposer,
    SuffixTreeProposer,
)

DRAFT = TableBackend(MarkovTable(9, 1, seed=1))


def made(**config):
    draft = DRAFT if "model" in config or "num_layers" in config else None
    return make_proposers(SpeculativeConfig.parse(config), 9, draft, head=object())


@pytest.mark.parametrize(
    ("config", "kind", "kappa"),
    [
        ({"method": "ngram"}, NgramProposer, 5),
        ({"method": "suffix"}, SuffixProposer, 8),
        ({"method": "prediction"}, PredictionProposer, 12),
        ({"method": "hybrid", "model": "x"}, HybridProposer, 8),
        ({"model": "x"}, DraftModelProposer, 3),
        ({"method": "draft-head", "model": "x"}, DraftHeadProposer, 3),
        ({"method": "early_exit", "num_layers": 1}, DraftModelProposer, 3),
        ({"method": "hybrid", "num_layers": 1}, HybridProposer, 8),
        ({"method": "draft_model_tree", "num_layers": 1}, DraftModelTreeProposer, 10),
        ({"method": "ngram_tree"}, NgramTreeProposer, 8),
        ({"method": "suffix-tree"}, SuffixTreeProposer, 8),
        ({"method": "prediction-tree"}, PredictionTreeProposer, 12),
        ({"method": "draft-head-tree", "model": "x"}, DraftHeadTreeProposer, 10),
        ({"method": "draft_model_tree", "model": "x"}, DraftModelTreeProposer, 10),
        ({"method": "hybrid-tree", "model": "x"}, HybridTreeProposer, 10),
        ({"method": "hybrid_tree", "num_layers": 1}, HybridTreeProposer, 10),
    ],
)
def test_each_method_makes_its_drafter(config, kind, kappa):
    (proposer,) = made(**config)
    assert type(proposer) is kind
    assert SpeculativeConfig.parse(config).kappa == kappa
    assert SpeculativeConfig.parse({**config, "num_speculative_tokens": 2}).kappa == 2


def head_folder(folder):
    """A folder that calls itself a head; what it holds is read later."""
    (folder / "config.json").write_text('{"speculators_model_type": "eagle"}')
    return str(folder)


def test_a_hybrid_with_a_head_reads_hidden_states(tmp_path):
    written = {"method": "hybrid", "model": head_folder(tmp_path), "hybrid_model_tokens": 2}
    written |= {"hybrid_enough": 3, "draft_temperature": 0.5, "min_confidence": 0.25}
    config = SpeculativeConfig.parse(written)
    assert config.has_head
    (proposer,) = make_proposers(config, 9, head=object())
    assert type(proposer) is HybridHeadProposer
    assert (proposer._max_model_tokens, proposer._enough) == (2, 3)
    assert type(proposer._model) is DraftHeadProposer
    assert (proposer._model._temperature, proposer._model._min_confidence) == (0.5, 0.25)


def test_trees_of_a_hybrid_with_a_head_read_hidden_states(tmp_path):
    written = {"method": "hybrid_tree", "model": head_folder(tmp_path), "draft_temperature": 0.5}
    written |= {"hybrid_model_tokens": 2, "hybrid_enough": 3}
    tree = SpeculativeConfig.parse({**written, "tree_widths": (2, 1)})
    assert tree.has_head
    (proposer,) = make_proposers(tree, 9, head=object())
    assert type(proposer) is HybridTreeHeadProposer
    assert (proposer._max_model_tokens, proposer._enough) == (2, 3)
    assert type(proposer._model) is DraftHeadTreeProposer
    assert (proposer._model._widths, proposer._model._temperature) == ((2, 1), 0.5)
    del written["hybrid_enough"]
    (proposer,) = make_proposers(SpeculativeConfig.parse(written), 9, head=object())
    assert proposer._enough == 1


def test_a_head_is_not_asked_behind_a_copy_and_a_model_behind_a_short_one(tmp_path):
    config = SpeculativeConfig.parse({"method": "hybrid", "model": head_folder(tmp_path)})
    (proposer,) = make_proposers(config, 9, head=object())
    assert (proposer._enough, enough_copied(config)) == (1, 1)
    (proposer,) = made(method="hybrid", model="x")
    assert proposer._enough == 4


def test_a_hybrid_with_a_model_has_no_head(tmp_path):
    assert not SpeculativeConfig.parse({"method": "hybrid", "model": str(tmp_path)}).has_head
    assert not SpeculativeConfig.parse({"method": "hybrid", "num_layers": 1}).has_head


def test_a_hybrid_with_a_head_joins_no_vocabularies(tmp_path):
    config = {"method": "hybrid", "model": head_folder(tmp_path), "vocab_mapping": "none"}
    with pytest.raises(ConfigError, match="vocab_mapping has no effect with the draft head"):
        SpeculativeConfig.parse(config)


def test_plain_decoding_has_no_drafter():
    assert made() == []


@pytest.mark.parametrize(
    "method", ["draft_model", "draft_head", "hybrid", "draft_model_tree", "hybrid_tree"]
)
def test_a_draft_model_that_was_not_loaded_is_missed(method):
    config = SpeculativeConfig.parse({"method": method, "model": "x"})
    with pytest.raises(ConfigError, match="none was loaded"):
        make_proposers(config, 9)


SUFFIX = {
    "suffix_min_match": (2, "_min_match"),
    "suffix_max_match": (7, "_max_match"),
    "suffix_min_score": (0.4, "_min_score"),
    "suffix_window": (500, "_window"),
    "suffix_tenant_tokens": (60, "_tenant_tokens"),
}
MODEL = {
    "draft_temperature": (0.5, "_temperature"),
    "min_confidence": (0.25, "_min_confidence"),
}
PREDICTION = {
    "prediction_min_context": (5, "_min_context"),
    "prediction_min_score": (0.2, "_min_score"),
}
TREES = {
    "tree_max_paths": (3, "_max_paths"),
    "tree_widths": ((3, 1), "_widths"),
    "tree_acceptance": (0.35, "_acceptance"),
}
HYBRID = {"hybrid_model_tokens": (2, "_max_model_tokens"), "hybrid_enough": (6, "_enough")}


@pytest.mark.parametrize("key", [*SUFFIX, *MODEL, *PREDICTION, *TREES, *HYBRID])
def test_every_key_acts(key):
    value, name = {**SUFFIX, **MODEL, **PREDICTION, **TREES, **HYBRID}[key]
    for method in OWNERS[key]:
        config = {"method": method, key: value}
        if method == "early_exit":
            config["num_layers"] = 1
        elif method in OWNERS["model"]:
            config["model"] = "x"
        (proposer,) = made(**config)
        parts = [proposer]
        if method == "hybrid":
            parts += [*proposer._draftless, proposer._model]
        if method == "hybrid_tree":
            parts += [*proposer._copying, proposer._model]
        parts += [
            getattr(part, name)
            for part in parts
            for name in ("_suffixes", "_predictions")
            if hasattr(part, name)
        ]
        assert value in [getattr(part, name, None) for part in parts]


def test_a_suffix_draft_ends_earlier_where_a_model_goes_on():
    (hybrid,) = made(method="hybrid", model="x")
    (suffix,) = made(method="suffix")
    assert [part.name for part in hybrid._draftless] == ["prediction", "suffix"]
    assert hybrid._draftless[1]._min_score > suffix._min_score


def test_every_method_has_a_kappa_and_every_key_an_owner_that_exists():
    assert all(set(owners) <= set(DEFAULT_KAPPA) for owners in OWNERS.values())
    everywhere = {"method", "num_speculative_tokens", "rejection_sample_method", "allow_lossy"}
    everywhere |= set(RULE_OWNERS)
    assert set(SpeculativeConfig.model_fields) == everywhere | set(OWNERS)


@pytest.mark.parametrize("method", ["draft_model", "draft_model_tree"])
def test_a_head_that_is_asked_for_as_a_model_is_told_its_method(method, tmp_path):
    expected = f"is a draft head.*expected method '{method.replace('model', 'head')}'"
    for name in ("smollm2-head", head_folder(tmp_path)):
        with pytest.raises(ConfigError, match=expected):
            SpeculativeConfig.parse({"method": method, "model": name})
    tree = SpeculativeConfig.parse({"method": "draft_head_tree", "model": "smollm2-head"})
    assert (tree.has_head, drafter_key(tree)) == (True, "draft-head")


def test_a_rule_that_judges_chains_only_is_refused_with_trees():
    lossy = {"rejection_sample_method": "lenience", "lenience": 0.5, "allow_lossy": True}
    with pytest.raises(ConfigError, match="judges chains only; 'ngram_tree' drafts trees"):
        SpeculativeConfig.parse({"method": "ngram_tree", **lossy})
