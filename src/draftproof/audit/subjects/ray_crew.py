"""Parts of an audit drawn on a Ray cluster.

Each part is a task. Ray runs a task again where its worker or node is lost; what it gives up on
is asked for anew by `draftproof.audit.subjects.parts.gather`.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import version
from types import ModuleType
from typing import Any

from draftproof.audit.subjects.draws import Draws, Subject
from draftproof.audit.subjects.parts import Part, Work, shares
from draftproof.errors import BackendError, ConfigError, DraftproofError

__all__ = ["RayCrew", "check_reachable", "ray_crew"]

_PACKAGE = "draftproof"
#: Parts of a look for each core: what a lost worker had in hand is little.
_PARTS_PER_CPU = 4
#: Most draws of a part, so that a result stays small.
_MOST_DRAWS = 5000
#: How often Ray runs a task again whose worker was lost.
_RETRIES = 3
#: Seconds that a cluster gets to take a connection.
_PATIENCE_S = 10.0
#: HTTP/2: bytes of the head of a frame, the type of the first one, and the client's greeting
#: with empty settings of its own.
_FRAME_HEAD, _SETTINGS = 9, 4
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0))
#: Where ``ray://HOST`` is.
_CLIENT_PORT = "10001"


class RayCrew:
    """Draws parts as tasks of a cluster that is connected.

    Parameters
    ----------
    ray : module
        Ray.
    recipe : callable
        Makes the subject, once in every worker.
    work : Work
        What is drawn in all.
    """

    def __init__(self, ray: ModuleType, recipe: Callable[[], Subject], work: Work) -> None:
        self._ray = ray
        self._told = (ray.put(ray.cloudpickle.dumps(recipe)), ray.put(work))
        self._task = ray.remote(
            num_cpus=1, max_retries=_RETRIES, retry_exceptions=False, scheduling_strategy="SPREAD"
        )(_draw_part)

    def parts(self, low: int, high: int) -> list[Part]:
        """Return a range of draws in parts, several for each core of the cluster."""
        cpus = max(1, int(self._ray.cluster_resources().get("CPU", 0)))
        most = max(_PARTS_PER_CPU * cpus, math.ceil((high - low) / _MOST_DRAWS))
        return shares(high - low, most, low)

    def run(self, parts: Sequence[Part]) -> Iterator[tuple[Part, list[Draws]]]:
        """Draw parts; see `draftproof.audit.subjects.parts.Crew`.

        Parameters
        ----------
        parts : sequence of Part
            Which.

        Yields
        ------
        (Part, list of Draws)
            As they are finished; without those that Ray gave up on.

        Raises
        ------
        DraftproofError
            If a subject fails: that is no loss, and drawing again would not help.
        """
        running = {self._task.remote(*self._told, part, version(_PACKAGE)): part for part in parts}
        while running:
            finished, _ = self._ray.wait(list(running), num_returns=1)
            for reference in finished:
                part = running.pop(reference)
                draws = self._answer(reference)
                if draws is not None:
                    yield part, draws

    def _answer(self, reference: Any) -> list[Draws] | None:
        """Return the draws of a part, None where they are lost."""
        try:
            draws: list[Draws] = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, DraftproofError):
                raise cause from error
            raise BackendError(f"a worker failed: {cause!r}") from error
        except self._ray.exceptions.RayError:
            return None
        return draws


@contextmanager
def ray_crew(address: str, recipe: Callable[[], Subject], work: Work) -> Iterator[RayCrew]:
    """Connect to a cluster for the time of an audit.

    Parameters
    ----------
    address : str
        As ``ray.init`` takes it: ``"auto"`` for the cluster of this machine, ``"local"``
        for one that ends with the audit, ``"HOST:PORT"``, ``"ray://HOST:PORT"``.
    recipe : callable
        Makes the subject; picklable by Ray.
    work : Work
        What is drawn in all.

    Yields
    ------
    RayCrew
        Draws until the block ends.

    Raises
    ------
    ConfigError
        If Ray is not installed.
    BackendError
        If there is no cluster at the address.
    """
    try:
        import ray
        import ray.cloudpickle
        import ray.exceptions
    except ImportError as error:
        raise ConfigError("--ray needs ray: pip install 'draftproof[ray]'") from error
    is_ours = not ray.is_initialized()
    if is_ours:
        check_reachable(address)
        try:
            ray.init(address, logging_level="WARNING", log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            first = (str(error) or repr(error)).splitlines()[0]
            raise BackendError(f"no Ray cluster at {address!r}: {first}") from error
    try:
        yield RayCrew(ray, recipe, work)
    finally:
        if is_ours:
            ray.shutdown()


def check_reachable(address: str) -> None:
    """Refuse an address where nobody listens, or something else: Ray tries it for minutes.

    Parameters
    ----------
    address : str
        As `ray_crew` takes it. What names no host and port is left to Ray.

    Raises
    ------
    BackendError
        If no connection is made within 10 s, or what listens does not answer as HTTP/2 within
        10 s more, as all of Ray's ports do. Clusters with TLS are asked for a connection alone.
    """
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.partition("/")[0].rpartition(":")
    if scheme == "ray" and not port.isdecimal():
        host, port = port, _CLIENT_PORT
    if scheme not in ("", "ray") or not host or not port.isdecimal():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _PATIENCE_S) as connection:
            speaks = _has_tls() or _speaks_http2(connection)
    except (OSError, OverflowError, UnicodeError) as error:
        raise BackendError(f"no Ray cluster at {address!r}: {error}") from error
    if not speaks:
        raise BackendError(
            f"no Ray cluster at {address!r}: something listens there that does not answer as Ray "
            f"does within {_PATIENCE_S:g} s"
        )


def _speaks_http2(connection: socket.socket) -> bool:
    """Say whether the other end answers HTTP/2's greeting (RFC 9113, 3.4) with its settings."""
    answer = b""
    try:
        connection.sendall(_GREETING)
        while len(answer) < _FRAME_HEAD:
            part = connection.recv(_FRAME_HEAD - len(answer))
            if not part:
                return False
            answer += part
    except OSError:
        return False
    return answer[3] == _SETTINGS


def _has_tls() -> bool:
    # As Ray reads it: its ports speak TLS then, and no plain greeting is answered.
    return os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true")


def _draw_part(recipe: bytes, work: Work, part: Part, expected: str) -> list[Draws]:
    """Draw a part; runs in a worker of the cluster."""
    found = version(_PACKAGE)
    if found != expected:
        raise ConfigError(f"a worker has draftproof {found}: expected {expected}, as here")
    return work.draw(_subject(recipe), part)


@lru_cache(maxsize=1)
def _subject(recipe: bytes) -> Subject:
    """Make the subject once in a worker, which draws many parts."""
    import ray.cloudpickle

    subject: Subject = ray.cloudpickle.loads(recipe)()
    return subject
