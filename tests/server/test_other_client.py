"""A client that shares no code with ``openai``: Hugging Face's, unchanged, against a real port."""

from __future__ import annotations

import pytest

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def client(live):
    return hub.InferenceClient(base_url=live.url + "/v1", api_key="none", timeout=60)


def test_chat(client):
    answer = client.chat.completions.create(
        model="table", messages=MESSAGES, max_tokens=20, temperature=0.0, seed=1
    )
    assert answer.choices[0].message.role == "assistant"
    assert len(answer.choices[0].message.content) == answer.usage.completion_tokens == 20


def test_stream(client):
    asked = {
        "model": "table",
        "messages": MESSAGES,
        "max_tokens": 30,
        "temperature": 0.7,
        "seed": 5,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


def test_options_that_it_passes_on(client):
    extra = {"top_k": 1, "speculative_config": {"num_speculative_tokens": 0}}
    answer = client.chat.completions.create(
        model="table", messages=MESSAGES, max_tokens=10, seed=2, extra_body=extra
    )
    greedy = client.chat.completions.create(
        model="table", messages=MESSAGES, max_tokens=10, temperature=0.0
    )
    assert answer.choices[0].message.content == greedy.choices[0].message.content


def test_a_refusal_names_the_field(client):
    with pytest.raises(hub.errors.HfHubHTTPError, match="flavour"):
        client.chat.completions.create(
            model="table", messages=MESSAGES, extra_body={"flavour": "salt"}
        )
