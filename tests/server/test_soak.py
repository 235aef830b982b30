"""A crowd of unequal requests, some of which leave: everybody else gets what is theirs."""

from __future__ import annotations

import asyncio
import gc
import random

import httpx

from draftproof.engine import Engine, GenerateResult, StepOutput
from draftproof.engine.session import Session
from draftproof.server.generation import Generation
from draftproof.server.worker import Ticket

NUM_REQUESTS, NUM_AT_ONCE = 500, 64
SHARE_LEAVING, SHARE_LATE = 0.15, 0.05
POLICIES = [
    {"temperature": 0},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.0, "frequency_penalty": 0.5, "presence_penalty": 0.3},
]
SPECULATION = [
    None,
    {"num_speculative_tokens": 0},
    {"method": "ngram", "num_speculative_tokens": 7},
    {"method": "suffix", "rejection_sample_method": "coupled"},
    {"method": "suffix", "rejection_sample_method": "block"},
    {"method": "ngram", "rejection_sample_method": "sample-match"},
]
#: What lives no longer than its request.
SHORT_LIVED = (Session, Ticket, Generation, GenerateResult, StepOutput)


def make_body(index, coin):
    body = {
        "model": "table",
        "prompt": "ab" * coin.randint(1, 30) + str(index),
        "max_tokens": coin.choice([1, 4, 16, 40]),
        "seed": index,
        "stream": coin.random() < 0.5,
        **POLICIES[index % len(POLICIES)],
    }
    spec = coin.choice(SPECULATION)
    return body if spec is None else body | {"speculative_config": spec}


def make_plans(coin):
    """Bodies, and after how many seconds their client leaves or their deadline passes."""
    plans = []
    for index in range(NUM_REQUESTS):
        body, leave_s, fate = make_body(index, coin), None, coin.random()
        if fate < SHARE_LEAVING:
            body["max_tokens"], leave_s = 300, coin.random()
        elif fate < SHARE_LEAVING + SHARE_LATE:
            body |= {"max_tokens": 400, "ignore_eos": True, "timeout_s": 0.01 + coin.random() / 5}
        plans.append((body, leave_s))
    return plans


def solo_text(engine: Engine, body):
    """What an engine gives the request alone, by a way that is not the server's."""
    spec = dict(body.get("speculative_config") or {})
    left_out = ("model", "prompt", "stream", "speculative_config", "timeout_s")
    options = {key: value for key, value in body.items() if key not in left_out}
    default = {"ngram": 5, "suffix": 8}.get(spec.get("method"))
    options |= {
        "num_speculative_tokens": spec.get("num_speculative_tokens", default),
        "proposer": spec.get("method"),
        "rule": spec.get("rejection_sample_method"),
    }
    return engine.generate(body["prompt"], **options).text


async def ask(client, body, tools, leave_s):
    """Return the text, or None for who left or came too late."""
    try:
        async with asyncio.timeout(leave_s):
            answer = await client.post("/v1/completions", json=body)
    except TimeoutError:
        return None
    if "timeout_s" in body and (answer.status_code == 504 or '"deadline_exceeded"' in answer.text):
        return None
    assert answer.status_code == 200, answer.text
    if not body["stream"]:
        return answer.json()["choices"][0]["text"]
    chunks = tools.read_events(answer.text)
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


async def crowd(url, plans, tools, snapshots):
    """Ask everything, some at a time; read the counters now and then."""
    places, reading = asyncio.Semaphore(NUM_AT_ONCE), asyncio.Lock()
    limits = httpx.Limits(max_connections=2 * NUM_AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def one(index, body, leave_s):
            async with places:
                text = await ask(client, body, tools, leave_s)
            if index % 10 == 0:
                async with reading:  # else the later answer may hold the earlier numbers
                    snapshots.append(read_counters((await client.get("/metrics")).text))
            return text

        asked = (one(index, *plan) for index, plan in enumerate(plans))
        return await asyncio.gather(*asked)


def test_soak(kit_type, tools):
    """SV-1: 500 requests, 64 at once, a fifth of which leave or come too late."""
    kit = kit_type(max_rows=32)
    plans = make_plans(random.Random(20))
    snapshots, earlier = [], alive()
    with kit.listening() as url:
        texts = asyncio.run(crowd(url, plans, tools, snapshots))
        kit.wait_idle()
        last = read_counters(httpx.get(url + "/metrics").text)
        assert not [type(one) for one in alive() if not any(one is old for old in earlier)]
    finished = [index for index, text in enumerate(texts) if text is not None]
    steady = [
        i for i, (body, leave_s) in enumerate(plans) if leave_s is None and "timeout_s" not in body
    ]
    assert set(steady) <= set(finished)
    assert len(finished) < NUM_REQUESTS
    alone = tools.make_engine(kappa=4)
    for index in finished:
        assert texts[index] == solo_text(alone, plans[index][0]), plans[index][0]
    for before, after in zip(snapshots, [*snapshots[1:], last], strict=True):
        assert not {name for name, value in before.items() if value > after[name]}
    assert last['draftproof:request_success_total{finished_reason="error"}'] == 0
    assert last['draftproof:request_success_total{finished_reason="abort"}'] > 20
    usage = kit.backend.usage
    assert usage.free_pages + usage.evictable_pages == usage.total_pages
    assert sum(kit.service.ledger.totals().finished.values()) <= NUM_REQUESTS


def alive():
    """Return what should go with its request and is still referred to."""
    gc.collect()
    return [one for one in gc.get_objects() if isinstance(one, SHORT_LIVED)]


def read_counters(text):
    """Every sample that may only grow, by name and labels."""
    samples = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        kind = name.partition("{")[0]
        if not line.startswith("#") and kind.endswith(("_total", "_count", "_bucket", "_sum")):
            samples[name] = float(value)
    return samples
