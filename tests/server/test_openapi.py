"""The OpenAPI document, and bodies made from it and from noise: never a 500."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from draftproof.server.schemas import ChatRequest, CompletionRequest, GenerationRequest


@pytest.fixture
def document(kit):
    return kit.call("GET", "/openapi.json").json()


def test_every_route_is_described(kit, document):
    routes = {
        (route.path, method.lower())
        for route in kit.service.routes()
        if isinstance(route, Route)
        for method in route.methods - {"HEAD"}
    }
    described = {
        (path, method) for path, methods in document["paths"].items() for method in methods
    }
    assert {(path, method) for path, method in routes if "{" not in path} == described


def test_every_reference_resolves(document):
    def walk(node):
        if isinstance(node, dict):
            if "$ref" in node:
                place = document
                for part in node["$ref"].removeprefix("#/").split("/"):
                    place = place[part]
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(document)
    schemas = document["components"]["schemas"]
    for name in ("CompletionRequest", "ChatRequest", "RequestSpeculation"):
        assert schemas[name]["additionalProperties"] is False
    assert "prediction" in schemas["ChatRequest"]["properties"]


def test_a_key_is_described(kit_type):
    document = kit_type(api_key="k").call(
        "GET", "/openapi.json", headers={"authorization": "Bearer k"}
    )
    assert document.json()["security"] == [{"key": []}]


NOISE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(-2, 3) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
LIKELY = {
    "n": st.integers(0, 4),
    "max_tokens": st.integers(0, 9),
    "temperature": st.floats(-0.5, 2, allow_nan=False),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(-1, 40),
    "seed": st.integers(-(2**64), 2**65),
    "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=3),
    "logit_bias": st.dictionaries(st.integers(-1, 120).map(str), st.floats(-120, 120), max_size=3),
    "logprobs": st.integers(-1, 22) | st.booleans(),
    "top_logprobs": st.integers(-1, 22),
    "prompt": st.text(max_size=8) | st.lists(st.integers(-1, 120), max_size=8),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "tool"]), "content": NOISE}
        ),
        max_size=3,
    ),
    "stream": st.booleans(),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "x"])}
    ),
    "structured_outputs": st.dictionaries(
        st.sampled_from(["regex", "choice", "json", "grammar"]), st.text(max_size=6), max_size=2
    ),
    "speculative_config": st.dictionaries(
        st.sampled_from(["method", "num_speculative_tokens", "rejection_sample_method"]),
        st.sampled_from(["none", "ngram", "coupled", "block", 0, 3, 70]),
        max_size=3,
    ),
    "prediction": st.fixed_dictionaries({"type": st.just("content"), "content": NOISE}),
}


def bodies(wire):
    fields = set(wire.model_fields) - {"model"}
    field = st.sampled_from(sorted(fields)).flatmap(
        lambda name: st.tuples(st.just(name), LIKELY.get(name, NOISE) | NOISE)
    )
    base = {"model": "table", "max_tokens": 3}
    base |= (
        {"prompt": "ab"}
        if wire is CompletionRequest
        else {"messages": [{"role": "user", "content": "ab"}]}
    )
    return st.lists(field, max_size=4).map(lambda given: base | dict(given))


@pytest.mark.parametrize(
    ("path", "wire"),
    [("/v1/completions", CompletionRequest), ("/v1/chat/completions", ChatRequest)],
)
def test_no_body_breaks_the_server(kit_type, path, wire):
    """A body is answered or refused by the shape of OpenAI's errors; nothing else."""
    kit = kit_type()
    loop = asyncio.new_event_loop()
    context = kit.client()
    client = loop.run_until_complete(context.__aenter__())
    seen = set()

    @given(bodies(wire))
    @settings(
        max_examples=60,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    def check(body):
        if body["max_tokens"] is None:
            body["max_tokens"] = 3  # long answers are not what is tested
        content = json.dumps(body).encode()
        answer = loop.run_until_complete(
            client.post(path, content=content, headers={"content-type": "application/json"})
        )
        seen.add(answer.status_code)
        assert answer.status_code in (200, 400), (body, answer.text)
        if answer.status_code == 400:
            assert set(answer.json()["error"]) == {"message", "type", "param", "code"}

    try:
        check()
        loop.run_until_complete(asyncio.to_thread(kit.wait_idle))
    finally:
        loop.run_until_complete(context.__aexit__(None, None, None))
        loop.close()
    assert seen == {200, 400}


def test_the_two_endpoints_share_their_fields():
    assert set(GenerationRequest.model_fields) <= set(CompletionRequest.model_fields)
    assert set(GenerationRequest.model_fields) <= set(ChatRequest.model_fields)
