"""What clients rely on, in combination: usage that adds up, schemas, penalties, names of fields."""

from __future__ import annotations

import asyncio
import json

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EOS = 96
BASE = {
    "model": "table",
    "prompt": "abcabc",
    "max_tokens": 40,
    "seed": 5,
    "temperature": 0.9,
    "logit_bias": {str(EOS): -100},
}
COUPLED = {"rejection_sample_method": "coupled"}
OFF = {"speculative_config": COUPLED | {"num_speculative_tokens": 0}}


def ask(kit, *bodies, path=COMPLETIONS):
    async def send():
        async with kit.client() as client:
            return [await client.post(path, json=body) for body in bodies]

    return asyncio.run(send())


def text_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.8}],
    ids=str,
)
def test_penalties_count_every_token_of_a_block(kit, penalty):
    """PR-1: a drafter that is always right changes nothing of what penalties do."""
    plain = text_of(*ask(kit, BASE | penalty | OFF))
    told = BASE | penalty | {"prediction": {"type": "content", "content": plain}}
    (answer,) = ask(kit, told | {"speculative_config": COUPLED})
    assert text_of(answer) == plain
    record = answer.json()["choices"][0]["speculation"]
    assert record["num_rounds"] < 15
    assert text_of(*ask(kit, BASE | OFF)) != plain


@pytest.mark.parametrize("kappa", [0, 1, 7])
def test_the_least_length_is_counted_in_tokens(kit, kappa):
    """PR-1: a model that always wants to end does so at the first place where it may."""
    body = BASE | {
        "logit_bias": {str(EOS): 100},
        "min_tokens": 20,
        "return_token_ids": True,
        "speculative_config": COUPLED | {"num_speculative_tokens": kappa},
    }
    (answer,) = ask(kit, body)
    assert answer.json()["choices"][0]["token_ids"].index(EOS) == 20
    assert answer.json()["usage"]["completion_tokens"] == 21


def test_usage_adds_up(kit, tools):
    """Prompts count once, tokens once each, and rejected predictions not at all."""
    (plain,) = ask(kit, BASE | {"temperature": 0})
    guess = text_of(plain)[:20] + "zqzqzqzq"
    body = BASE | {
        "temperature": 0,
        "prompt": ["abcabc", "xyz"],
        "n": 2,
        "prediction": {"type": "content", "content": guess},
        "stop": text_of(plain)[30:33],
    }
    stream = body | {"stream": True, "stream_options": {"include_usage": True}}
    whole, streamed = ask(kit, body, stream)
    document = whole.json()
    usage = document["usage"]
    assert usage["prompt_tokens"] == len("abcabc") + len("xyz")
    records = [choice["speculation"] for choice in document["choices"]]
    assert usage["completion_tokens"] == sum(one["num_committed_tokens"] for one in records)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 0
    assert details["rejected_prediction_tokens"] > 0
    drafted = sum(one["num_draft_tokens"] for one in records)
    assert sum(details.values()) == drafted
    assert tools.read_events(streamed.text)[-1]["usage"] == usage


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kappa", [0, 6])
def test_a_schema_holds_under_speculation(kit, tools, stream, kappa):
    schema = {
        "type": "object",
        "properties": {
            "name": {"enum": ["ada", "bob"]},
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2, "maxItems": 3},
        },
        "required": ["name", "ok", "tags"],
        "additionalProperties": False,
    }
    body = {
        "model": "table",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 300,
        "seed": 3,
        # This model loves white space, of which JSON allows any amount.
        "logit_bias": {"0": -100, "1": -100},
        "response_format": {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
        "speculative_config": COUPLED | {"num_speculative_tokens": kappa},
        "stream": stream,
    }
    (answer,) = ask(kit, body, path=CHAT)
    if stream:
        chunks = tools.read_events(answer.text)
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        end = chunks[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = answer.json()["choices"]
        text, end = choice["message"]["content"], choice["finish_reason"]
    assert end == "stop"
    found = json.loads(text)
    assert found["name"] in ("ada", "bob")
    assert found["ok"] in (True, False)
    assert 2 <= len(found["tags"]) <= 3
    assert set(found["tags"]) <= {"x", "y"}


def test_all_unknown_fields_are_named_at_once(kit):
    unknown = {"flavour": 1, "colour": None, "nested": {"a": 1}, "stream_optoins": {}}
    (answer,) = ask(kit, BASE | unknown)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "unknown or unsupported fields: flavour, colour, nested, stream_optoins" in message
    assert kit.backend.num_calls == 0


def test_stops_of_several_kinds_end_each_completion_where_its_own_text_says(kit, tools):
    """Stop strings that span tokens, chunks and completions; half a stop is printed at the end."""
    (free,) = ask(kit, BASE | {"n": 3})
    texts = [choice["text"] for choice in free.json()["choices"]]
    stops = [texts[0][11:15], texts[1][20:22], "never~~there"]
    body = BASE | {"n": 3, "stop": stops, "stream": True}
    (answer,) = ask(kit, body)
    shown = ["", "", ""]
    for chunk in tools.read_events(answer.text):
        (choice,) = chunk["choices"]
        shown[choice["index"]] += choice["text"]
    for text, cut in zip(texts, shown, strict=True):
        ends = [text.index(stop) for stop in stops if stop in text]
        assert cut == text[: min(ends, default=len(text))]
