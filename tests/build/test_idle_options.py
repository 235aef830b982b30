"""What `load` would ignore is refused before a file is opened."""

from __future__ import annotations

import pytest

from draftproof.build import load
from draftproof.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"speculative_config": {"rejection_sample_method": "block"}},
            "rejection_sample_method 'block' has no effect with method 'none'",
        ),
        (
            {
                "speculative_config": {
                    "rejection_sample_method": "lenience", "lenience": 0.5, "allow_lossy": True
                }
            },
            "'lenience' has no effect with method 'none'",
        ),
        (
            {
                "speculative_config": {
                    "model": "x", "draft_sample_method": "greedy", "draft_temperature": 0.7
                }
            },
            "draft_temperature 0.7 has no effect with draft_sample_method 'greedy'",
        ),
        ({"draft_precision": "f16"}, "draft_precision 'f16' has no effect without a draft model"),
        (
            {"draft_precision": "f16", "speculative_config": {"method": "ngram"}},
            "expected a speculative config with model, got method 'ngram'",
        ),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_refused(tmp_path, options, expected):
    with pytest.raises(ConfigError, match=expected):
        load(tmp_path / "missing.gguf", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"speculative_config": {"rejection_sample_method": "coupled"}},
        {"speculative_config": {"rejection_sample_method": "block"}, "also": ["ngram"]},
        {"speculative_config": {"model": "x"}, "draft_precision": "f16"},
    ],
)
def test_what_acts_is_taken(tmp_path, options):
    with pytest.raises(ConfigError, match="no model named"):  # only the file is missing
        load(tmp_path / "missing.gguf", **options)
