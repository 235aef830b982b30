"""In and out: aborts, deadlines, full queues, draining, failures, a wedged step."""

from __future__ import annotations

import asyncio
import random
import threading

import httpx
import pytest

COMPLETIONS = "/v1/completions"
BASE = {
    "model": "table",
    "prompt": "abcabc",
    "max_tokens": 400,
    "seed": 3,
    "logit_bias": {"96": -100},
}
SHORT = BASE | {"max_tokens": 12}


def test_a_client_that_leaves_a_stream_frees_its_slots(kit):
    kit.backend.pass_s = 0.05  # seconds to the end, which a busy machine must not reach first
    with kit.listening() as url, httpx.Client(base_url=url, timeout=30) as client:
        with client.stream("POST", COMPLETIONS, json=BASE | {"stream": True, "n": 3}) as answer:
            next(answer.iter_lines())
            assert kit.service.worker.num_in_flight == 3
        kit.wait_idle()
        assert client.post(COMPLETIONS, json=SHORT).status_code == 200
        kit.wait_idle()
    gone = [event for event in kit.events if event.get("client_gone")]
    assert len(gone) == 1
    assert kit.service.ledger.totals().finished["abort"] == 3


def test_a_client_that_leaves_before_its_answer_frees_its_slots(kit, tools):
    kit.backend.gate.clear()
    with kit.listening() as url:
        client = httpx.Client(base_url=url, timeout=httpx.Timeout(30, read=0.2))
        with pytest.raises(httpx.ReadTimeout):
            client.post(COMPLETIONS, json=BASE)
        client.close()
        tools.wait_for(lambda: any(event.get("client_gone") for event in kit.events))
        kit.backend.gate.set()
        kit.wait_idle()
    (event,) = (event for event in kit.events if event["event"] == "request")
    assert event["status"] == 499


