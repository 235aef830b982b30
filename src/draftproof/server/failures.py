"""From what went wrong to a status and an error body in OpenAI's shape: one table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from draftproof.errors import (
    CapacityError,
    ConfigError,
    DraftproofError,
    InvariantError,
    NonFiniteLogitsError,
    PromptError,
    RequestAbortedError,
)

__all__ = ["ApiError", "api_error"]

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable",
    504: "timeout",
}


class ApiError(DraftproofError):
    """A request that gets an error body.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        One line for people.
    param : str, optional
        The field at fault.
    code : str, optional
        A word for programs.
    headers : mapping of str to str, optional
        More headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The body, as OpenAI's clients read it."""
        kind = _KINDS.get(self.status, "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def api_error(error: BaseException, fields: Iterable[str] = ()) -> ApiError:
    """Return the answer to a failure.

    Parameters
    ----------
    error : BaseException
        What was raised.
    fields : iterable of str
        Fields of the request; the one that the message begins with is named.

    Returns
    -------
    ApiError
        Messages of defects and of foreign exceptions are kept out of it: they may quote
        a prompt of somebody else.
    """
    if isinstance(error, ApiError):
        return error
    message = str(error)
    if isinstance(error, ConfigError):
        first = re.match(r"\w+", message)
        param = first[0] if first and first[0] in set(fields) else None
        code = None
        if isinstance(error, PromptError):
            param = param or "prompt"
            code = "context_length_exceeded" if "context" in message else "invalid_prompt"
        return ApiError(400, message, param=param, code=code)
    if isinstance(error, CapacityError):
        return ApiError(400, message, code="context_length_exceeded")
    if isinstance(error, NonFiniteLogitsError):
        return ApiError(500, message, code="non_finite_logits")
    if isinstance(error, RequestAbortedError):
        return ApiError(503, "the request was aborted by the server", code="aborted")
    if isinstance(error, DraftproofError) and not isinstance(error, InvariantError):
        return ApiError(500, message, code="engine_error")
    return ApiError(500, f"internal error ({type(error).__name__})", code="internal_error")
