"""The OpenAPI document, from the same classes that check requests."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from draftproof import __version__
from draftproof.server.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

__all__ = ["openapi_document"]

_POSTS = (
    ("/v1/completions", CompletionRequest, "Complete a prompt", True),
    ("/v1/chat/completions", ChatRequest, "Answer a chat", True),
    ("/tokenize", TokenizeRequest, "Text to token ids", False),
    ("/detokenize", DetokenizeRequest, "Token ids to text", False),
)
_GETS = (
    ("/v1/models", "What is loaded", "application/json"),
    ("/health", "Whether the server accepts requests", "application/json"),
    ("/metrics", "Prometheus metrics", "text/plain"),
    ("/openapi.json", "This document", "application/json"),
)
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openapi_document(model_name: str, *, has_key: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document.

    Parameters
    ----------
    model_name : str
        The served name, the only one that requests may give.
    has_key : bool
        Whether clients need a key.

    Returns
    -------
    dict
        Every path, its body and its errors.
    """
    kinds = [(kind, "validation") for _, kind, _, _ in _POSTS]
    _, schemas = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    for schema in schemas["$defs"].values():
        if "model" in schema["properties"]:
            schema["properties"]["model"] = {"type": "string", "const": model_name}
    components: dict[str, Any] = {"schemas": {**schemas["$defs"], "Error": _ERROR}}
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "draftproof", "version": __version__},
        "paths": {path: {"get": _get(text, kind)} for path, text, kind in _GETS}
        | {path: {"post": _post(kind, text, streams)} for path, kind, text, streams in _POSTS},
        "components": components,
    }
    if has_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _get(text: str, kind: str) -> dict[str, Any]:
    content = {kind: {"schema": {"type": "string" if kind == "text/plain" else "object"}}}
    return {
        "summary": text,
        "responses": {"200": {"description": "Done", "content": content}, "default": _error()},
    }


def _post(kind: type, text: str, streams: bool) -> dict[str, Any]:
    body = {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {
        "summary": text,
        "requestBody": {"required": True, "content": {"application/json": body}},
        "responses": {"200": {"description": "Done", "content": content}, "default": _error()},
    }


def _error() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": "Refused or failed", "content": content}