def test_leaving_at_any_moment(kit):
    """SV-1: random aborts leave no slot taken and no counter falls."""
    kit.backend.pass_s = 0.001
    coin = random.Random(7)

    async def leave(client, index):
        body = BASE | {"stream": bool(index % 2), "seed": index, "n": 1 + index % 3}
        try:
            async with asyncio.timeout(None if body["stream"] else 0.2 + 0.3 * coin.random()):
                async with client.stream("POST", COMPLETIONS, json=body) as answer:
                    lines = answer.aiter_lines()
                    for _ in range(coin.randint(0, 60)):
                        await anext(lines)
        except (TimeoutError, httpx.HTTPError):
            return

    async def crowd(url):
        limits = httpx.Limits(max_connections=60)
        async with httpx.AsyncClient(base_url=url, timeout=30, limits=limits) as client:
            await asyncio.gather(*(leave(client, index) for index in range(40)))
            answer = await client.post(COMPLETIONS, json=SHORT)
        return answer.json()["choices"][0]["text"]

    with kit.listening() as url:
        text = asyncio.run(crowd(url))
        kit.wait_idle()
    assert kit.service.ledger.totals().finished["abort"] > 20
    fresh = type(kit)().post(COMPLETIONS, **SHORT).json()
    assert text == fresh["choices"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_deadline(kit, stream):
    kit.backend.pass_s = 0.01
    body = BASE | {"timeout_s": 0.15, "stream": stream}

    async def send():
        async with kit.client() as client:
            answer = await client.post(COMPLETIONS, json=body)
            await asyncio.to_thread(kit.wait_idle)
            return answer

    answer = asyncio.run(send())
    assert '"code":"deadline_exceeded"' in answer.text
    if stream:
        assert answer.status_code == 200
        assert "[DONE]" not in answer.text
    else:
        assert answer.status_code == 504
        # Clients try 5xx again by themselves, which would only add load here.
        assert answer.headers["x-should-retry"] == "false"


def test_the_deadline_holds_while_a_step_is_stuck(kit):
    kit.backend.gate.clear()

    async def send():
        async with kit.client() as client:
            answer = await client.post(COMPLETIONS, json=BASE | {"timeout_s": 0.1})
            kit.backend.gate.set()
            await asyncio.to_thread(kit.wait_idle)
            return answer

    assert asyncio.run(send()).status_code == 504


def test_full_queue(kit_type):
    kit = kit_type(max_rows=2, max_queue=2, max_choices=4)
    kit.backend.gate.clear()

    async def send():
        async with kit.client() as client:
            running = [asyncio.create_task(client.post(COMPLETIONS, json=SHORT)) for _ in range(4)]
            while kit.service.worker.num_in_flight < 4:
                await asyncio.sleep(0.005)
            refused = await client.post(COMPLETIONS, json=SHORT)
            kit.backend.gate.set()
            answers = await asyncio.gather(*running)
            after = await client.post(COMPLETIONS, json=SHORT | {"n": 4})
            await asyncio.to_thread(kit.wait_idle)
            return refused, answers, after

    refused, answers, after = asyncio.run(send())
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "queue_full"
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert {answer.status_code for answer in answers} == {200}
    assert after.status_code == 200
    assert kit.service.ledger.totals().refused == {429: 1}


def test_draining(kit):
    """What runs goes on, what comes is refused, and /health says so."""
    kit.backend.gate.clear()

    async def send():
        async with kit.client() as client:
            running = asyncio.create_task(client.post(COMPLETIONS, json=SHORT))
            while not kit.service.worker.num_in_flight:
                await asyncio.sleep(0.005)
            kit.service.worker.drain()
            refused = await client.post(COMPLETIONS, json=SHORT)
            health = await client.get("/health")
            kit.backend.gate.set()
            return await running, refused, health

    answer, refused, health = asyncio.run(send())
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert refused.status_code == health.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert health.json()["status"] == "draining"


def test_an_end_by_force_is_told(kit):
    kit.backend.pass_s = 0.01

    async def send():
        async with kit.client() as client:
            bodies = [BASE, BASE | {"stream": True}]
            running = [asyncio.create_task(client.post(COMPLETIONS, json=body)) for body in bodies]
            while kit.service.ledger.totals().num_running < 2:
                await asyncio.sleep(0.005)
            kit.service.worker.abort_all()
            return await asyncio.gather(*running)

    whole, stream = asyncio.run(send())
    assert whole.status_code == 503
    assert '"code":"aborted"' in stream.text
    assert "[DONE]" not in stream.text


def test_a_failing_request_does_not_harm_its_neighbours(kit):
    """The row after "!" is NaN: that request fails, in the middle of the others."""

    async def send():
        async with kit.client() as client:
            bodies = [SHORT | {"seed": seed} for seed in range(6)]
            bodies.insert(3, SHORT | {"prompt": "abc!"})
            answers = await asyncio.gather(
                *(client.post(COMPLETIONS, json=body) for body in bodies)
            )
            await asyncio.to_thread(kit.wait_idle)
            alone = [await client.post(COMPLETIONS, json=body) for body in bodies]
            return answers, alone

    answers, alone = asyncio.run(send())
    assert [answer.status_code for answer in answers] == [200, 200, 200, 500, 200, 200, 200]
    assert answers[3].json()["error"]["code"] == "non_finite_logits"
    assert "caused by" not in answers[3].text
    texts = [
        [answer.json()["choices"][0]["text"] for answer in run if answer.status_code == 200]
        for run in (answers, alone)
    ]
    assert texts[0] == texts[1]


def test_one_bad_completion_fails_its_whole_request_only(kit):
    answer = kit.post(COMPLETIONS, **SHORT | {"prompt": ["abc", "abc!"]})
    assert answer.status_code == 500
    kit.wait_idle()


class CollapseError(RuntimeError):
    """Something that no room expects."""


def test_a_step_that_raises_ends_its_requests_and_no_others(kit):
    core = kit.engine.core
    real_step = core.step
    collapse = threading.Event()

    def step():
        if collapse.is_set():
            collapse.clear()
            raise CollapseError("a secret prompt")
        return real_step()

    core.step = step
    kit.backend.gate.clear()

    async def send():
        async with kit.client() as client:
            running = [asyncio.create_task(client.post(COMPLETIONS, json=BASE)) for _ in range(3)]
            while kit.service.ledger.totals().num_waiting < 3:
                await asyncio.sleep(0.005)
            collapse.set()
            kit.backend.gate.set()
            answers = await asyncio.gather(*running)
            assert not core.has_work  # nothing goes on for nobody
            after = await client.post(COMPLETIONS, json=SHORT)
            health = await client.get("/health")
            await asyncio.to_thread(kit.wait_idle)
            return answers, after, health

    answers, after, health = asyncio.run(send())
    assert {answer.status_code for answer in answers} == {500}
    assert all("secret" not in answer.text for answer in answers)
    assert after.status_code == 200
    assert health.json()["num_failed_steps"] == 1
    assert health.json()["status"] == "ok"
    assert not any("secret" in line for line in kit.lines)


def test_a_dead_thread_is_reported(kit):
    """Where not even ending the requests works, nobody waits for ever."""
    core = kit.engine.core

    def collapse():
        raise CollapseError

    core.step = core.reap = collapse

    async def send():
        async with kit.client() as client:
            lost = await client.post(COMPLETIONS, json=SHORT)
            health = await client.get("/health")
            refused = await client.post(COMPLETIONS, json=SHORT)
            return lost, health, refused

    lost, health, refused = asyncio.run(send())
    assert lost.status_code == health.status_code == refused.status_code == 503
    assert health.json()["status"] == "failed"
    assert refused.json()["error"]["code"] == "failed"


def test_a_wedged_step_is_reported_and_forgiven(kit_type):
    kit = kit_type(wedge_s=0.05)
    kit.backend.gate.clear()

    async def send():
        async with kit.client() as client:
            running = asyncio.create_task(client.post(COMPLETIONS, json=SHORT))
            while (stuck := await client.get("/health")).status_code == 200:
                await asyncio.sleep(0.01)
            refused = await client.post(COMPLETIONS, json=SHORT)
            kit.backend.gate.set()
            answer = await running
            return stuck, refused, answer, await client.get("/health")

    stuck, refused, answer, well = asyncio.run(send())
    assert stuck.json()["status"] == "wedged"
    assert stuck.json()["step_s"] > 0.05
    assert refused.status_code == 503
    assert answer.status_code == 200
    assert well.status_code == 200


def test_pages_run_short(tools, kit_type):
    """More requests than the cache holds: they wait, and each gets what it gets alone."""
    engine = tools.make_engine(kappa=4, context_length=128, num_pages=40)
    kit = kit_type(engine=engine)
    bodies = [SHORT | {"seed": seed, "max_tokens": 100} for seed in range(4)]

    async def send():
        async with kit.client() as client:
            together = await asyncio.gather(
                *(client.post(COMPLETIONS, json=body) for body in bodies)
            )
            alone = [await client.post(COMPLETIONS, json=body) for body in bodies]
            await asyncio.to_thread(kit.wait_idle)
            return together, alone

    together, alone = asyncio.run(send())
    for crowded, single in zip(together, alone, strict=True):
        assert crowded.status_code == 200
        assert crowded.json()["choices"][0]["text"] == single.json()["choices"][0]["text"]


@pytest.mark.parametrize("place", ["reading the prompt", "entering the engine"])
def test_leaving_before_the_engine_has_the_request(kit, place):
    """Who leaves while a prompt is read or a grammar compiled leaves nothing behind."""
    core = kit.engine.core
    owner, name = (core.tokenizer, "encode") if "prompt" in place else (core, "submit")
    inside, go_on = threading.Event(), threading.Event()
    real = getattr(owner, name)

    def slow(*args, **options):
        inside.set()
        go_on.wait(20)
        return real(*args, **options)

    setattr(owner, name, slow)

    async def send():
        async with kit.client() as client:
            task = asyncio.create_task(client.post(COMPLETIONS, json=BASE))
            await asyncio.to_thread(inside.wait, 20)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            go_on.set()
            await asyncio.to_thread(kit.wait_idle)

    asyncio.run(send())
    assert kit.backend.num_calls <= 1  # the engine's thread may be quicker than the abort


def test_idle_connections_outlive_the_patience_of_clients(kit):
    """Else a client's next request meets a connection that is being closed; httpx keeps its 5 s."""
    from draftproof.server.run import make_server

    assert make_server(kit.service).config.timeout_keep_alive > 60
