"""Requests that a fuzzer makes from our own OpenAPI document, and answers held against it.

Schemathesis reads the document as any client's generator would. Fixed seed, bounded
number of examples.
"""

from __future__ import annotations

import warnings

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

EXAMPLES = 25
PATHS = [
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/tokenize", "POST"),
    ("/detokenize", "POST"),
]


@pytest.fixture(scope="module")
def schema(live):
    return schemathesis.openapi.from_url(live.url + "/openapi.json")


@pytest.mark.parametrize(("path", "method"), PATHS)
def test_bodies_made_from_the_document(live, schema, path, method):
    """Valid bodies and broken ones: an answer that the document describes, never a 500."""
    statuses = set()
    valid = schema[path][method].as_strategy()
    broken = schema[path][method].as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=valid | broken)
    def check(case):
        if isinstance(case.body, dict):
            tame(case.body)
        answer = case.call(timeout=30)
        statuses.add(answer.status_code)
        assert answer.status_code in (200, 400, 413, 415), (case.body, answer.text)
        if answer.status_code != 200:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the fuzzer's own, about what it cannot make
        check()
    live.wait_idle()
    assert statuses == {200, 400}, statuses


def tame(body):
    """Long answers are not what is tested, nor letters that the small tokenizer has not."""
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 8:
            body[name] = 8
    if "model" in body and "max_tokens" not in body:
        body["max_tokens"] = 4
    if isinstance(body.get("prompt"), str):
        body["prompt"] = "ab" + "c" * len(body["prompt"])
    for turn in body["messages"] if isinstance(body.get("messages"), list) else ():
        if isinstance(turn, dict) and isinstance(turn.get("content"), str):
            turn["content"] = "ab"
