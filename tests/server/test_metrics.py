"""Metrics: the engines' names, definitions that add up, latency per token."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from draftproof.core.types import StepRecord
from draftproof.engine import GenerateRequest, StepOutput, TokenEvent
from draftproof.server.ledger import Ledger

COMPLETIONS = "/v1/completions"
BASE = {
    "model": "table",
    "prompt": "abcabc",
    "max_tokens": 60,
    "seed": 1,
    "logit_bias": {"96": -100},
}


def samples_of(text):
    return {
        (sample.name.removeprefix("draftproof:"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counters_equal_the_records_of_the_answers(kit):
    async def send():
        async with kit.client() as client:
            documents = []
            for temperature in (0, 0.7, 1.3):
                body = BASE | {"temperature": temperature, "n": 2}
                documents.append((await client.post(COMPLETIONS, json=body)).json())
            await asyncio.to_thread(kit.wait_idle)
            await client.post(COMPLETIONS, json=BASE | {"flavour": 1})
            return documents, samples_of((await client.get("/metrics")).text)

    documents, samples = asyncio.run(send())
    records = [choice["speculation"] for one in documents for choice in one["choices"]]

    def total(key):
        return sum(record[key] for record in records)

    assert samples["spec_decode_num_drafts_total",] == total("num_spec_steps") > 0
    assert samples["spec_decode_num_draft_tokens_total",] == total("num_draft_tokens")
    accepted = total("num_accepted_draft_tokens")
    assert samples["spec_decode_num_accepted_tokens_total",] == accepted
    for verdict, key in (("draft", "drafted"), ("accepted", "accepted")):
        per_drafter = [record[f"{key}_per_drafter"] for record in records]
        names = {name for one in per_drafter for name in one}
        assert names
        for name in names:
            counted = samples[f"spec_decode_num_{verdict}_tokens_per_drafter_total", name]
            assert counted == sum(one.get(name, 0) for one in per_drafter)
    name = "spec_decode_num_{}_tokens_per_pos_total"
    per_pos = [samples[name.format("accepted"), str(position)] for position in range(4)]
    assert sum(per_pos) == accepted
    assert per_pos == sorted(per_pos, reverse=True)
    drafted = [samples[name.format("drafted"), str(position)] for position in range(4)]
    assert sum(drafted) == total("num_draft_tokens")
    reached = [samples[name.format("reached"), str(position)] for position in range(4)]
    assert all(a <= r <= d for a, r, d in zip(per_pos, reached, drafted, strict=True))
    assert samples["generation_tokens_total",] == 6 * 60
    assert samples["prompt_tokens_total",] == 6 * 6
    assert samples["request_success_total", "length"] == 6
    assert samples["requests_refused_total", "400"] == 1
    sources = ("accepted", "recovered", "bonus", "sampled")
    by_source = [samples["generation_tokens_by_source_total", source] for source in sources]
    assert sum(by_source) == 6 * 60
    clock = kit.engine.core.clock
    for part in ("draft", "target", "verify", "policy", "other"):
        assert samples["step_seconds_total", part] == pytest.approx(getattr(clock, f"{part}_s"))
    assert samples["passes_total",] == kit.backend.num_calls
    assert samples["time_to_first_token_seconds_count",] == 6
    assert samples["num_requests_running",] == samples["num_requests_waiting",] == 0
    assert samples["kv_cache_usage_perc",] == 0
    assert samples["kv_cache_sequences",] == 0


def test_gauges_while_requests_wait(kit):
    kit.backend.gate.clear()

    async def send():
        async with kit.client() as client:
            running = [asyncio.create_task(client.post(COMPLETIONS, json=BASE)) for _ in range(3)]
            while kit.service.ledger.totals().num_waiting < 3:
                await asyncio.sleep(0.005)
            samples = samples_of((await client.get("/metrics")).text)
            kit.backend.gate.set()
            await asyncio.gather(*running)
            return samples

    assert asyncio.run(send())["num_requests_waiting",] == 3


@pytest.mark.parametrize("chunk", [1, 2, 4, 8, 16])
def test_latency_is_per_token(chunk):
    """ME-5: chunks of 4 tokens every 40 ms are 10 ms per token, not 40."""
    now = 100.0
    registry = CollectorRegistry()
    ledger = Ledger(registry, clock=lambda: now)
    ledger.accept(GenerateRequest((1,), max_tokens=99, request_id="a"), now)

    class Core:
        clock, num_preemptions = None, 0

    def give(count):
        record = StepRecord("a", 1, (), 0, (1,) * count, ("sampled",) * count)
        ledger.observe([StepOutput("a", (TokenEvent(1, "sampled"),) * count, record=record)], Core)

    give(1)
    for _ in range(20):
        now += 0.04
        give(chunk)
    get = registry.get_sample_value
    total = get("draftproof:inter_token_latency_seconds_sum")
    count = get("draftproof:inter_token_latency_seconds_count")
    assert count == 20 * chunk
    assert total / count == pytest.approx(0.04 / chunk)
    gaps = get("draftproof:inter_chunk_latency_seconds_sum")
    assert gaps / get("draftproof:inter_chunk_latency_seconds_count") == pytest.approx(0.04)
