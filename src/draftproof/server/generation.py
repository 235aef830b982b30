"""One generating request from its body to its last byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any, TypeVar

from starlette.types import Message, Receive, Scope, Send

from draftproof.engine import Engine, GenerateResult, StepOutput
from draftproof.server.failures import ApiError, api_error
from draftproof.server.schemas import ChatRequest, CompletionRequest
from draftproof.server.settings import ServerConfig
from draftproof.server.shapes import Answer, Head
from draftproof.server.translate import num_choices, to_requests
from draftproof.server.worker import Ticket, Worker

__all__ = ["EventStream", "Generation", "json_bytes", "run_whole"]

_Result = TypeVar("_Result")

#: How long a client gets to take the last words of a broken stream, in seconds.
_LAST_WORDS_S = 1.0


def json_bytes(document: Any) -> bytes:
    """Return a document as JSON that has no NaN and stands on one line."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class Generation:
    """A request inside the engine.

    Parameters
    ----------
    ticket : Ticket
        Its places; closed by `close`.
    answer : Answer
        Writes its documents.
    deadline : float
        On the monotonic clock, in seconds.
    timeout_s : float
        The deadline as it was asked for.
    """

    def __init__(self, ticket: Ticket, answer: Answer, deadline: float, timeout_s: float) -> None:
        self._ticket = ticket
        self._deadline = deadline
        self._timeout_s = timeout_s
        self.answer = answer
        self.results: list[GenerateResult | None] = [None] * ticket.num_choices
        self.first_token_s: float | None = None
        self.num_tokens = 0

    @classmethod
    async def begin(
        cls,
        wire: CompletionRequest | ChatRequest,
        head: Head,
        *,
        engine: Engine,
        worker: Worker,
        config: ServerConfig,
    ) -> Generation:
        """Queue a request.

        Parameters
        ----------
        wire : CompletionRequest or ChatRequest
            The checked body.
        head : Head
            What documents begin with.
        engine : Engine
            The engine.
        worker : Worker
            Its thread.
        config : ServerConfig
            Limits.

        Returns
        -------
        Generation
            Close it in any case.

        Raises
        ------
        ApiError
            If the queue is full or a limit is broken.
        ConfigError
            If something cannot be honoured.
        """
        timeout_s = config.timeout_s if wire.timeout_s is None else wire.timeout_s
        if timeout_s > config.timeout_s:
            raise ApiError(
                400,
                f"timeout_s is {timeout_s}; expected at most {config.timeout_s}",
                param="timeout_s",
            )
        count = num_choices(wire)
        if count == 0:
            raise ApiError(400, "prompt is an empty list; expected one or more", param="prompt")
        if count > config.max_choices:
            raise ApiError(
                400,
                f"n is {wire.n} and the request asks for {count} completions; expected at most "
                f"{config.max_choices}",
                param="n",
            )
        deadline = monotonic() + timeout_s
        ticket = worker.reserve(count)
        try:
            # Reading a prompt and compiling a grammar take long enough to be noticed.
            requests = await asyncio.to_thread(to_requests, wire, engine, config, head.response_id)
            await asyncio.to_thread(ticket.submit, requests)
        except BaseException:
            ticket.close()
            raise
        answer = Answer(wire, head, requests, engine.tokenizer, config.default_kappa)
        return cls(ticket, answer, deadline, timeout_s)

    async def outputs(self) -> AsyncIterator[tuple[int, StepOutput]]:
        """Yield what each step gave each completion until all have ended.

        Yields
        ------
        tuple of int and StepOutput
            Which completion, and what it got.

        Raises
        ------
        ApiError
            Status 504 when the deadline has passed.
        DraftproofError
            The error of the first completion that failed.
        """
        num_open = len(self.results)
        while num_open:
            try:
                async with asyncio.timeout(max(0.0, self._deadline - monotonic())):
                    index, output = await self._ticket.next()
            except TimeoutError:
                raise self.too_late() from None
            if output.error is not None:
                raise output.error
            self.num_tokens += len(output.tokens)
            if output.tokens and self.first_token_s is None:
                self.first_token_s = monotonic() - self._ticket.began
            if output.result is not None:
                self.results[index] = output.result
                num_open -= 1
            yield index, output

    def finished(self) -> list[GenerateResult]:
        """Return the completions that have ended, in order."""
        return [result for result in self.results if result is not None]

    def close(self) -> None:
        """Free what is left; may be called again."""
        self._ticket.close()

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._deadline - monotonic())

    def too_late(self) -> ApiError:
        """Return the error of a missed deadline; trying again would only add load."""
        return ApiError(
            504,
            f"the request took longer than its deadline of {self._timeout_s} s",
            code="deadline_exceeded",
            headers={"x-should-retry": "false"},
        )


async def run_whole(
    begin: Callable[[], Awaitable[Generation]], receive: Receive, seen: Callable[[Generation], None]
) -> bytes | None:
    """Run a request to its end and return its document.

    Parameters
    ----------
    begin : callable
        Queues the request.
    receive : callable
        Tells when the client goes.
    seen : callable
        Given the request at its end, for the log.

    Returns
    -------
    bytes or None
        None where the client has gone.

    Raises
    ------
    DraftproofError
        If it failed.
    """

    async def collect() -> bytes:
        generation = await begin()
        try:
            async for index, output in generation.outputs():
                generation.answer.keep(index, output)
            return json_bytes(generation.answer.whole(generation.finished()))
        finally:
            generation.close()
            seen(generation)

    return await _unless_gone(collect(), receive)


class EventStream:
    """An ASGI response that sends server-sent events.

    Parameters
    ----------
    generation : Generation
        The request; closed when the response ends, however it ends.
    fields : dict
        Where the log's fields go.
    seen : callable
        Given the request at its end, for the log.
    """

    def __init__(
        self,
        generation: Generation,
        fields: dict[str, Any],
        seen: Callable[[Generation], None],
    ) -> None:
        self._generation = generation
        self._fields = fields
        self._seen = seen

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; ends early when the client goes."""
        try:
            if await _unless_gone(self._run(send), receive) is None:
                self._fields["client_gone"] = True
        finally:
            self._generation.close()
            self._seen(self._generation)

    async def _run(self, send: Send) -> bool:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            # A client that does not read must not hold its places beyond the deadline.
            async with asyncio.timeout(self._generation.remaining_s):
                await self._send_events(send)
        except TimeoutError:
            await self._fail(send, self._generation.too_late())
        except Exception as error:  # noqa: BLE001  the status is sent: say it in the stream
            await self._fail(send, api_error(error))
        return True

    async def _send_events(self, send: Send) -> None:
        answer = self._generation.answer
        for chunk in answer.opening():
            await send(_event(chunk))
        async for index, output in self._generation.outputs():
            step = answer.step(index, output)
            if step is not None:
                await send(_event(step))
        for chunk in answer.closing(self._generation.finished()):
            await send(_event(chunk))
        await send(_body(b"data: [DONE]\n\n", more=False))

    async def _fail(self, send: Send, error: ApiError) -> None:
        self._fields |= {"error": error.code or error.status}
        try:
            async with asyncio.timeout(_LAST_WORDS_S):
                await send(_event(error.body))
                await send(_body(b"", more=False))
        except TimeoutError:
            return


def _event(document: Any) -> Message:
    return _body(b"data: " + json_bytes(document) + b"\n\n", more=True)


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def _unless_gone(work: Awaitable[_Result], receive: Receive) -> _Result | None:
    """Await some work, and cancel it when the client goes; None then."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
