"""Who may ask, what an answer carries, and what the log says."""

from __future__ import annotations

import asyncio
import json

import pytest

COMPLETIONS = "/v1/completions"
BASE = {"model": "table", "prompt": "a secret", "max_tokens": 5}


def test_headers_of_every_answer(kit):
    async def send():
        async with kit.client() as client:
            return [
                await client.get("/"),
                await client.get("/health"),
                await client.post(COMPLETIONS, json=BASE),
                await client.post(COMPLETIONS, json=BASE | {"stream": True}),
                await client.post(COMPLETIONS, json={}),
                await client.get("/nothing"),
            ]

    answers = asyncio.run(send())
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 400, 404]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-request-id"]
        assert "access-control-allow-origin" not in answer.headers


def test_request_ids(kit):
    async def send():
        async with kit.client() as client:
            given = ["my-id.7", "bad id\t", "x" * 65, ""]
            return [
                (await client.get("/health", headers={"x-request-id": one})).headers["x-request-id"]
                for one in given
            ]

    good, *others = asyncio.run(send())
    assert good == "my-id.7"
    assert all(one.startswith("req-") for one in others)
    assert len(set(others)) == 3


def test_api_key(kit_type):
    kit = kit_type(api_key="s3cret-key")

    async def send():
        async with kit.client() as client:
            statuses = {}
            for name, value in {
                "none": None,
                "wrong": "Bearer s3cret-kez",
                "part": "Bearer s3cret",
                "scheme": "Basic s3cret-key",
                "empty": "Bearer ",
                "odd": "Bearer s3cret-k\xe9y",
                "right": "Bearer s3cret-key",
            }.items():
                headers = {} if value is None else {"authorization": value.encode("latin-1")}
                answer = await client.get("/v1/models", headers=headers)
                statuses[name] = answer.status_code
            closed = [
                (await client.get(path)).status_code
                for path in ("/metrics", "/openapi.json", "/v1/models/table", "/nothing")
            ]
            opened = [(await client.get(path)).status_code for path in ("/", "/health")]
            refused = await client.post(COMPLETIONS, json=BASE)
            return statuses, closed, opened, refused

    statuses, closed, opened, refused = asyncio.run(send())
    assert statuses.pop("right") == 200
    assert set(statuses.values()) == {401}
    assert set(closed) == {401}
    assert opened == [200, 200]
    assert refused.json()["error"]["type"] == "authentication_error"
    assert refused.headers["www-authenticate"] == "Bearer"
    assert not any("s3cret" in line for line in kit.lines)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("mine.example", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("", 403),
    ],
)
def test_a_name_that_points_at_us_is_not_enough(kit_type, host, status):
    """Else a page elsewhere could use the server through the browser of its owner."""
    kit = kit_type(allowed_hosts=("mine.example",))
    assert kit.call("GET", "/health", headers={"host": host}).status_code == status


def test_any_host_where_others_may_come(kit_type):
    kit = kit_type(host="0.0.0.0")
    assert kit.call("GET", "/health", headers={"host": "box.lan"}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json(kit, kind):
    """What a page may post elsewhere without asking is refused."""
    answer = kit.call("POST", COMPLETIONS, content=json.dumps(BASE), headers={"content-type": kind})
    assert answer.status_code == 415


def test_cors_where_it_is_asked_for(kit_type):
    kit = kit_type(cors_origins=("https://app.example",))

    async def send():
        async with kit.client() as client:
            asking = {"access-control-request-method": "POST"}
            return [
                await client.options(COMPLETIONS, headers={"origin": origin} | asking)
                for origin in ("https://app.example", "https://evil.example")
            ]

    good, bad = asyncio.run(send())
    assert good.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in bad.headers


def test_body_limit(kit_type):
    kit = kit_type(max_body_bytes=2000)

    async def parts():
        for _ in range(3):
            yield b" " * 1000

    async def send():
        async with kit.client() as client:
            headers = {"content-type": "application/json"}
            announced = await client.post(COMPLETIONS, content=b" " * 3000, headers=headers)
            chunked = await client.post(COMPLETIONS, content=parts(), headers=headers)
            fits = await client.post(COMPLETIONS, json=BASE)
            return announced, chunked, fits

    answers = asyncio.run(send())
    assert [answer.status_code for answer in answers] == [413, 413, 200]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\\ud800", "model": "table"}',
        b"[" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_bodies_that_are_no_requests(kit, body):
    answer = kit.call(
        "POST", COMPLETIONS, content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_limits_of_tokens_and_choices(kit_type):
    kit = kit_type(max_tokens=20, max_choices=3)

    async def send():
        async with kit.client() as client:
            bodies = [
                {"max_tokens": 20},
                {"max_tokens": 21},
                {"n": 3},
                {"n": 4},
                {"prompt": ["a", "b"], "n": 2},
            ]
            return [
                (await client.post(COMPLETIONS, json=BASE | body)).status_code for body in bodies
            ]

    assert asyncio.run(send()) == [200, 400, 200, 400, 400]


@pytest.mark.parametrize(
    "path", ["/static/index.html", "/../settings.py", "/%2e%2e/app.py", "/index.html"]
)
def test_no_path_opens_a_file(kit, path):
    assert kit.call("GET", path).status_code == 404


@pytest.mark.parametrize("path", [COMPLETIONS, "/health"])
def test_other_methods(kit, path):
    answer = kit.call("DELETE", path)
    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_the_log_holds_no_prompt(kit):
    async def send():
        async with kit.client() as client:
            headers = {"x-request-id": "seen-1"}
            await client.post(COMPLETIONS, json=BASE | {"n": 2}, headers=headers)
            await client.post(COMPLETIONS, json=BASE | {"prompt": "a secret!"})
            await client.post(COMPLETIONS, json=BASE | {"stop": ["secret", 1]})

    asyncio.run(send())
    assert not any("secret" in line for line in kit.lines)
    good, failed, refused = (event for event in kit.events if event["event"] == "request")
    assert good["request_id"] == "seen-1"
    assert good["status"] == 200
    assert good["prompt_tokens"] == 8
    assert 0 < good["completion_tokens"] <= 10
    assert good["first_token_ms"] <= good["duration_ms"]
    assert good["exactness"] == ["exact-in-law"]
    assert (failed["status"], failed["error"]) == (500, "non_finite_logits")
    assert refused["status"] == 400


def test_the_log_holds_prompts_where_they_are_asked_for(kit_type):
    kit = kit_type(log_prompts=True)
    text = kit.post(COMPLETIONS, **BASE).json()["choices"][0]["text"]
    event = kit.events[0]
    assert event["prompt"] == {"prompt": "a secret"}
    assert event["texts"] == [text]


def test_a_defect_is_answered_and_its_message_kept(kit):
    """An exception may quote a prompt, so its text reaches neither client nor log."""

    def explode(*_args, **_options):
        raise KeyError("a secret")

    kit.engine.request = explode
    answer = kit.post(COMPLETIONS, **BASE)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error (KeyError)"
    assert not any("secret" in line for line in kit.lines)
    assert "KeyError at test_guard.py:" in kit.events[0]["raised"]
    assert kit.service.worker.num_in_flight == 0
