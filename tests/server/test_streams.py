"""Streams: every token, in order, whole characters, stop strings held back."""

from __future__ import annotations

import asyncio
import itertools

import pytest

COMPLETIONS = "/v1/completions"
#: The end token is forbidden, so that every text has its full length.
BASE = {
    "model": "table",
    "prompt": "abcabc",
    "max_tokens": 48,
    "seed": 3,
    "temperature": 0.7,
    "logit_bias": {"96": -100},
}


def gather(kit, bodies):
    """Post bodies one after the other to one service."""

    async def send():
        async with kit.client() as client:
            return [await client.post(COMPLETIONS, json=body) for body in bodies]

    answers = asyncio.run(send())
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return answers


@pytest.mark.parametrize("kappa", range(0, 9))
def test_deltas_concatenate_to_the_whole_text(kit, tools, kappa):
    body = BASE | {"speculative_config": {"num_speculative_tokens": kappa}}
    options = {"logprobs": 1, "return_token_ids": True}
    whole, stream, reported = gather(
        kit, [body, body | {"stream": True}, body | {"stream": True} | options]
    )
    expected = whole.json()
    chunks = tools.read_events(stream.text)
    assert (
        "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected["choices"][0]["text"]
    )
    assert "�" not in stream.text
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    chunks = tools.read_events(reported.text)
    ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    logprobs = [
        value for chunk in chunks for value in chunk["choices"][0]["logprobs"]["token_logprobs"]
    ]
    assert len(ids) == len(logprobs) == expected["usage"]["completion_tokens"]
    if kappa:
        assert any(len(chunk["choices"][0]["token_ids"]) > 1 for chunk in chunks)


def test_characters_whose_bytes_span_tokens(kit, tools):
    """Each of the two bytes is a token; the first shows nothing, the second the whole."""
    body = BASE | {"logit_bias": {"96": -100, "97": 3}, "max_tokens": 60, "temperature": 1}
    whole, stream = gather(kit, [body, body | {"stream": True, "logprobs": 2}])
    text = whole.json()["choices"][0]["text"]
    assert text.count("é") > 3
    chunks = tools.read_events(stream.text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text
    tokens = [t for chunk in chunks for t in chunk["choices"][0]["logprobs"]["tokens"]]
    offsets = [o for chunk in chunks for o in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert len(tokens) == 60
    for token, offset in zip(tokens, offsets, strict=True):
        shown = {"bytes:\\xc3": "é", "bytes:\\xa9": "é"}.get(token, token)
        assert text[offset : offset + 1] in (shown, ""), (token, offset)


def test_an_unfinished_character_is_marked_only_at_the_end(kit, tools):
    body = BASE | {"logit_bias": {"97": 100}, "max_tokens": 1}
    whole, stream = gather(kit, [body, body | {"stream": True}])
    assert whole.json()["choices"][0]["text"] == "�"
    chunks = tools.read_events(stream.text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "�"


def test_stop_strings_at_every_offset(kit, tools):
    """Wherever a stop completes in a block, nothing of it is sent and ids end with it."""
    options = {"return_token_ids": True, "logprobs": 0}
    (free,) = gather(kit, [BASE | options])
    text = free.json()["choices"][0]["text"]
    stops = [text[at : at + width] for at, width in itertools.product(range(4, 40, 5), (1, 2, 4))]
    stops = [stop for stop in stops if "é" not in stop]
    bodies = [BASE | options | {"stop": stop} for stop in stops]
    answers = gather(kit, [*bodies, *(body | {"stream": True} for body in bodies)])
    half = len(bodies)
    for stop, whole, stream in zip(stops, answers[:half], answers[half:], strict=True):
        document = whole.json()
        choice = document["choices"][0]
        assert choice["text"] == text[: text.index(stop)]
        assert choice["stop_reason"] == stop
        count = document["usage"]["completion_tokens"]
        assert count == len(choice["token_ids"]) == len(choice["logprobs"]["tokens"])
        chunks = tools.read_events(stream.text)
        shown = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        assert shown == choice["text"]
        ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
        assert ids == choice["token_ids"]


def test_usage_chunk(kit, tools):
    body = BASE | {"n": 3, "stream": True}
    with_usage, without = gather(kit, [body | {"stream_options": {"include_usage": True}}, body])
    chunks = tools.read_events(with_usage.text)
    assert chunks[-1]["choices"] == []
    counts = {
        chunk["choices"][0]["index"]: chunk["choices"][0]["speculation"]["num_committed_tokens"]
        for chunk in chunks[:-1]
        if chunk["choices"][0]["finish_reason"]
    }
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == sum(counts.values())
    assert usage["prompt_tokens"] == 6
    assert not any("usage" in chunk for chunk in tools.read_events(without.text))


def test_rounds(kit, tools):
    """What was drafted and rejected can be shown next to what was emitted."""
    options = {"return_rounds": True, "logit_bias": {"96": -100, "97": -100}}
    whole, stream = gather(kit, [BASE | options, BASE | options | {"stream": True}])
    rounds = whole.json()["choices"][0]["rounds"]
    streamed = [chunk["choices"][0]["round"] for chunk in tools.read_events(stream.text)]
    assert rounds == streamed
    for one in rounds:
        kept = one["drafted"][: one["num_accepted"]]
        emitted = [{"id": token["id"], "text": token["text"]} for token in one["emitted"]]
        assert emitted[: len(kept)] == kept[: len(emitted)]
    text = "".join(token["text"] for one in rounds for token in one["emitted"])
    assert text == whole.json()["choices"][0]["text"]
    assert sum(len(one["drafted"]) > one["num_accepted"] for one in rounds)


def test_record_identities(kit):
    (answer,) = gather(kit, [BASE | {"max_tokens": 200}])
    record = answer.json()["metrics"]["speculative_decoding"]
    accepted, drafted = record["per_step_accepted"], record["per_step_drafted"]
    histogram = record["acceptance_histogram"]
    assert len(accepted) == len(drafted) == record["num_spec_steps"] == sum(histogram)
    assert all(0 <= kept <= made <= 4 for kept, made in zip(accepted, drafted, strict=True))
    moment = sum(index * count for index, count in enumerate(histogram))
    assert moment == sum(accepted) == record["num_accepted_draft_tokens"] > 0
    assert sum(drafted) == record["num_draft_tokens"]
    assert record["draft_acceptance_rate"] == sum(accepted) / sum(drafted)
    assert record["mean_acceptance_length"] == 1 + sum(accepted) / len(accepted)
    ours = answer.json()["choices"][0]["speculation"]
    assert ours["num_committed_tokens"] == 200 == sum(ours["committed_per_source"].values())
    assert ours["num_rounds"] + record["num_accepted_draft_tokens"] >= 200
