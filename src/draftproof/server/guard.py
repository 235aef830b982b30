"""What every request passes: an id, who may ask, headers, the log, and the last catch."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from time import monotonic
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftproof.server.failures import ApiError, api_error
from draftproof.server.generation import json_bytes
from draftproof.server.ledger import Ledger
from draftproof.server.log import RequestLog, where_raised
from draftproof.server.pages import PAGE_PATHS
from draftproof.server.settings import LOOPBACK, ServerConfig

__all__ = ["Guard", "log_fields"]

#: What needs no key: whether the server lives, and the pages that ask for the key.
_OPEN_PATHS = PAGE_PATHS | {"/health"}
#: What is asked every few seconds, and what a page is made of: not worth a line each.
_QUIET_PATHS = PAGE_PATHS | {"/health", "/metrics", "/v1/models"}
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: The page loads nothing from elsewhere and cannot be framed.
_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("content-security-policy", _CONTENT_POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)


def log_fields(scope: Scope) -> dict[str, Any]:
    """Return where a request's fields for the log are collected.

    Parameters
    ----------
    scope : mapping
        The ASGI scope.

    Returns
    -------
    dict
        Written once the request has ended.
    """
    fields: dict[str, Any] = scope["state"]["log"]
    return fields


class Guard:
    """ASGI middleware around the routes.

    Parameters
    ----------
    app : callable
        The routes.
    config : ServerConfig
        Key and host names.
    ledger : Ledger
        Counts refusals.
    log : RequestLog
        Gets a line per request.
    """

    def __init__(self, app: ASGIApp, config: ServerConfig, ledger: Ledger, log: RequestLog) -> None:
        self._app = app
        self._config = config
        self._ledger = ledger
        self._log = log
        self._key_digest = None if config.api_key is None else _digest(config.api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = monotonic()
        headers = Headers(scope=scope)
        request_id = _request_id(headers)
        fields: dict[str, Any] = {}
        scope["state"] = dict(scope.get("state") or {}) | {"log": fields, "request_id": request_id}
        status: int | None = None

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                held = MutableHeaders(scope=message)
                held["x-request-id"] = request_id
                for name, value in _HEADERS:
                    held.setdefault(name, value)
                held.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self._admit(scope, headers)
            await self._app(scope, receive, send_guarded)
        except ClientDisconnect:
            fields["client_gone"] = True
        except Exception as error:  # noqa: BLE001  whatever it is, the client gets an answer
            answer = api_error(error)
            fields["error"] = answer.code or answer.status
            if answer.status >= 500:
                fields["raised"] = where_raised(error)
            if status is None:
                await _send_error(send_guarded, answer)
        finally:
            # 499: the client left before there was an answer.
            self._end(scope, 499 if status is None else status, began)

    def _end(self, scope: Scope, status: int, began: float) -> None:
        """Count and log a request that has ended."""
        if status >= 400 and status != 499:
            self._ledger.refuse(status)
        if status == 200 and scope["path"] in _QUIET_PATHS:
            return
        about = {
            "request_id": scope["state"]["request_id"],
            "method": scope["method"],
            "path": scope["path"][:200],
            "status": status,
            "duration_ms": round(1000 * (monotonic() - began), 3),
        }
        self._log.event("request", about | log_fields(scope))

    def _admit(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        if self._config.is_local and _host_name(host) not in (
            *LOOPBACK,
            *self._config.allowed_hosts,
        ):
            # Else a page elsewhere could reach us through a name that it points at us.
            raise ApiError(
                403,
                f"the Host header says {host[:80]!r}; expected {', '.join(LOOPBACK)} or a name "
                "given by --allowed-host",
                code="host_not_allowed",
            )
        if self._key_digest is None or scope["path"] in _OPEN_PATHS:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(_digest(key.strip()), self._key_digest)
        if scheme.lower() != "bearer" or not is_right:
            raise ApiError(
                401,
                "the API key is missing or wrong; expected 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )


async def _send_error(send: Send, error: ApiError) -> None:
    headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": json_bytes(error.body)})


def _digest(key: str) -> bytes:
    # Compared as digests, so that not even the length of the key shows in the time.
    return hashlib.sha256(key.encode()).digest()


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host
