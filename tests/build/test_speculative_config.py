"""The speculative configuration: what is accepted acts, what cannot act is refused."""

from __future__ import annotations

import pytest

from draftproof.build import SpeculativeConfig
from draftproof.errors import ConfigError


def test_no_configuration_is_plain_decoding():
    config = SpeculativeConfig.parse(None)
    assert (config.method, config.kappa) == ("none", 0)


def test_json_and_mapping_say_the_same():
    text = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'
    mapping = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    assert SpeculativeConfig.parse(text) == SpeculativeConfig.parse(mapping)
    assert SpeculativeConfig.parse(text).kappa == 5


def test_a_model_alone_is_a_draft_model():
    config = SpeculativeConfig.parse({"model": "small.gguf"})
    assert (config.method, config.kappa) == ("draft_model", 3)


def test_methods_may_be_spelled_with_hyphens():
    config = SpeculativeConfig.parse({"method": "early-exit", "num_layers": 8})
    assert (config.method, config.num_layers, config.kappa) == ("early_exit", 8, 3)


def test_zero_tokens_switch_speculation_off():
    assert SpeculativeConfig.parse({"method": "ngram", "num_speculative_tokens": 0}).kappa == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object"),
        ('{"method": "ngram", "method": "suffix"}', "the key 'method' stands 2 times"),
        ({"num_speculativ_tokens": 3}, "nearest known key: 'num_speculative_tokens'"),
        ({"methd": "ngram"}, "nearest known key: 'method'"),
        ({"method": "eagle"}, "method: .*'ngram'.* got 'eagle'"),
        ({"method": "ngram", "num_speculative_tokens": -1}, "num_speculative_tokens: .*got -1"),
        ({"method": "ngram", "model": "x"}, "model has no effect with method 'ngram'"),
        ({"model": "x", "prompt_lookup_min": 2}, "prompt_lookup_min has no effect"),
        ({"method": "ngram", "draft_temperature": 1.0}, "draft_temperature has no effect"),
        ({"method": "draft_model"}, "needs model"),
        ({"num_speculative_tokens": 4}, "no method drafts"),
        ({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3}, "is above"),
        ({"method": "suffix", "suffix_max_tree": 9}, "nearest known key: 'suffix_max_match'"),
        ({"method": "ngram", "suffix_min_score": 0.1}, "use 'suffix' or .*'hybrid'"),
        ({"method": "suffix", "suffix_min_match": 9, "suffix_max_match": 8}, "is above"),
        ({"method": "suffix", "suffix_min_score": 0}, "suffix_min_score: .*got 0"),
        ({"method": "suffix", "suffix_tenant_tokens": -1}, "suffix_tenant_tokens: .*got -1"),
        ({"method": "suffix", "prediction_min_context": 2}, "use 'prediction' or .*'hybrid'"),
        ({"method": "prediction", "prediction_min_context": 33}, "prediction_min_context: .*33"),
        ({"method": "prediction", "hybrid_enough": 2}, "use 'hybrid'"),
        ({"method": "suffix", "model": "x"}, "model has no effect with method 'suffix'"),
        ({"method": "hybrid"}, "'hybrid' needs model"),
        ({"method": "early-exit"}, "'early_exit' needs num_layers"),
        ({"method": "early-exit", "num_layers": 0}, "num_layers: .*got 0"),
        ({"method": "early-exit", "num_layers": 2, "model": "x"}, "model has no effect"),
        ({"method": "ngram", "num_layers": 2}, "num_layers has no effect with method 'ngram'"),
        ({"method": "hybrid", "num_layers": 2, "model": "x"}, "'x' and num_layers 2"),
        ({"model": "x", "num_layers": 2}, "num_layers has no effect with method 'draft_model'"),
        (
            {"method": "hybrid", "num_layers": 2, "vocab_mapping": "none"},
            "vocab_mapping has no effect with num_layers 2",
        ),
        ({"model": "x", "vocab_mapping": "bytes"}, "vocab_mapping: .*'retokenise'.* got 'bytes'"),
        ({"method": "ngram", "vocab_mapping": "none"}, "vocab_mapping has no effect"),
        (
            {"method": "draft_model_tree", "model": "x", "vocab_mapping": "retokenise"},
            "'retokenise' makes chains only",
        ),
        (
            {"method": "hybrid_tree", "model": "x", "vocab_mapping": "retokenise"},
            "'retokenise' makes chains only; 'hybrid_tree'",
        ),
        ({"method": "hybrid_tree"}, "'hybrid_tree' needs model"),
        (
            {"method": "hybrid_tree", "model": "x", "num_speculative_tokens": "auto"},
            "'hybrid_tree' drafts trees",
        ),
        (
            {"method": "hybrid_tree", "model": "x", "min_confidence": 0.2},
            "min_confidence has no effect with method 'hybrid_tree'",
        ),
        ({"method": "prediction_tree", "suffix_window": 9}, "suffix_window has no effect"),
        ({"method": "prediction_tree", "prediction_score": 0.2}, "key 'prediction_score'"),
        ({"method": "ngram", "rejection_sample_method": "typo"}, "rule 'typo' is unknown"),
    ],
)
def test_what_cannot_act_is_refused_in_one_line(value, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        SpeculativeConfig.parse(value)
    assert "\n" not in str(caught.value)
