"""How outputs get from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio

from draftproof.core.params import SamplingParams
from draftproof.engine import GenerateRequest


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts how often another thread wakes it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_woken = 0

    def call_soon_threadsafe(self, *args, **kwargs):
        self.num_woken += 1
        return super().call_soon_threadsafe(*args, **kwargs)


def test_a_step_wakes_the_loop_once_for_all_who_read(kit) -> None:
    worker, core = kit.service.worker, kit.engine.core

    async def eight_readers() -> tuple[int, int]:
        tickets = [worker.reserve(1) for _ in range(8)]
        for number, ticket in enumerate(tickets):
            request = GenerateRequest(
                (5, 40 + number), SamplingParams(), max_tokens=12, ignore_eos=True, seed=number,
                kappa=0, request_id=f"reader-{number}",
            )  # fmt: skip
            ticket.submit([request])
        worker.start()  # only now: all eight run in the same passes
        delivered = 0
        for ticket in tickets:
            while True:
                _, output = await ticket.next()
                assert output.error is None
                delivered += 1
                if output.finish_reason is not None:
                    break
        return delivered, asyncio.get_running_loop().num_woken

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        delivered, num_woken = runner.run(eight_readers())
    assert worker.stop(10.0)
    assert delivered == 8 * 12
    assert 12 <= num_woken <= core.clock.num_steps < delivered
