"""The one thread that steps the engine, and how requests get in and out of it.

The front hands requests over with a `Ticket` and reads outputs from it; it never waits
for a pass. Every way out of a request ends in `Ticket.close`, which frees what is left.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic, sleep

from draftproof.engine import EngineCore, GenerateRequest, StepOutput
from draftproof.errors import BackendError, ConfigError, RequestAbortedError
from draftproof.server.failures import ApiError
from draftproof.server.ledger import Ledger
from draftproof.server.settings import ServerConfig

__all__ = ["Health", "Ticket", "Worker"]

#: How long the thread rests when a step found nothing to run, in seconds.
_IDLE_S = 0.001

#: What a ticket delivers: the index of a completion, and what a step gave it.
Delivery = tuple[int, StepOutput]


@dataclass(frozen=True, slots=True)
class Health:
    """How the engine is.

    Parameters
    ----------
    status : {"ok", "draining", "wedged", "failed"}
        ``wedged``: a step has taken too long. ``failed``: the thread is gone.
    step_s : float
        Seconds that the step in progress has taken; 0 between steps.
    num_in_flight : int
        Completions accepted and not ended.
    num_failed_steps : int
        Steps that raised and took all requests with them.
    """

    status: str
    step_s: float
    num_in_flight: int
    num_failed_steps: int


class Ticket:
    """The completions of one HTTP request inside the engine.

    Made by `Worker.reserve` on the event loop that will read it.

    Parameters
    ----------
    worker : Worker
        Whose ticket it is.
    num_choices : int
        Completions it has room for.
    """

    def __init__(self, worker: Worker, num_choices: int) -> None:
        self._worker = worker
        #: The event loop that reads it.
        self.loop = asyncio.get_running_loop()
        self._outputs: asyncio.Queue[Delivery] = asyncio.Queue()
        self.began = monotonic()
        self.num_choices = num_choices
        #: Engine ids of completions that have not ended; guarded by the worker's lock.
        self.open_ids: set[str] = set()
        self.num_submitted = 0
        self.is_closed = False

    def submit(self, requests: Sequence[GenerateRequest]) -> None:
        """Hand the completions to the engine; may be called from any thread.

        Parameters
        ----------
        requests : sequence of GenerateRequest
            One per completion, each with an id of its own.

        Raises
        ------
        ConfigError
            If one cannot be honoured; those before it are aborted.
        """
        self._worker.submit(self, requests)

    async def next(self) -> Delivery:
        """Return the next output of any completion.

        Returns
        -------
        index : int
            Which completion.
        output : StepOutput
            What it got.
        """
        return await self._outputs.get()

    def close(self) -> None:
        """Abort what has not ended. Never waits, and may be called again."""
        self._worker.close(self)

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Take outputs for who waits for them; called on the event loop."""
        for delivery in deliveries:
            self._outputs.put_nowait(delivery)


