"""The engine people use, from several threads and tasks at once."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine_kit import (
    TABLE,
    VOCAB,
    WARM,
    held,
    ids,
    requests,
    run,
    run_alone,
)
from front_kit import OPTIONS, fresh, is_clean

from draftproof.backends.table import PagedStore, TableBackend
from draftproof.engine import Engine, EngineCore, GenerateRequest
from draftproof.engine.turns import Turns
from draftproof.errors import RequestAbortedError


class Hurdle(TableBackend):
    """A model whose pass waits for a signal, so that tests can act in the middle of it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def forward(self, batch):
        self.entered.set()
        assert self.go_on.wait(20)
        return super().forward(batch)


# Threads ----------------------------------------------------------------------------------------


def test_many_threads_get_the_texts_they_would_get_alone():
    engine = fresh()
    batch = requests(*[3, 8, 1, 5, 13, 2, 9, 4] * 2, params=WARM, max_tokens=20)
    alone = ids(run_alone(lambda: fresh().core, batch))

    def one(request):
        if request.seed % 2:
            return engine.generate_many([request])[0].token_ids
        # Streams take requests apart, so the same request is described again.
        outputs = engine.stream(
            request.prompt_ids,
            temperature=0.9,
            max_tokens=20,
            seed=request.seed,
            request_id=request.request_id,
        )
        return [token.token_id for output in outputs for token in output.tokens]

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(one, batch))
    assert dict(zip(alone, texts, strict=True)) == alone
    assert is_clean(engine)


def test_submitting_aborting_and_stepping_at_once():
    """500 submissions from five threads while a sixth steps; ids and counts stay right."""
    core = fresh().core
    done, results = threading.Event(), []

    def submit(worker):
        for index in range(100):
            name = core.submit(
                GenerateRequest((worker, index % VOCAB), WARM, max_tokens=3, seed=index)
            )
            if index % 3 == 0:
                core.abort(name)

    def drive():
        while not done.is_set() or core.has_work:
            results.extend(o.result for o in core.step() if o.result is not None)

    driver = threading.Thread(target=drive)
    driver.start()
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(submit, range(5)))
    done.set()
    driver.join(60)
    assert not driver.is_alive()
    assert len({result.request_id for result in results}) == len(results) == 500
    assert all(result.finish_reason in ("length", "abort") for result in results)
    assert core._sessions == core._results == {}
    assert core.target.num_open == 0


def test_a_request_that_is_submitted_and_aborted_inside_a_step_ends_once():
    """The moment between looking for arrivals and looking for aborts."""
    core = fresh().core
    late = GenerateRequest((1, 2), WARM, max_tokens=3, request_id="late")

    class Interleaved:
        lock, acts = threading.RLock(), [lambda: core.abort(core.submit(late))]

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()
            if self.acts:
                self.acts.pop()()

    core.submit(GenerateRequest((1, 2), WARM, max_tokens=3))
    core._registration = Interleaved()
    results = core.run()
    assert len(results) == 2
    assert results["late"].finish_reason == "abort"
    assert core.target.num_open == 0


def test_every_waiting_thread_sees_its_tokens_while_another_one_steps():
    """A caller that drives must not keep what it computed for the others.

    The model's pass does not end before the others have taken what earlier passes gave.
    """

    class Patient(TableBackend):
        engine = None

        def forward(self, batch):
            for _ in range(20_000):
                if not any(self.engine._turns._queues.values()):
                    return super().forward(batch)
                time.sleep(0.001)
            raise AssertionError("outputs wait for the end of a step")

    target = Patient(TABLE, PagedStore(prefix_caching=False))
    engine = target.engine = fresh(target)

    def read(name):
        outputs = engine.stream([1, 2], max_tokens=30, request_id=name, num_speculative_tokens=0)
        return sum(len(output.tokens) for output in outputs)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, "abcd")) == [30] * 4
    assert is_clean(engine)


