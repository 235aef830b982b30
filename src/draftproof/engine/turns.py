"""Who runs the next step when several callers wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from draftproof.engine.core import EngineCore
from draftproof.engine.request import GenerateRequest, GenerateResult, StepOutput
from draftproof.errors import ConfigError, RequestAbortedError

__all__ = ["Turns"]


class Turns:
    """Let callers from several threads share one engine that has no thread of its own.

    Whoever waits for a request runs the steps, one caller at a time; the others are told
    after each step. A request that nobody waits for goes on only while somebody waits
    for another one.

    Parameters
    ----------
    core : EngineCore
        The engine on token ids.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        # Guards the queues and the turn; never held while a step runs.
        self._turn = threading.Condition()
        self._is_stepping = False
        self._queues: dict[str, deque[StepOutput]] = {}

    def submit(self, request: GenerateRequest, keep: int | None = None) -> str:
        """Submit a request and open its queue, which keeps that many newest outputs."""
        with self._turn:
            if request.request_id in self._queues:
                raise ConfigError(f"request id {request.request_id!r} is in use; expected another")
            request_id = self._core.submit(request)
            self._queues[request_id] = deque(maxlen=keep)
        return request_id

    def wait(self, request_id: str) -> GenerateResult:
        """Return the result of a request once it has ended."""
        while True:
            output = self.next_output(request_id)
            if output.result is not None:
                return output.result

    def next_output(self, request_id: str) -> StepOutput:
        """Return the next output of a request; whoever waits drives the engine.

        Raises
        ------
        RequestAbortedError
            If its owner gave the request up.
        """
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._has_news(request_id) or not self._is_stepping)
                if self._has_news(request_id):
                    return self._take(request_id)
                self._is_stepping = True
            outputs: Sequence[StepOutput] = ()
            try:
                outputs = self._core.step()
            finally:
                with self._turn:
                    self._is_stepping = False
                    self._route(outputs)
                    self._route(self._core.reap())
                    self._turn.notify_all()

    def forget(self, request_id: str) -> None:
        """Drop a request's state; abort it when it has not ended. Never waits for a step."""
        with self._turn:
            if self._queues.pop(request_id, None) is None:
                return
            self._core.abort(request_id)
            if not self._is_stepping:
                self._route(self._core.reap())
            self._turn.notify_all()

    def _has_news(self, request_id: str) -> bool:
        """Say whether a waiting caller can go on: an output came, or its owner left."""
        queue = self._queues.get(request_id)
        return queue is None or len(queue) > 0

    def _take(self, request_id: str) -> StepOutput:
        queue = self._queues.get(request_id)
        if queue is None:
            raise RequestAbortedError(f"request {request_id} was given up by its owner")
        return queue.popleft()

    def _route(self, outputs: Sequence[StepOutput]) -> None:
        for output in outputs:
            queue = self._queues.get(output.request_id)
            if queue is not None:
                queue.append(output)
