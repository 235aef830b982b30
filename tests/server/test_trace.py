"""`return_trace`: how each round was decided, in numbers that add up to the answer."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
#: The end token and half characters are forbidden, so that every token is a character.
BASE = {
    "model": "table",
    "prompt": "abcabc",
    "max_tokens": 90,
    "temperature": 0.8,
    "seed": 4,
    "logit_bias": {"96": -100, "97": -100},
    "return_trace": True,
}
RULES = ["standard", "block", "coupled", "sample-match"]


def ask(kit, *bodies, path=COMPLETIONS):
    async def send():
        async with kit.client() as client:
            return [await client.post(path, json=body) for body in bodies]

    answers = asyncio.run(send())
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return answers


def with_rule(rule, **more):
    return BASE | {"speculative_config": {"rejection_sample_method": rule, **more}}


@pytest.mark.parametrize("rule", RULES)
def test_a_stream_carries_what_the_whole_answer_carries(kit, tools, rule):
    body = with_rule(rule)
    whole, stream = ask(kit, body, body | {"stream": True})
    traces = whole.json()["choices"][0]["traces"]
    streamed = [chunk["choices"][0]["trace"] for chunk in tools.read_events(stream.text)]
    # These differ between two runs; the second finds the prompt in the cache.
    for trace in (*traces, *streamed):
        assert set(trace.pop("seconds")) == {"draft", "target", "verify", "other"}
        trace.pop("step")
        trace.pop("pass_tokens")
    assert traces == streamed
    assert [trace["round"] for trace in traces] == list(range(len(traces)))


@pytest.mark.parametrize("rule", RULES)
def test_traces_add_up_to_text_and_counters(kit, rule):
    (answer,) = ask(kit, with_rule(rule))
    choice = answer.json()["choices"][0]
    traces, record = choice["traces"], choice["speculation"]
    entries = [entry for trace in traces for entry in trace["committed"]]
    assert "".join(entry["shown"] for entry in entries) == choice["text"]
    assert len(entries) == record["num_committed_tokens"]
    assert len(traces) == record["num_rounds"]
    drafting = [trace for trace in traces if trace["drafts"]]
    verdicts = [[draft["verdict"] for draft in trace["drafts"]] for trace in drafting]
    assert [len(one) for one in verdicts] == record["per_step_drafted"]
    assert [one.count("accepted") for one in verdicts] == record["per_step_accepted"]
    for one in verdicts:
        # A chain: kept, then at most one rejected, then those that nobody judged.
        assert one == sorted(one, key=["accepted", "rejected", "unjudged"].index)
    position = 6
    for trace in traces:
        assert trace["start"] == position
        position += len(trace["committed"])


@pytest.mark.parametrize("rule", RULES)
def test_committed_tokens_point_at_their_drafts(kit, rule):
    (answer,) = ask(kit, with_rule(rule))
    traces = answer.json()["choices"][0]["traces"]
    sources = {entry["source"] for trace in traces for entry in trace["committed"]}
    assert {"accepted", "recovered", "sampled"} <= sources
    for trace in traces:
        for entry in trace["committed"]:
            if entry["draft"] is None:
                assert entry["source"] != "accepted"
                assert entry["id"] == trace["next"]["id"]
                continue
            draft = trace["drafts"][entry["draft"]]
            assert (draft["id"], draft["verdict"]) == (entry["id"], "accepted")
        for draft in trace["drafts"]:
            assert draft["q"] is None  # these drafters copy
            assert (draft["p"] is None) == (draft["verdict"] == "unjudged")


def test_coins_decide_as_the_standard_rule_says(kit):
    (answer,) = ask(kit, with_rule("standard"))
    judged = [
        draft
        for trace in answer.json()["choices"][0]["traces"]
        for draft in trace["drafts"]
        if draft["verdict"] != "unjudged"
    ]
    assert len({draft["verdict"] for draft in judged}) == 2
    for draft in judged:
        assert 0.0 <= draft["coin"] < 1.0
        assert (draft["coin"] < draft["p"]) == (draft["verdict"] == "accepted")


def test_probabilities_are_those_of_the_reported_law(kit):
    """The p of an emitted token is its log probability under the policy."""
    (answer,) = ask(kit, with_rule("coupled") | {"logprobs": 0, "logprobs_mode": "processed"})
    choice = answer.json()["choices"][0]
    reported = iter(choice["logprobs"]["token_logprobs"])
    for trace in choice["traces"]:
        for entry in trace["committed"]:
            draft = entry["draft"]
            p = trace["next"]["p"] if draft is None else trace["drafts"][draft]["p"]
            assert math.isclose(math.log(p), next(reported), abs_tol=1e-6)


def test_a_trace_changes_no_text_and_is_not_sent_unasked(kit):
    traced = with_rule("block")
    plain = {key: value for key, value in traced.items() if key != "return_trace"}
    with_trace, without = (answer.json()["choices"][0] for answer in ask(kit, traced, plain))
    assert with_trace["text"] == without["text"]
    assert "traces" not in without


def test_half_characters_show_with_the_token_that_completes_them(kit):
    body = BASE | {"logit_bias": {"96": -100, "97": 3}, "temperature": 1}
    (answer,) = ask(kit, body)
    choice = answer.json()["choices"][0]
    assert "é" in choice["text"]
    entries = [entry for trace in choice["traces"] for entry in trace["committed"]]
    for first, second in itertools.pairwise(entries):
        if first["id"] == 97:
            assert first["text"] == "bytes:\\xc3"
            assert (first["shown"], second["shown"]) == ("", "é")


def test_a_stop_cuts_what_is_committed(kit):
    (free,) = ask(kit, BASE | {"temperature": 0})
    text = free.json()["choices"][0]["text"]
    stop = text[40:42]
    (cut,) = ask(kit, BASE | {"temperature": 0, "stop": stop})
    choice = cut.json()["choices"][0]
    entries = [entry for trace in choice["traces"] for entry in trace["committed"]]
    assert "".join(entry["shown"] for entry in entries) == text[: text.index(stop)]
    assert len(entries) == cut.json()["usage"]["completion_tokens"]


def test_several_completions_of_a_chat(kit, tools):
    body = {key: value for key, value in BASE.items() if key != "prompt"}
    body |= {"messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 20}
    whole, stream = ask(kit, body, body | {"stream": True}, path=CHAT)
    texts = ["", "", ""]
    for chunk in tools.read_events(stream.text):
        (choice,) = chunk["choices"]
        for entry in choice.get("trace", {"committed": []})["committed"]:
            texts[choice["index"]] += entry["shown"]
    assert texts == [choice["message"]["content"] for choice in whole.json()["choices"]]
    assert len(set(texts)) == 3
