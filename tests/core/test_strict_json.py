"""JSON by hand: each key once, and otherwise as Python reads it."""

from __future__ import annotations

import json

import pytest

from draftproof.core import strict_json


@pytest.mark.parametrize("text", ["1", "null", '{"a": {"a": [{"b": 1}, {"b": 2}]}, "b": 1.5}'])
def test_what_repeats_nothing_reads_as_ever(text: str) -> None:
    assert strict_json.loads(text) == json.loads(text)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '[{"c": {"a": 1, "a": 2}}]'])
def test_a_repeated_key_is_named_at_any_depth(text: str) -> None:
    with pytest.raises(ValueError, match="the key 'a' stands 2 times; expected once"):
        strict_json.loads(text)


def test_what_is_no_json_says_so() -> None:
    with pytest.raises(json.JSONDecodeError):
        strict_json.loads("{")
