"""A server of planted times on an event loop whose seconds pass at once."""

from __future__ import annotations

import asyncio
import json
import selectors

import httpx


class VirtualSelector(selectors.DefaultSelector):
    """Never waits: what the loop would have slept is added to its clock."""

    def __init__(self):
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready and timeout is None:
            raise AssertionError("the loop waits for something that never comes")
        if not ready and timeout and timeout > 0:
            self.now_s += timeout
        return ready


def virtual_loop():
    """An event loop on virtual time."""
    selector = VirtualSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s
    # Timers a rounding error ahead of the clock are due.
    loop._clock_resolution = 1e-9
    return loop


class Events(httpx.AsyncByteStream):
    def __init__(self, events):
        self._events = events

    async def __aiter__(self):
        async for event in self._events:
            yield f"data: {event}\n\n".encode()

    async def aclose(self):
        await self._events.aclose()


class FakeServer(httpx.AsyncBaseTransport):
    """Speaks OpenAI's API.

    ``chunk`` tokens come every ``gap_s`` seconds, after ``first_s``. With ``capacity``
    requests wait for one of that many places. ``counting`` says how tokens are told:
    ``usage`` per portion as vLLM does, ``ids`` as our server does, ``timings`` as
    llama.cpp does, ``last`` at the end only.
    """

    def __init__(
        self,
        *,
        tokens=64,
        chunk=4,
        gap_s=0.040,
        first_s=0.2,
        first_chunk=None,
        capacity=None,
        counting="usage",
        owner="vllm",
        page="",
        fails=(),
        gap_of=None,
    ):
        self.tokens, self.chunk, self.gap_s, self.first_s = tokens, chunk, gap_s, first_s
        self.first_chunk = chunk if first_chunk is None else first_chunk
        self.capacity, self.counting, self.owner, self.page = capacity, counting, owner, page
        self.fails, self.gap_of = set(fails), gap_of
        self.bodies = []
        self.in_flight = 0
        self.most_in_flight = 0
        self.aborted = 0
        self._places = None

    async def handle_async_request(self, request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m", "owned_by": self.owner}]})
        if request.url.path == "/metrics":
            page = self.page() if callable(self.page) else self.page
            return httpx.Response(200 if page else 404, text=page)
        body = json.loads(request.content)
        number = len(self.bodies)
        self.bodies.append(body)
        if number in self.fails:
            return httpx.Response(500, json={"error": {"message": "planted"}})
        return httpx.Response(200, stream=Events(self._answer(body)))

    async def _answer(self, body):
        if self.capacity is not None and self._places is None:
            self._places = asyncio.Semaphore(self.capacity)
        is_chat = "messages" in body
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        held = False
        ended = False
        try:
            if is_chat:
                yield json.dumps(self._event({"role": "assistant", "content": ""}, 0, 0, is_chat))
            if self._places is not None:
                await self._places.acquire()
                held = True
            await asyncio.sleep(self.first_s)
            total = min(self.tokens, body["max_tokens"])
            sent = 0
            gap_s = self.gap_s if self.gap_of is None else self.gap_of(body)
            while sent < total:
                if sent:
                    await asyncio.sleep(gap_s)
                count = min(self.chunk if sent else self.first_chunk, total - sent)
                sent += count
                yield json.dumps(self._event({"content": "word " * count}, count, sent, is_chat))
            usage = {"prompt_tokens": 7, "completion_tokens": total}
            yield json.dumps({"choices": [], "usage": usage})
            ended = True
            yield "[DONE]"
        finally:
            self.in_flight -= 1
            self.aborted += not ended
            if held:
                self._places.release()

    def _event(self, delta, count, sent, is_chat):
        choice = {"index": 0, "finish_reason": None}
        choice |= {"delta": delta} if is_chat else {"text": delta.get("content", "")}
        event = {"choices": [choice]}
        if self.counting == "usage":
            event["usage"] = {"prompt_tokens": 7, "completion_tokens": sent}
        elif self.counting == "ids":
            choice["token_ids"] = list(range(count))
        elif self.counting == "timings":
            event["timings"] = {"predicted_n": sent, "draft_n": 10, "draft_n_accepted": 7}
        return event
