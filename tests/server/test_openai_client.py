"""The client that people have, unchanged, against a real port."""

from __future__ import annotations

import json

import openai
import pytest


@pytest.fixture(scope="module")
def client(live):
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


CHAT = {"model": "table", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}


def test_completion(client):
    answer = client.completions.create(model="table", prompt="abc", max_tokens=20, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 20
    assert answer.usage.prompt_tokens == 3
    assert answer.usage.total_tokens == 23
    assert len(answer._request_id) > 4


def test_several_prompts_and_n(client):
    prompts = ["abc", "xyz"]
    answer = client.completions.create(
        model="table", prompt=prompts, n=2, max_tokens=9, temperature=1, seed=5
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.prompt_tokens == 6
    assert answer.usage.completion_tokens == sum(
        choice.speculation["num_committed_tokens"] for choice in answer.choices
    )
    for prompt, pair in zip(prompts, (answer.choices[:2], answer.choices[2:]), strict=True):
        alone = client.completions.create(
            model="table", prompt=prompt, n=2, max_tokens=9, temperature=1, seed=5
        )
        assert [choice.text for choice in alone.choices] == [choice.text for choice in pair]
    assert answer.choices[0].text != answer.choices[1].text


def test_token_ids_as_prompt(client):
    by_text = client.completions.create(model="table", prompt="abc", max_tokens=9, temperature=0)
    ids = [66, 67, 68]
    by_ids = client.completions.create(model="table", prompt=ids, max_tokens=9, temperature=0)
    both = client.completions.create(model="table", prompt=[ids, ids], max_tokens=9, temperature=0)
    texts = [choice.text for answer in (by_text, by_ids, both) for choice in answer.choices]
    assert len(set(texts)) == 1


def test_completion_logprobs(client):
    answer = client.completions.create(
        model="table", prompt="abc", max_tokens=12, temperature=0, logprobs=3
    )
    reported = answer.choices[0].logprobs
    assert "".join(reported.tokens) == answer.choices[0].text
    assert reported.text_offset == list(range(12))
    for token, logprob, best in zip(
        reported.tokens, reported.token_logprobs, reported.top_logprobs, strict=True
    ):
        assert len(best) == 3
        assert best[token] == logprob == max(best.values())


def test_chat(client):
    answer = client.chat.completions.create(**CHAT, max_tokens=20, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert len(entries) == answer.usage.completion_tokens == 20
    for entry in entries:
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.top_logprobs[0].token == entry.token


def test_chat_stream(client):
    whole = client.chat.completions.create(**CHAT, max_tokens=30)
    chunks = list(
        client.chat.completions.create(
            **CHAT, max_tokens=30, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "length"
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_of_several(client):
    asked = {"model": "table", "prompt": "abc", "n": 3, "max_tokens": 12, "seed": 2}
    whole = client.completions.create(**asked)
    texts = ["", "", ""]
    for chunk in client.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_seed_stop_and_bias(client):
    asked = {"model": "table", "prompt": "abc", "max_tokens": 40, "seed": 11}
    first = client.completions.create(**asked).choices[0].text
    assert client.completions.create(**asked).choices[0].text == first
    assert client.completions.create(**asked | {"seed": 12}).choices[0].text != first
    stop = first[5:7]
    cut = client.completions.create(**asked, stop=[stop]).choices[0]
    assert cut.text == first[: first.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    biased = client.completions.create(**asked, logit_bias={"35": 100}).choices[0].text
    assert biased == "B" * 40


def test_response_format(client):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        **CHAT,
        max_tokens=200,
        # This model loves white space, of which JSON allows any amount.
        logit_bias={"0": -100, "1": -100},
        response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content)["a"] in ("x", "y")
    assert answer.choices[0].finish_reason == "stop"


def test_prediction(client):
    plain = client.chat.completions.create(**CHAT, max_tokens=40)
    text = plain.choices[0].message.content
    told = client.chat.completions.create(
        **CHAT, max_tokens=40, prediction={"type": "content", "content": text}
    )
    assert told.choices[0].message.content == text
    details = told.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 20
    assert told.usage.completion_tokens == 40
    wrong = client.chat.completions.create(
        **CHAT, max_tokens=40, prediction={"type": "content", "content": text[:6] + "zq" * 17}
    )
    assert wrong.choices[0].message.content == text
    assert wrong.usage.completion_tokens_details.rejected_prediction_tokens > 0


def test_models(client):
    (model,) = client.models.list().data
    assert model.id == "table"
    assert client.models.retrieve("table").id == "table"
    cache = model.draftproof["kv_cache"]
    pages = cache["pages"]
    assert pages["held"] + pages["free"] + pages["evictable"] == pages["total"] == 512
    assert cache["total_tokens"] == pages["total"] * cache["page_size"]
    assert cache["num_sequences"] == 0
    assert model.draftproof["chooses_lengths"] is False
    for row in cache["max_concurrency"]:
        assert row["speculative"] <= row["plain"]


@pytest.mark.parametrize("name", ["other", "../../etc/passwd", "/etc/passwd", "table.gguf", ""])
def test_no_model_name_is_looked_up(client, name):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model=name, prompt="abc")
    assert caught.value.code == "model_not_found"


def test_bad_request(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, extra_body={"flavour": "salt"})
    assert caught.value.param == "flavour"
    assert "flavour" in caught.value.message


def test_error_inside_a_stream(client):
    """The status is sent by then: the client raises all the same."""
    with pytest.raises(openai.APIError, match="NaN"):
        list(client.completions.create(model="table", prompt="abc!", stream=True))


def test_asynchronous_client(live):
    import asyncio

    async def ask():
        async with openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="none") as client:
            asked = [
                client.completions.create(model="table", prompt="ab" + str(i), seed=i, max_tokens=9)
                for i in range(8)
            ]
            return await asyncio.gather(*asked)

    assert [answer.usage.completion_tokens for answer in asyncio.run(ask())] == [9] * 8
