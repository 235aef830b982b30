"""Run a service on a port until a signal ends it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from types import FrameType

import uvicorn

from draftproof.server.app import Service, create_app

__all__ = ["make_server", "serve"]

#: How long connections get to take their last bytes, in seconds.
_CLOSING_S = 5
#: How long an idle connection stays open, in seconds. Clients keep theirs for 5 or for 60;
#: who closes first must be the client, or its next request meets a closed door.
_KEEP_ALIVE_S = 75


class DrainingServer(uvicorn.Server):
    """Answers 503 to new requests after a signal and goes when the others have ended.

    A second signal ends those at once; their clients are told.

    Parameters
    ----------
    config : uvicorn.Config
        Of the server.
    service : Service
        Who runs the requests.
    on_start : callable, optional
        Given the port once the server listens.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        service: Service,
        on_start: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._service = service
        self._on_start = on_start
        self._num_signals = 0
        self._deadline: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Note a signal; the loop acts on it within a tick."""
        self._num_signals += 1

    async def on_tick(self, counter: int) -> bool:
        """Say whether the server should go."""
        if self._on_start is not None:
            self._on_start(self.servers[0].sockets[0].getsockname()[1])
            self._on_start = None
        if self._num_signals and self._deadline is None:
            worker = self._service.worker
            self._service.log.event("draining", {"num_in_flight": worker.num_in_flight})
            worker.drain()
            self._deadline = monotonic() + self._service.config.drain_s
        if self._deadline is not None and self._is_done():
            self.should_exit = True
        return await super().on_tick(counter)

    def _is_done(self) -> bool:
        worker = self._service.worker
        if worker.num_in_flight == 0:
            return True
        is_late = self._deadline is not None and monotonic() > self._deadline
        if is_late or self._num_signals > 1:
            worker.abort_all()
            return True
        return False


def make_server(service: Service, on_start: Callable[[int], None] | None = None) -> DrainingServer:
    """Return the server of a service, which listens when it is run.

    Parameters
    ----------
    service : Service
        Who answers.
    on_start : callable, optional
        Given the port once the server listens.

    Returns
    -------
    DrainingServer
        Its ``run`` blocks until a signal ends it, or ``should_exit`` is set.
    """
    config = uvicorn.Config(
        create_app(service),
        host=service.config.host,
        port=service.config.port,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_CLOSING_S,
        h11_max_incomplete_event_size=64 * 1024,
    )
    return DrainingServer(config, service, on_start)


def serve(service: Service, *, on_start: Callable[[int], None] | None = None) -> None:
    """Listen until SIGTERM or SIGINT, then drain.

    Parameters
    ----------
    service : Service
        Who answers.
    on_start : callable, optional
        Given the port once the server listens.
    """
    make_server(service, on_start).run()
    sys.stderr.flush()
