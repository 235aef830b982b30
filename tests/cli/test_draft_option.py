"""``--draft``: a drafter in one word, and what it refuses."""

from __future__ import annotations

import pytest

from draftproof.build import SpeculativeConfig
from draftproof.cli.values import speculative_config
from draftproof.errors import ConfigError


def read(draft, text=None, **options):
    given = {"draft_model": None, "num_speculative_tokens": None, "rule": None, **options}
    return SpeculativeConfig.parse(speculative_config(text, draft=draft, **given))


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        ("suffix", {"method": "suffix"}),
        ("ngram-tree", {"method": "ngram_tree"}),
        ("early-exit:8", {"method": "early_exit", "num_layers": 8}),
        ("draft-model:C:/m.gguf", {"method": "draft_model", "model": "C:/m.gguf"}),
        ("hybrid:small", {"method": "hybrid", "model": "small"}),
    ],
)
def test_a_method_and_its_value_are_the_keys_that_they_stand_for(draft, expected):
    assert read(draft) == SpeculativeConfig.parse(expected)


def test_it_joins_other_options():
    config = read("early-exit:4", '{"min_confidence": 0.5}', num_speculative_tokens="2")
    assert (config.num_layers, config.min_confidence, config.kappa) == (4, 0.5, 2)


@pytest.mark.parametrize(
    ("draft", "options", "expected"),
    [
        ("early-exit:x", {}, "'early-exit:x'; expected a number of layers"),
        ("early-exit", {}, "'early_exit' needs num_layers"),
        ("early-exit:0", {}, "num_layers: .*got 0"),
        ("suffix:3", {}, "'suffix:3'; expected early-exit:LAYERS"),
        ("draft-model:", {}, "'draft-model:'; expected"),
        ("eagle", {}, "method: .*got 'eagle'"),
        ("suffix", {"draft_model": "x"}, "--draft suffix and --draft-model x"),
        ("suffix", {"text": '{"method": "ngram"}'}, "method 'ngram' and --draft says 'suffix'"),
    ],
)
def test_what_it_cannot_mean_is_refused(draft, options, expected):
    with pytest.raises(ConfigError, match=expected):
        read(draft, **options)
