"""Grammars as OpenAI and vLLM write them."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from draftproof.core.constraint import GrammarSpec
from draftproof.errors import ConfigError
from draftproof.grammar import grammar_from_response_format as from_format
from draftproof.grammar import grammar_from_structured_outputs as from_outputs

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}


def test_free_text_has_no_grammar() -> None:
    assert from_format(None) is from_format({"type": "text"}) is None
    assert (
        from_outputs(None)
        is from_outputs({})
        is from_outputs({"json": None, "regex": None})
        is None
    )
    assert from_outputs({"json_object": False, "disable_any_whitespace": False}) is None


def test_response_formats() -> None:
    assert from_format({"type": "json_object"}) == GrammarSpec("json_object")
    for strict in (True, False, None):
        named = {"name": "n", "description": "d", "strict": strict, "schema": SCHEMA}
        spec = from_format({"type": "json_schema", "json_schema": named})
        assert spec is not None
        assert spec.kind == "json_schema"
        assert list(json.loads(spec.source)["properties"]) == ["b", "a"], "the order is kept"


def test_structured_outputs() -> None:
    schema = GrammarSpec("json_schema", json.dumps(SCHEMA))
    nested = {**SCHEMA, "properties": MappingProxyType(SCHEMA["properties"])}  # type: ignore[arg-type]
    assert from_outputs({"json": SCHEMA}) == from_outputs({"json": json.dumps(SCHEMA)}) == schema
    assert from_outputs({"guided_json": MappingProxyType(nested)}) == schema
    assert from_outputs({"json_object": True}) == GrammarSpec("json_object")
    assert from_outputs({"regex": "a+"}) == from_outputs({"guided_regex": "a+"})
    assert from_outputs({"choice": ("a", "b")}) == GrammarSpec("choice", '["a", "b"]')
    assert from_outputs({"grammar": 'start: "a"'}) == GrammarSpec("lark", 'start: "a"')
    compact = from_outputs({"json_object": True, "disable_any_whitespace": True})
    assert compact is not None
    assert json.loads(compact.source)["x-guidance"] == {"whitespace_flexible": False}
    spaced = from_outputs({"json": SCHEMA, "whitespace_pattern": " ?"})
    assert spaced is not None
    assert json.loads(spaced.source)["x-guidance"] == {"whitespace_pattern": " ?"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("text", "type str: expected an object"),
        ({}, "response_format.type None: expected one of"),
        ({"type": "structural_tag"}, "'structural_tag'"),
        ({"type": "json_object", "schema": {}}, "unknown fields schema: expected type"),
        ({"type": "json_schema"}, "response_format.json_schema is of type NoneType"),
        ({"type": "json_schema", "json_schema": {}}, "has no 'schema'"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "type list"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strickt": 1}}, "fields strickt"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}, "1: expected bool"),
        ({"type": "json_schema", "json_schema": {"schema": {"const": float("nan")}}}, "as JSON"),
        ({"type": "json_schema", "json_schema": {"schema": {"const": {1}}}}, "type set"),
    ],
)  # fmt: skip
def test_response_formats_that_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_format(given)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ([], "type list: expected an object"),
        ({"jsn": {}}, "unknown fields jsn: expected json"),
        ({"guided_decoding_backend": "x", "regex": "a"}, "guided_decoding_backend"),
        ({"regex": "a", "choice": ["b"]}, "regex, choice: expected one of them"),
        ({"regex": "a", "guided_regex": "a"}, "regex, guided_regex: expected one"),
        ({"json": "{"}, "json is not JSON"),
        ({"json": 5}, "type int"),
        ({"json_object": 1}, "json_object 1: expected true or false"),
        ({"choice": "ab"}, "expected a list of strings"),
        ({"regex": 5}, "regex is of type int"),
        ({"grammar": 'root ::= "a"'}, "EBNF"),
        ({"regex": "a", "whitespace_pattern": " "}, "no meaning beside 'regex'"),
        ({"disable_any_whitespace": True}, "disable_any_whitespace needs"),
        ({"json": {}, "disable_any_whitespace": 1}, "1: expected true or false"),
        ({"json": {}, "whitespace_pattern": 1}, "whitespace_pattern 1: expected a string"),
        ({"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}, "one of them"),
        ({"json": {"x-guidance": {}}, "whitespace_pattern": " "}, "cannot be set"),
    ],
)  # fmt: skip
def test_structured_outputs_that_are_refused(given: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_outputs(given)
    assert reason in str(caught.value)
    assert "structured_outputs" in str(caught.value)
