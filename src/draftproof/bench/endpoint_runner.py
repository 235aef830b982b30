"""Runs loads on a server that speaks OpenAI's API.

Under arrivals every request is sent when it is due, whatever became of those before it,
and its latencies count from then. In the closed loop the next request is sent when one
has ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from draftproof.bench.measured import Acceptance
from draftproof.bench.run_record import Arm, Condition
from draftproof.bench.streams import Ask, Load, Outcome, Stream
from draftproof.bench.wire import Dialect, TokenCounter
from draftproof.errors import BackendError, ConfigError
from draftproof.metrics import EngineSnapshot, between, engine_of, parse_metrics, read_snapshot

__all__ = ["Connection", "EndpointRunner"]


@dataclass(frozen=True, slots=True)
class Connection:
    """How servers are reached.

    Parameters
    ----------
    timeout_s : float
        Longest silence of a server.
    api_key : str, optional
        Sent as a bearer token.
    transport : httpx.AsyncBaseTransport, optional
        Another way than the network.
    loop_factory : callable, optional
        Makes the event loop, whose clock all times are read from.
    """

    timeout_s: float = 600.0
    api_key: str | None = None
    transport: httpx.AsyncBaseTransport | None = None
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None

    def client(self) -> httpx.AsyncClient:
        """Return a client that never makes a request wait for another one."""
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return httpx.AsyncClient(
            headers=headers,
            transport=self.transport,
            timeout=httpx.Timeout(self.timeout_s, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
        )

    def dialect(
        self, url: str, model: str | None, *, is_chat: bool, ignore_eos: bool = False
    ) -> Dialect:
        """Find out what a server is.

        Parameters
        ----------
        url : str
            Its base address.
        model : str, optional
            The model to ask for; the only one it has when None.
        is_chat : bool
            Whether prompts go to the chat endpoint.
        ignore_eos : bool, default False
            Whether texts go on past their end.

        Returns
        -------
        Dialect
            How to talk to it.

        Raises
        ------
        ConfigError
            If it does not answer, or has several models and none is named.
        """
        with asyncio.Runner(loop_factory=self.loop_factory) as runner:
            engine, names = runner.run(self._identify(url.rstrip("/")))
        if model is None and len(names) != 1:
            found = ", ".join(names) or "none"
            raise ConfigError(f"{url} has the models {found}; expected --model with one of them")
        return Dialect(engine, model or names[0], is_chat, ignore_eos)

    async def _identify(self, url: str) -> tuple[str, list[str]]:
        async with self.client() as client:
            try:
                answer = await client.get(url + "/v1/models")
                answer.raise_for_status()
                held: Any = answer.json()
            except (httpx.HTTPError, ValueError) as error:
                raise ConfigError(f"{url}/v1/models: cannot be read: {error}") from error
            cards = [card for card in held.get("data", []) if isinstance(card, dict)]
            page = await _page(client, url)
        engine = engine_of(parse_metrics(page)) if page else None
        owner = str(cards[0].get("owned_by", "")) if cards else ""
        known = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}
        known["draftproof"] = "draftproof"
        return engine or known.get(owner, "openai"), [str(card.get("id")) for card in cards]


@dataclass(slots=True)
class EndpointRunner:
    """Sends loads to a server, and the plain arm to another one where there is one.

    Parameters
    ----------
    connection : Connection
        How servers are reached.
    url : str
        Base address.
    dialect : Dialect
        How to talk to it.
    baseline_url : str, optional
        Of a server that decodes plainly.
    baseline_dialect : Dialect, optional
        How to talk to that one.
    """

    connection: Connection
    url: str
    dialect: Dialect
    baseline_url: str | None = None
    baseline_dialect: Dialect | None = None

    def prime(self, condition: Condition, asks: Sequence[Ask]) -> None:
        """Have prompts read once, so that every arm finds them in the server's cache.

        Parameters
        ----------
        condition : Condition
            The condition.
        asks : sequence of Ask
            The prompts.
        """
        load = Load(tuple(asks), concurrency=condition.concurrency or 1)
        kappa = 0 if self.dialect.engine == "draftproof" else None
        self.run(condition, Arm("plain", kappa, is_plain=True), load, 1)

    def run(self, condition: Condition, arm: Arm, load: Load, max_tokens: int) -> Outcome:
        """Send a load and wait for the counted requests.

        Parameters
        ----------
        condition : Condition
            The condition.
        arm : Arm
            How to decode.
        load : Load
            What, and when.
        max_tokens : int
            Most tokens per request.

        Returns
        -------
        Outcome
            What came back.

        Raises
        ------
        BackendError
            If every request failed.
        """
        url, dialect = self.url, self.dialect
        if arm.is_plain and self.baseline_url is not None and self.baseline_dialect is not None:
            url, dialect = self.baseline_url, self.baseline_dialect
        turn = _Turn(
            self.connection,
            url.rstrip("/"),
            dialect,
            load,
            lambda ask: dialect.body(ask, arm, condition, max_tokens),
        )
        with asyncio.Runner(loop_factory=self.connection.loop_factory) as runner:
            outcome = runner.run(turn.run())
        failed = [stream.error for stream in outcome.streams if stream.error]
        if failed and len(failed) == len(outcome.streams):
            raise BackendError(f"{url}: every request failed: {failed[0]}")
        return outcome


@dataclass(slots=True)
class _Turn:
    """One load on its way to a server."""

    connection: Connection
    url: str
    dialect: Dialect
    load: Load
    body: Callable[[Ask], dict[str, Any]]
    counted: list[Stream] = field(default_factory=list)
    counted_by: set[str] = field(default_factory=set)
    begin_s: float = 0.0
    num_left: int = 0
    failure: BaseException | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> Outcome:
        loop = asyncio.get_running_loop()
        self.num_left = len(self.load.asks)
        async with self.connection.client() as client:
            before = await self._snapshot(client)
            self.begin_s = loop.time()
            if self.load.concurrency is None:
                tasks = [
                    asyncio.create_task(self._when_due(client, ask, at_s))
                    for ask, at_s in zip(self.load.asks, self.load.arrivals, strict=True)
                ]
            else:
                asks = self._next_asks()
                tasks = [
                    asyncio.create_task(self._worker(client, asks))
                    for _ in range(self.load.concurrency)
                ]
            for task in tasks:
                task.add_done_callback(self._ended)
            try:
                await self.done.wait()
                wall_s = loop.time() - self.begin_s
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            if self.failure is not None:
                raise self.failure
            after = await self._snapshot(client)
        self.counted.sort(key=lambda stream: stream.scheduled_s)
        label = (
            "text share" if "text share" in self.counted_by else min(self.counted_by, default="")
        )
        acceptance = _acceptance(before, after, self.url)
        return Outcome(tuple(self.counted), wall_s, acceptance, label)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Wake whoever waits when a task died of anything but a server's fault."""
        if not task.cancelled() and task.exception() is not None:
            self.failure = self.failure or task.exception()
            self.done.set()

    def _next_asks(self) -> Iterator[tuple[Ask, bool]]:
        yield from ((ask, True) for ask in self.load.asks)
        yield from ((ask, False) for ask in self.load.fillers)

    async def _worker(self, client: httpx.AsyncClient, asks: Iterator[tuple[Ask, bool]]) -> None:
        for ask, is_counted in asks:
            if self.done.is_set():
                return
            await self._send(client, ask, None, is_counted=is_counted)

    async def _when_due(self, client: httpx.AsyncClient, ask: Ask, at_s: float) -> None:
        wait = self.begin_s + at_s - asyncio.get_running_loop().time()
        if wait > 0:
            await asyncio.sleep(wait)
        await self._send(client, ask, at_s, is_counted=True)

    async def _send(
        self, client: httpx.AsyncClient, ask: Ask, due_s: float | None, *, is_counted: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        sent_s = loop.time() - self.begin_s
        stream = Stream(ask, sent_s if due_s is None else due_s, sent_s, is_counted)
        if is_counted:
            self.counted.append(stream)
        counter = TokenCounter()
        try:
            await self._listen(client, ask, counter)
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            counter.error = f"{type(error).__name__}: {error}"
        stream.portions, counted_by = counter.portions()
        stream.finish_reason = counter.finish_reason
        stream.num_prompt_tokens = counter.num_prompt_tokens
        stream.acceptance_rate = counter.acceptance_rate
        stream.error = counter.error or ("" if stream.portions else "no token came")
        if not is_counted:
            return
        if counted_by:
            self.counted_by.add(counted_by)
        self.num_left -= 1
        if not self.num_left:
            self.done.set()

    async def _listen(self, client: httpx.AsyncClient, ask: Ask, counter: TokenCounter) -> None:
        loop = asyncio.get_running_loop()
        address = self.url + self.dialect.path
        async with client.stream("POST", address, json=self.body(ask)) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                counter.error = f"status {answer.status_code}: {text[:200]}"
                return
            async for event in _events(answer):
                counter.hear(loop.time() - self.begin_s, event)

    async def _snapshot(self, client: httpx.AsyncClient) -> EngineSnapshot | None:
        page = await _page(client, self.url)
        if page is None or engine_of(parse_metrics(page)) is None:
            return None
        return read_snapshot(page, 0.0, self.url)


async def _page(client: httpx.AsyncClient, url: str) -> str | None:
    """Return the metrics page of a server, None where it has none."""
    try:
        answer = await client.get(url + "/metrics")
    except httpx.HTTPError:
        return None
    return answer.text if answer.status_code == 200 else None


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON of server-sent events."""
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if isinstance(event, dict):
            yield event


def _acceptance(
    before: EngineSnapshot | None, after: EngineSnapshot | None, url: str
) -> Acceptance | None:
    if before is None or after is None:
        return None
    window = between(before, after)
    if window.stats is None or window.has_restarted:
        return None
    stats = window.stats
    return Acceptance(
        stats.num_drafts,
        stats.num_draft_tokens,
        stats.num_accepted_tokens,
        tuple(stats.num_accepted_tokens_per_pos),
        () if window.counts_short_as_rejected else tuple(stats.num_drafted_per_pos),
        f"{url}/metrics",
    )
