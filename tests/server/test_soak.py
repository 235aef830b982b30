"""A crowd of unequal requests, some of which leave: everybody else gets what is theirs."""

from __future__ import annotations

import asyncio
import random

import httpx

from draftproof.engine import Engine

NUM_REQUESTS, NUM_AT_ONCE, SHARE_LEAVING = 60, 16, 0.2
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
    {"method": "ngram", "rejection_sample_method": "sample-match"},
]


def make_body(index, coin):
    body = {
        "model": "table",
        "prompt": "ab" * coin.randint(1, 40) + str(index),
        "max_tokens": coin.randint(1, 120),
        "seed": index,
        "stream": coin.random() < 0.5,
        **POLICIES[index % len(POLICIES)],
    }
    spec = SPECULATION[coin.randrange(len(SPECULATION))]
    return body if spec is None else body | {"speculative_config": spec}


def solo_text(tools, body):
    """What the engine gives the request alone, by a way that is not the server's."""
    engine: Engine = tools.make_engine(kappa=4)
    spec = dict(body.get("speculative_config") or {})
    options = {
        key: value
        for key, value in body.items()
        if key not in ("model", "prompt", "stream", "speculative_config")
    }
    default = {"ngram": 5, "suffix": 8}.get(spec.get("method"))
    options |= {
        "num_speculative_tokens": spec.get("num_speculative_tokens", default),
        "proposer": spec.get("method"),
        "rule": spec.get("rejection_sample_method"),
    }
    return engine.generate(body["prompt"], **options).text


async def ask(client, body, tools, leave_s):
    """Return the text, or None for who left."""
    try:
        async with asyncio.timeout(leave_s):
            answer = await client.post("/v1/completions", json=body)
    except TimeoutError:
        return None
    assert answer.status_code == 200, answer.text
    if not body["stream"]:
        return answer.json()["choices"][0]["text"]
    chunks = tools.read_events(answer.text)
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def test_soak(kit_type, tools):
    kit = kit_type(max_rows=8)
    kit.backend.pass_s = 0.0005
    coin = random.Random(20)
    bodies = [make_body(index, coin) for index in range(NUM_REQUESTS)]
    leaving = [coin.random() < SHARE_LEAVING for _ in bodies]
    waits = [coin.random() * 0.2 if leaves else None for leaves in leaving]
    snapshots = []

    async def crowd(url):
        places = asyncio.Semaphore(NUM_AT_ONCE)
        limits = httpx.Limits(max_connections=2 * NUM_AT_ONCE)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

            async def one(body, wait):
                async with places:
                    text = await ask(client, body, tools, wait)
                snapshots.append(read_counters((await client.get("/metrics")).text))
                return text

            return await asyncio.gather(*map(one, bodies, waits))

    with kit.listening() as url:
        texts = asyncio.run(crowd(url))
        kit.wait_idle()
        last = read_counters(httpx.get(url + "/metrics").text)
    finished = [index for index, text in enumerate(texts) if text is not None]
    assert len(finished) >= NUM_REQUESTS - sum(leaving)
    assert len(finished) < NUM_REQUESTS
    for index in finished:
        assert texts[index] == solo_text(tools, bodies[index]), bodies[index]
    for before, after in zip(snapshots, [*snapshots[1:], last], strict=True):
        fallen = {name for name, value in before.items() if value > after[name]}
        assert not fallen
    assert last['draftproof:request_success_total{finished_reason="error"}'] == 0
    usage = kit.backend.usage
    assert usage.free_pages + usage.evictable_pages == usage.total_pages


def read_counters(text):
    """Every sample that may only grow, by name and labels."""
    samples = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        kind = name.partition("{")[0]
        if not line.startswith("#") and kind.endswith(("_total", "_count", "_bucket", "_sum")):
            samples[name] = float(value)
    return samples
