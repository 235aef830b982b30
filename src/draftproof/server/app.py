"""The routes, joined to one engine."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from draftproof import __version__
from draftproof.engine import Engine
from draftproof.errors import ConfigError
from draftproof.server.about import model_document
from draftproof.server.failures import ApiError, api_error
from draftproof.server.generation import EventStream, Generation, json_bytes, run_whole
from draftproof.server.guard import Guard, log_fields
from draftproof.server.ledger import Ledger
from draftproof.server.log import RequestLog
from draftproof.server.metrics import CONTENT_TYPE_LATEST, Metrics
from draftproof.server.openapi import openapi_document
from draftproof.server.pages import page_routes
from draftproof.server.parsing import parse_body
from draftproof.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from draftproof.server.settings import ServerConfig
from draftproof.server.shapes import Head
from draftproof.server.spelling import Speller
from draftproof.server.translate import as_turns
from draftproof.server.worker import Worker

__all__ = ["Service", "create_app"]

_Wire = TypeVar("_Wire", bound=BaseModel)
#: How long the engine's thread may take to end, in seconds.
_STOP_S = 10.0
_JSON = "application/json"


class Service:
    """One engine behind the routes.

    Parameters
    ----------
    engine : Engine
        The engine; the service alone steps it from now on.
    config : ServerConfig
        Limits and manners.
    log : RequestLog, optional
        Gets a line per request; stderr when None.

    Raises
    ------
    ConfigError
        If the model has no tokenizer.
    """

    def __init__(self, engine: Engine, config: ServerConfig, log: RequestLog | None = None) -> None:
        _ = engine.tokenizer  # raises where there is none
        self.engine = engine
        self.config = config
        self.log = log or RequestLog()
        self.created = int(time.time())
        registry = CollectorRegistry()
        self.ledger = Ledger(registry)
        self.worker = Worker(engine.core, config, self.ledger)
        self.metrics = Metrics(registry, self.ledger, engine.core.target, self.worker)
        info = engine.core.target.info
        self._fingerprint = f"draftproof-{__version__}-{info.runtime}-{info.precision}"

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        """Run the engine's thread for as long as the app lives."""
        self.worker.start()
        try:
            yield
        finally:
            has_ended = await asyncio.to_thread(self.worker.stop, _STOP_S)
            self.log.event("stopped", {"engine_thread_ended": has_ended})

    def routes(self) -> list[Route]:
        """Return the routes of the API."""
        return [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.model, methods=["GET"]),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/health", self.health, methods=["GET"]),
            Route("/metrics", self.show_metrics, methods=["GET"]),
            Route("/openapi.json", self.openapi, methods=["GET"]),
        ]

    async def completions(self, request: Request) -> ASGIApp:
        """Serve ``/v1/completions``."""
        return await self._generate(request, CompletionRequest, "cmpl")

    async def chat_completions(self, request: Request) -> ASGIApp:
        """Serve ``/v1/chat/completions``."""
        return await self._generate(request, ChatRequest, "chatcmpl")

    async def models(self, _request: Request) -> Response:
        """Serve ``/v1/models``."""
        return _json({"object": "list", "data": [model_document(self)]})

    async def model(self, request: Request) -> Response:
        """Serve one model of ``/v1/models``."""
        self._check_model(request.path_params["model"])
        return _json(model_document(self))

    async def tokenize(self, request: Request) -> Response:
        """Serve ``/tokenize``."""
        wire = await self._read(request, TokenizeRequest)
        if (wire.prompt is None) == (wire.messages is None):
            raise ApiError(400, "expected prompt or messages, and not both", param="prompt")
        tokenizer = self.engine.tokenizer

        def encode() -> list[int]:
            if wire.messages is not None:
                return tokenizer.encode_chat(as_turns(wire.messages))
            return tokenizer.encode(wire.prompt or "", add_special=wire.add_special_tokens)

        tokens = await _named_errors(encode, TokenizeRequest)
        document: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": self.engine.core.target.info.context_length,
            "tokens": tokens,
        }
        if wire.return_token_strs:
            document["token_strs"] = [Speller(tokenizer).text(token) for token in tokens]
        return _json(document)

    async def detokenize(self, request: Request) -> Response:
        """Serve ``/detokenize``."""
        wire = await self._read(request, DetokenizeRequest)
        size = self.engine.tokenizer.vocab_size
        if wire.tokens and max(wire.tokens) >= size:
            raise ApiError(
                400,
                f"tokens holds {max(wire.tokens)}; expected ids from 0 to {size - 1}",
                param="tokens",
            )
        return _json({"prompt": await asyncio.to_thread(self.engine.tokenizer.decode, wire.tokens)})

    async def health(self, _request: Request) -> Response:
        """Serve ``/health``."""
        health = self.worker.health()
        document = {
            "status": health.status,
            "step_s": round(health.step_s, 3),
            "num_in_flight": health.num_in_flight,
            "num_failed_steps": health.num_failed_steps,
        }
        return _json(document, 200 if health.status == "ok" else 503)

    async def show_metrics(self, _request: Request) -> Response:
        """Serve ``/metrics``."""
        body = await asyncio.to_thread(self.metrics.render)
        return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})

    async def openapi(self, _request: Request) -> Response:
        """Serve ``/openapi.json``."""
        return _json(
            openapi_document(self.config.model_name, has_key=self.config.api_key is not None)
        )

    async def _generate(
        self, request: Request, kind: type[CompletionRequest | ChatRequest], prefix: str
    ) -> ASGIApp:
        wire = await self._read(request, kind)
        fields = log_fields(request.scope)
        head = Head(
            f"{prefix}-{secrets.token_hex(12)}",
            int(time.time()),
            self.config.model_name,
            self._fingerprint,
        )
        fields |= {"response_id": head.response_id, "stream": wire.stream, "n": wire.n}
        if wire.stream_options is not None and not wire.stream:
            raise ApiError(
                400, "stream_options needs stream: true beside it", param="stream_options"
            )
        if self.config.log_prompts:
            fields["prompt"] = wire.model_dump(include={"messages", "prompt"})

        async def begin() -> Generation:
            try:
                return await Generation.begin(
                    wire, head, engine=self.engine, worker=self.worker, config=self.config
                )
            except ConfigError as error:
                raise api_error(error, kind.model_fields) from error

        def seen(generation: Generation) -> None:
            fields.update(self._about(generation))

        if wire.stream:
            return EventStream(await begin(), fields, seen)
        document = await run_whole(begin, request.receive, seen)
        if document is None:
            fields["client_gone"] = True
            raise ClientDisconnect
        return Response(document, headers={"content-type": _JSON})

    def _about(self, generation: Generation) -> dict[str, Any]:
        """Return what the log says about a generating request."""
        results = generation.finished()
        first_s = generation.first_token_s
        about: dict[str, Any] = {
            "prompt_tokens": generation.answer.num_prompt_tokens,
            "completion_tokens": generation.num_tokens,
            "draft_tokens": sum(result.stats.num_draft_tokens for result in results),
            "accepted_tokens": sum(result.stats.num_accepted_tokens for result in results),
            "finish_reasons": [result.finish_reason for result in results],
            "exactness": sorted({result.exactness for result in results}),
            "first_token_ms": None if first_s is None else round(1000 * first_s, 3),
        }
        if self.config.log_prompts:
            about["texts"] = [result.text for result in results]
        return about

    async def _read(self, request: Request, kind: type[_Wire]) -> _Wire:
        """Read and check a body and the model it names."""
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != _JSON:
            # Also keeps pages of other sites out: they may post forms and plain text unasked.
            raise ApiError(
                415, f"content-type is {content_type[:80]!r}; expected {_JSON}", code="content_type"
            )
        wire = parse_body(await self._body(request), kind)
        model = getattr(wire, "model", None)
        if model is not None:
            self._check_model(model)
        return wire

    async def _body(self, request: Request) -> bytes:
        limit = self.config.max_body_bytes
        refusal = ApiError(
            413, f"the body is too long; expected at most {limit} bytes", code="body_too_long"
        )
        announced = request.headers.get("content-length", "0")
        if announced.isdigit() and int(announced[:20]) > limit:
            raise refusal
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > limit:
                raise refusal
            parts.append(part)
        return b"".join(parts)

    def _check_model(self, name: str) -> None:
        if name != self.config.model_name:
            raise ApiError(
                404,
                f"the model {name[:80]!r} does not exist; expected {self.config.model_name!r}",
                param="model",
                code="model_not_found",
            )