def test_an_abort_from_elsewhere_ends_the_wait():
    engine = fresh()
    stream = engine.stream([1, 2], max_tokens=500, request_id="a")
    next(stream)
    engine.core.abort("a")
    with pytest.raises(RequestAbortedError, match="request a was aborted"):
        list(stream)
    assert is_clean(engine)


# Tasks ------------------------------------------------------------------------------------------


def test_many_tasks_get_the_texts_they_would_get_alone():
    engine = fresh()
    batch = requests(*[3, 8, 1, 5] * 6, params=WARM, max_tokens=12)
    alone = ids(run_alone(lambda: fresh().core, batch))

    async def one(request):
        tokens = []
        stream = engine.astream(
            request.prompt_ids,
            temperature=0.9,
            max_tokens=12,
            seed=request.seed,
            request_id=request.request_id,
        )
        async for output in stream:
            tokens += [token.token_id for token in output.tokens]
        return tokens

    async def all_of_them():
        return await asyncio.gather(*map(one, batch))

    texts = asyncio.run(all_of_them())
    assert dict(zip(alone, texts, strict=True)) == alone
    assert is_clean(engine)


def test_a_cancelled_task_blocks_nobody_and_leaves_nothing():
    """Cancelled in the middle of a pass: the loop goes on, the pass ends, pages return."""
    target = Hurdle(TABLE, PagedStore(prefix_caching=False))
    engine = fresh(target)

    async def read():
        async for _ in engine.astream([1, 2, 3], max_tokens=500):
            target.entered.clear()
            target.go_on.clear()

    async def scenario():
        task = asyncio.create_task(read())
        while target.go_on.is_set():
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(target.entered.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)  # while the pass still stands at the hurdle
        assert not target.go_on.is_set()
        assert held(engine.core)[0] == 1
        target.go_on.set()

    asyncio.run(scenario())  # joins the threads of the loop: none may go on stepping
    assert is_clean(engine)
    assert (
        engine.generate([1, 2], **OPTIONS).token_ids
        == fresh().generate([1, 2], **OPTIONS).token_ids
    )


def test_five_hundred_streams_that_end_somehow_leave_nothing():
    engine = fresh()

    async def read(index):
        taken = 0
        async for _ in engine.astream([index % VOCAB, 1], max_tokens=20, temperature=1.0):
            taken += 1
            if taken == index % 7:
                break

    async def timed(index):
        try:
            await asyncio.wait_for(read(index), 0.0005 * (index % 5) if index % 3 else None)
        except TimeoutError:
            return "timeout"
        return "end"

    async def scenario():
        ends = []
        for begin in range(0, 500, 25):
            ends += await asyncio.gather(*(timed(begin + i) for i in range(25)))
        for _ in range(3):
            gc.collect()  # streams that were left by break are closed by the loop
            await asyncio.sleep(0.01)
        return ends

    ends = asyncio.run(scenario())
    assert set(ends) == {"timeout", "end"}
    assert is_clean(engine)
    batch = requests(4, 9, params=WARM, max_tokens=15)
    assert ids(run(engine.core, batch)) == ids(run(fresh().core, batch))


def test_a_front_that_forgets_to_abort_is_seen(monkeypatch):
    monkeypatch.setattr(Turns, "forget", lambda self, request_id: None)
    engine = fresh()
    for _ in engine.stream([1, 2, 3], **OPTIONS):
        break
    gc.collect()
    assert not is_clean(engine)


def test_an_error_inside_a_step_frees_the_turn():
    """A defect that escapes a step reaches one caller; the next one can go on."""

    class Broken(EngineCore):
        times = 1

        def step(self):
            if self.times:
                self.times -= 1
                raise ArithmeticError("a defect")
            return super().step()

    engine = Engine(Broken(TableBackend(TABLE, PagedStore(prefix_caching=False))))
    with pytest.raises(ArithmeticError):
        engine.generate([1, 2], **OPTIONS)
    assert held(engine.core) == (0, 0)
    assert len(engine.generate([1, 2], **OPTIONS).token_ids) == 25
