"""From the bytes of a body to a checked request, or an error that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftproof.core import strict_json
from draftproof.server.failures import ApiError

__all__ = ["NEUTRAL", "parse_body"]

_Wire = TypeVar("_Wire", bound=BaseModel)
#: How fields and token ids look, and names of branches that look alike.
_FIELD = re.compile(r"[a-z0-9_]+")
_BRANCHES = frozenset({"str", "int", "float"})

#: Fields of OpenAI's API that we do not have, and values with which they ask for nothing
#: that we do not do anyway. Clients send them; null is one of them for every field.
NEUTRAL: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "audio": (),
        "best_of": (1,),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "metadata": ({},),
        "modalities": (["text"],),
        "parallel_tool_calls": (True, False),
        "prompt_cache_key": (),
        "reasoning_effort": (),
        "safety_identifier": (),
        "service_tier": ("auto", "default"),
        "store": (False,),
        "suffix": ("",),
        "tool_choice": ("none",),
        "tools": ([],),
        "verbosity": (),
        "web_search_options": (),
    }
)


def parse_body(body: bytes, wire: type[_Wire]) -> _Wire:
    """Read a JSON body.

    Parameters
    ----------
    body : bytes
        The body.
    wire : type of BaseModel
        What it should be.

    Returns
    -------
    BaseModel
        The request. A top-level null counts as a field that is not given.

    Raises
    ------
    ApiError
        Status 400. Unknown fields are named all at once.
    """
    data = _read_json(body)
    data = {key: value for key, value in data.items() if not _asks_nothing(key, value, wire)}
    unknown = [key for key in data if key not in wire.model_fields]
    if unknown:
        names = ", ".join(key[:64] for key in unknown[:20])
        raise ApiError(
            400,
            f"unknown or unsupported field{'s' * (len(unknown) > 1)}: {names}; this endpoint "
            f"takes {', '.join(wire.model_fields)}",
            param=unknown[0][:64],
            code="unsupported_parameter",
        )
    try:
        return wire.model_validate(data)
    except ValidationError as error:
        raise _refusal(error) from None


def _asks_nothing(key: str, value: Any, wire: type[BaseModel]) -> bool:
    if key in wire.model_fields:
        return value is None
    if key not in NEUTRAL:
        return False
    # A bool equals a number in Python; in JSON it does not.
    known = [neutral for neutral in NEUTRAL[key] if type(neutral) is type(value)]
    return value is None or value in known


def _read_json(body: bytes) -> dict[str, Any]:
    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        data = strict_json.loads(body.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise ApiError(400, f"the body is not JSON: {reason}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(
            400, f"the body is a {type(data).__name__}; expected an object", code="invalid_json"
        )
    if not _is_encodable(body):
        raise ApiError(400, "a string holds half of a surrogate pair", code="invalid_json")
    return data


def _is_encodable(body: bytes) -> bool:
    r"""Whether no ``\ud800`` escape stands alone, which no text can hold."""
    if b"\\ud" not in body and b"\\uD" not in body:
        return True
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(error: ValidationError) -> ApiError:
    """Name the first field at fault; of a union, the branch that came furthest."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]
    same_field = [problem for problem in problems if problem["loc"][:1] == first["loc"][:1]]
    worst = max(same_field, key=lambda problem: len(_path(problem["loc"])))
    path = ".".join(map(str, _path(worst["loc"])))
    if worst["type"] == "missing":
        message = f"{path} is missing"
    elif worst["type"] == "extra_forbidden":
        message = f"{path} is unknown or unsupported"
    else:
        shown = json.dumps(worst["input"], ensure_ascii=False, default=str)[:80]
        message = f"{path} is {shown}; expected: {worst['msg']}"
    code = "unsupported_parameter" if worst["type"] == "extra_forbidden" else "invalid_value"
    return ApiError(400, message, param=path or None, code=code)


def _path(loc: tuple[int | str, ...]) -> list[int | str]:
    """Leave out the names that pydantic gives to the branches of a union."""
    return [
        part
        for part in loc
        if isinstance(part, int) or (_FIELD.fullmatch(part) and part not in _BRANCHES)
    ]