def create_app(service: Service) -> ASGIApp:
    """Return the ASGI application of a service.

    Parameters
    ----------
    service : Service
        The engine behind it.

    Returns
    -------
    callable
        Its lifespan starts and stops the engine's thread.
    """
    middleware: list[Middleware] = []
    if service.config.cors_origins:
        middleware.append(_cors(service.config.cors_origins))
    middleware.append(
        Middleware(Guard, config=service.config, ledger=service.ledger, log=service.log)
    )
    return Starlette(
        routes=[*service.routes(), *page_routes()],
        middleware=middleware,
        lifespan=service.lifespan,
        exception_handlers={HTTPException: _http_error, ApiError: _api_error},
    )


def _cors(origins: Sequence[str]) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["authorization", "content-type", "x-request-id"],
        expose_headers=["x-request-id", "retry-after"],
    )


async def _named_errors(work: Any, kind: type[BaseModel]) -> Any:
    try:
        return await asyncio.to_thread(work)
    except ConfigError as error:
        raise api_error(error, kind.model_fields) from error


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer for the router: no such path, or another method."""
    assert isinstance(error, HTTPException)  # narrows the type
    message = {404: "no such path", 405: "this path takes another method"}.get(
        error.status_code, error.detail
    )
    answer = ApiError(error.status_code, message, headers=error.headers)
    return await _api_error(request, answer)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)  # narrows the type
    log_fields(request.scope)["error"] = error.code or error.status
    return _json(error.body, error.status, error.headers)


def _json(document: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(json_bytes(document), status, {"content-type": _JSON, **dict(headers or {})})