class Worker:
    """Owns `EngineCore.step`.

    Parameters
    ----------
    core : EngineCore
        The engine; nobody else may step it.
    config : ServerConfig
        Limits.
    ledger : Ledger
        Told what every step gave.
    """

    def __init__(self, core: EngineCore, config: ServerConfig, ledger: Ledger) -> None:
        self._core = core
        self._config = config
        self._ledger = ledger
        self._capacity = config.max_running + config.max_queue
        # Guards everything below; never held during a step.
        self._changed = threading.Condition()
        self._routes: dict[str, tuple[Ticket, int]] = {}
        self._num_reserved = 0
        self._is_draining = False
        self._is_aborting = False
        self._is_stopping = False
        self._is_dead = False
        self._num_failed_steps = 0
        self._step_began: float | None = None
        self._thread = threading.Thread(target=self._run, name="draftproof-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def drain(self) -> None:
        """Take no more requests; those that run go on."""
        with self._changed:
            self._is_draining = True

    def abort_all(self) -> None:
        """End every request now; their readers are told."""
        with self._changed:
            self._is_draining = self._is_aborting = True
            for request_id in self._routes:
                self._core.abort(request_id)
            self._changed.notify()

    def stop(self, timeout_s: float) -> bool:
        """Abort what runs and end the thread.

        Parameters
        ----------
        timeout_s : float
            How long to wait, in seconds.

        Returns
        -------
        bool
            Whether it has ended; a wedged step keeps it.
        """
        self.abort_all()
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def num_in_flight(self) -> int:
        """Completions accepted and not ended."""
        return self._num_reserved

    def health(self) -> Health:
        """Say how the engine is."""
        with self._changed:
            began = self._step_began
            step_s = 0.0 if began is None else monotonic() - began
            if self._is_dead:
                status = "failed"
            elif step_s > self._config.wedge_s:
                status = "wedged"
            else:
                status = "draining" if self._is_draining else "ok"
            return Health(status, step_s, self._num_reserved, self._num_failed_steps)

    def reserve(self, num_choices: int) -> Ticket:
        """Take places in the queue, before any work is done for the request.

        Parameters
        ----------
        num_choices : int
            How many completions will be submitted.

        Returns
        -------
        Ticket
            The places; close it in any case.

        Raises
        ------
        ApiError
            Status 503 while draining, wedged or failed; 429 when the queue is full.
        """
        health = self.health()
        if health.status != "ok":
            reasons = {"draining": "is shutting down", "wedged": "is stuck", "failed": "has failed"}
            raise ApiError(
                503,
                f"the server {reasons[health.status]}; expected a server that accepts requests",
                code=health.status,
                headers={"retry-after": str(math.ceil(self._config.drain_s))},
            )
        with self._changed:
            if self._num_reserved + num_choices > self._capacity:
                waiting = max(0, self._num_reserved - self._config.max_running)
                raise ApiError(
                    429,
                    f"{self._num_reserved} completions run or wait and the limit is "
                    f"{self._capacity}; this request has {num_choices}",
                    code="queue_full",
                    headers={"retry-after": str(self._retry_after_s(waiting))},
                )
            self._num_reserved += num_choices
        return Ticket(self, num_choices)

    def submit(self, ticket: Ticket, requests: Sequence[GenerateRequest]) -> None:
        """Hand a ticket's completions to the engine; see `Ticket.submit`."""
        if len(requests) > ticket.num_choices:
            raise ConfigError(f"{len(requests)} completions for {ticket.num_choices} places")
        for index, request in enumerate(requests):
            with self._changed:
                if ticket.is_closed:
                    return  # the client left while its prompt was read
                if self._is_dead or self._is_aborting:
                    raise ApiError(503, "the server has stopped", code="failed")
                self._routes[request.request_id] = (ticket, index)
                ticket.open_ids.add(request.request_id)
                ticket.num_submitted += 1
                self._ledger.accept(request, ticket.began)
            try:
                self._core.submit(request)
            except BaseException:
                with self._changed:
                    self._forget(request.request_id)
                raise
            with self._changed:
                if self._has_left(request.request_id, ticket):
                    # Who aborted meanwhile found nothing in the engine. Ended ids are ignored.
                    self._core.abort(request.request_id)
                self._changed.notify()

    def close(self, ticket: Ticket) -> None:
        """Abort what has not ended of a ticket; see `Ticket.close`."""
        with self._changed:
            if ticket.is_closed:
                return
            ticket.is_closed = True
            self._num_reserved -= ticket.num_choices - ticket.num_submitted
            for request_id in ticket.open_ids:
                self._core.abort(request_id)
            self._changed.notify()

    def _has_left(self, request_id: str, ticket: Ticket) -> bool:
        """Whether nobody waits for a completion any more; the lock is held."""
        return ticket.is_closed or self._is_aborting or request_id not in self._routes

    def _retry_after_s(self, num_waiting: int) -> int:
        """Guess when a place is free: the queue, at the pace of the last requests."""
        rounds = 1 + num_waiting / self._config.max_running
        return min(60, max(1, math.ceil(rounds * self._ledger.mean_duration_s)))

    def _forget(self, request_id: str) -> None:
        """Free the place of a completion that has ended; the lock is held."""
        route = self._routes.pop(request_id, None)
        if route is not None:
            route[0].open_ids.discard(request_id)
            self._num_reserved -= 1
            self._ledger.drop(request_id)

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._deliver(self._step())
        except BaseException as error:  # noqa: BLE001  readers must not wait for a dead thread
            self._die(error)

    def _wait_for_work(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopping or self._core.has_work)
            return self._core.has_work

    def _step(self) -> list[StepOutput]:
        """Run one step; where it raises, end every request rather than the thread."""
        passes_before = self._core.clock.num_passes
        self._note_step(monotonic())
        try:
            outputs = self._core.step()
        except Exception as error:  # noqa: BLE001  the next request must find an engine
            return self._end_all(error)
        finally:
            self._note_step(None)
        if not outputs and self._core.clock.num_passes == passes_before:
            sleep(_IDLE_S)
        return outputs

    def _note_step(self, began: float | None) -> None:
        with self._changed:
            self._step_began = began

    def _end_all(self, error: Exception) -> list[StepOutput]:
        """End every request after a step that raised."""
        with self._changed:
            self._num_failed_steps += 1
            ids = list(self._routes)
        for request_id in ids:
            self._core.abort(request_id)
        self._core.reap()
        failure = BackendError(f"a step of the engine failed ({type(error).__name__})")
        failure.__cause__ = error
        return [StepOutput(name, finish_reason="error", error=failure) for name in ids]

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        self._ledger.observe(outputs, self._core)
        batches: dict[Ticket, list[Delivery]] = {}
        with self._changed:
            for output in outputs:
                route = self._routes.get(output.request_id)
                if route is None:
                    continue
                ticket, index = route
                if not ticket.is_closed:
                    batches.setdefault(ticket, []).append((index, output))
                if output.finish_reason is not None:
                    self._forget(output.request_id)
        _hand_over(batches)

    def _die(self, error: BaseException) -> None:
        """Tell every reader that no more will come."""
        with self._changed:
            self._is_dead = True
            routes = dict(self._routes)
            for request_id in routes:
                self._forget(request_id)
        gone = RequestAbortedError(f"the engine's thread ended ({type(error).__name__})")
        gone.__cause__ = error
        batches: dict[Ticket, list[Delivery]] = {}
        for request_id, (ticket, index) in routes.items():
            output = StepOutput(request_id, finish_reason="error", error=gone)
            batches.setdefault(ticket, []).append((index, output))
        _hand_over(batches)


def _hand_over(batches: Mapping[Ticket, Sequence[Delivery]]) -> None:
    """Pass outputs to the event loops that wait for them; called by the engine's thread.

    A loop is woken once for all of them: it takes the interpreter as it wakes, and the
    engine would wait for it after each.
    """
    loops: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Sequence[Delivery]]]] = {}
    for ticket, deliveries in batches.items():
        loops.setdefault(ticket.loop, []).append((ticket, deliveries))
    for loop, parts in loops.items():
        try:
            loop.call_soon_threadsafe(_put_all, parts)
        except RuntimeError:
            continue  # the loop has ended, and with it whoever would read


def _put_all(parts: Sequence[tuple[Ticket, Sequence[Delivery]]]) -> None:
    for ticket, deliveries in parts:
        ticket.put(deliveries)
