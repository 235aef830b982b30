"""What cannot be honoured is refused, by the name of the field."""

from __future__ import annotations

import asyncio

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BASE = {"model": "table", "prompt": "abcabc", "max_tokens": 40, "temperature": 0.9, "seed": 4}
OFF = {"speculative_config": {"num_speculative_tokens": 0}}

REFUSED = [
    ({"flavour": 1}, "flavour"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"suffix": "x"}, "suffix"),
    ({"tools": [{"type": "function"}]}, "tools"),
    ({"store": True}, "store"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": "2"}, "n"),
    ({"n": True}, "n"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"min_tokens": 41}, "min_tokens"),
    ({"min_tokens": 507, "max_tokens": 600}, "min_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs_mode": "half"}, "logprobs_mode"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"50": 101}}, "logit_bias.50"),
    ({"logit_bias": {"99": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 1025}, "stop"),
    ({"stop": [1]}, "stop.0"),
    ({"stop_token_ids": [99]}, "stop_token_ids"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"user": 5}, "user"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [1, 99]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt.1"),
    ({"prompt": "a" * 512}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_object", "x": 1}}, "response_format"),
    ({"response_format": {"type": "text"}, "structured_outputs": {}}, "response_format"),
    ({"structured_outputs": {"regex": "("}}, None),
    ({"structured_outputs": {"regex": "a" * 200_000}}, None),
    ({"structured_outputs": {"reggex": "a"}}, "structured_outputs"),
    ({"speculative_config": {"kappa": 3}}, "speculative_config.kappa"),
    (
        {"speculative_config": {"num_speculative_tokens": -1}},
        "speculative_config.num_speculative_tokens",
    ),
    (
        {"speculative_config": {"num_speculative_tokens": 65}},
        "speculative_config.num_speculative_tokens",
    ),
    ({"speculative_config": {"method": "eagle"}}, "speculative_config"),
    ({"speculative_config": {"method": "none", "num_speculative_tokens": 2}}, "speculative_config"),
    ({"speculative_config": {"rejection_sample_method": "magic"}}, None),
    ({"speculative_config": {"lenience": 0.5}}, None),
    ({"speculative_config": {"rejection_sample_method": "lenience", "lenience": 0.5}}, None),
    ({"prediction": "abc"}, "prediction"),
    ({"prediction": {"type": "content", "content": "x"}, **OFF}, "prediction"),
    (
        {
            "prediction": {"type": "content", "content": "x"},
            "speculative_config": {"method": "ngram"},
        },
        "prediction",
    ),
    ({"timeout_s": 1e6}, "timeout_s"),
    ({"timeout_s": 0.001}, "timeout_s"),
]


def test_refused(kit):
    async def send():
        async with kit.client() as client:
            return [await client.post(COMPLETIONS, json=BASE | fields) for fields, _ in REFUSED]

    for (fields, param), answer in zip(REFUSED, asyncio.run(send()), strict=True):
        shown = str(fields)[:80]
        assert answer.status_code == 400, (shown, answer.text)
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param, (shown, error)
        assert "\n" not in error["message"]
        if len(fields) == 1:
            assert next(iter(fields)) in error["message"] or param is None, (shown, error)
    assert kit.backend.num_calls == 0


CHAT_BASE = {"model": "table", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def test_refused_in_chats(kit):
    refused = [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "<|im_start|>", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
            "messages.0.content.0.type",
        ),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"max_completion_tokens": 5}, "max_tokens"),
        ({"functions": [{}]}, "functions"),
        ({"prompt": "x"}, "prompt"),
    ]

    async def send():
        async with kit.client() as client:
            return [await client.post(CHAT, json=CHAT_BASE | fields) for fields, _ in refused]

    for (fields, param), answer in zip(refused, asyncio.run(send()), strict=True):
        assert answer.status_code == 400, (fields, answer.text)
        assert answer.json()["error"]["param"] == param, (fields, answer.json())
