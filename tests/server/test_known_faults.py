"""Faults that engines in the field had, asked of ours through its server."""

from __future__ import annotations

import asyncio

import pytest

COMPLETIONS = "/v1/completions"
BASE = {
    "model": "table",
    "prompt": "abcabc",
    "max_tokens": 48,
    "seed": 9,
    "temperature": 0.8,
    "logit_bias": {"96": -100},
}


def answers_of(kit, bodies):
    async def send():
        async with kit.client() as client:
            return [await client.post(COMPLETIONS, json=body) for body in bodies]

    answers = asyncio.run(send())
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return [answer.json() for answer in answers]


def decoded(document):
    """Text and every count of a round."""
    choice = document["choices"][0]
    return (
        choice["text"],
        choice["speculation"]["per_step_accepted"],
        choice["speculation"]["per_step_drafted"],
    )


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_cold_warm_and_after_others(kit, method):
    """KV-5, NG-1, PF-3: nothing of an earlier request helps or harms a later one."""
    body = BASE | {"prompt": "xy" * 30, "speculative_config": {"method": method}}
    other = body | {"prompt": "xy" * 30 + "zw" * 20, "seed": 10, "max_tokens": 90}
    cold, warm, *_, after = answers_of(kit, [body, body, other, other, body])
    assert decoded(cold) == decoded(warm) == decoded(after)


def test_a_seed_gives_one_text_alone_and_in_a_crowd(kit):
    """SE-1: the same text alone, among others, and after them."""

    async def send():
        async with kit.client() as client:

            async def text(body):
                return (await client.post(COMPLETIONS, json=body)).json()["choices"][0]["text"]

            alone = await text(BASE)
            crowd = [text(BASE | {"seed": seed}) for seed in range(12)]
            return alone, (await asyncio.gather(*crowd))[9], await text(BASE)

    assert len(set(asyncio.run(send()))) == 1


@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_logprobs_do_not_depend_on_drafts(kit, mode):
    """LP-1: accepted, recovered and bonus tokens report what plain decoding reports."""
    body = BASE | {"logprobs": 3, "logprobs_mode": mode}
    rule = {"rejection_sample_method": "coupled"}
    on, off = answers_of(
        kit,
        [
            body | {"speculative_config": {"num_speculative_tokens": kappa} | rule}
            for kappa in (6, 0)
        ],
    )
    sources = on["choices"][0]["speculation"]["committed_per_source"]
    assert min(sources[source] for source in ("accepted", "recovered", "bonus")) > 0
    left, right = on["choices"][0]["logprobs"], off["choices"][0]["logprobs"]
    assert left["tokens"] == right["tokens"]
    assert left["token_logprobs"] == pytest.approx(right["token_logprobs"], abs=1e-4)
    for best, expected in zip(left["top_logprobs"], right["top_logprobs"], strict=True):
        assert best == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("length", range(26, 32))
def test_the_edge_of_the_context(tools, kit_type, length):
    """CR-1: drafts end where the context does, and the next request works."""
    kit = kit_type(engine=tools.make_engine(kappa=8, context_length=32), kappa=8)
    body = BASE | {"prompt": "ab" * (length // 2) + "a" * (length % 2), "temperature": 0}
    off = body | {"speculative_config": {"num_speculative_tokens": 0}}
    on, plain, following = answers_of(kit, [body, off, BASE | {"max_tokens": 5}])
    assert on["choices"][0]["text"] == plain["choices"][0]["text"]
    assert on["choices"][0]["finish_reason"] == "length"
    assert on["usage"]["completion_tokens"] == 32 - length
    assert following["usage"]["completion_tokens"] == 5


@pytest.mark.parametrize("kappa", [1, 3, 12])
@pytest.mark.parametrize("budget", [1, 2, 5])
def test_budgets(kit, kappa, budget):
    """ST-4: never a token more than asked for, and no draft where one token is asked for."""
    body = BASE | {"prompt": "MMMMMMMM", "temperature": 0, "max_tokens": budget}
    on, off = answers_of(
        kit,
        [body | {"speculative_config": {"num_speculative_tokens": k}} for k in (kappa, 0)],
    )
    assert on["usage"]["completion_tokens"] == budget
    assert on["choices"][0]["text"] == off["choices"][0]["text"]
    if budget == 1:
        assert on["choices"][0]["speculation"]["num_draft_tokens"] == 0


def test_an_end_inside_a_block(kit, tools):
    """ST-1: text ends at an end token wherever it stands in a block; nothing follows it."""
    options = {"temperature": 0, "return_token_ids": True}
    (free,) = answers_of(kit, [BASE | options])
    ids = free["choices"][0]["token_ids"]
    firsts = [at for at in range(1, 20) if ids[at] not in ids[:at]]
    assert len(firsts) > 1
    bodies = [BASE | options | {"stop_token_ids": [ids[at]]} for at in firsts]
    for at, document in zip(firsts, answers_of(kit, bodies), strict=True):
        choice = document["choices"][0]
        assert choice["token_ids"] == ids[: at + 1]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", ids[at])


def test_a_drafter_that_declines_has_no_rate(kit):
    """ME-4: without drafts a rate is null, neither 0 nor 1."""
    body = BASE | {"prompt": "a", "max_tokens": 2}
    (document,) = answers_of(kit, [body])
    record = document["metrics"]["speculative_decoding"]
    assert record["num_draft_tokens"] == record["num_spec_steps"] == 0
    assert record["draft_acceptance_rate"] is None
    assert record["mean_acceptance_length"] is None
    assert record["acceptance_histogram"] == [0] * 5


def test_a_notice_where_a_drafter_was_silent(kit):
    """SO-5: a drafter that never drafts is reported, with its reason."""
    body = BASE | {"speculative_config": {"method": "prediction"}, "max_tokens": 8}
    (document,) = answers_of(kit, [body])
    notes = document["choices"][0]["speculation"]["notes"]
    assert any("prediction" in note for note in notes), notes
