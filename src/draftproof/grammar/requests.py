"""Grammars as the APIs of OpenAI and vLLM write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.core.constraint import GrammarSpec
from draftproof.errors import ConfigError

__all__ = ["grammar_from_response_format", "grammar_from_structured_outputs"]

_FORMATS = ("json_object", "json_schema", "text")
#: Fields of structured outputs that each describe a grammar of their own ...
_FORMS = ("json", "json_object", "regex", "choice", "grammar")
#: ... and those that change how JSON is written.
_SPACING = ("disable_any_whitespace", "whitespace_pattern")
_OLD_PREFIX = "guided_"


def grammar_from_response_format(response_format: Mapping[str, Any] | None) -> GrammarSpec | None:
    """Return the grammar that OpenAI's ``response_format`` asks for.

    Parameters
    ----------
    response_format : mapping or None
        ``{"type": "text"}``, ``{"type": "json_object"}``, or ``{"type": "json_schema",
        "json_schema": {"schema": ..., "strict": ..., "name": ..., "description": ...}}``.

    Returns
    -------
    GrammarSpec or None
        None where free text is asked for.

    Raises
    ------
    ConfigError
        If the type is unknown, or a field is unknown, missing or of a wrong type.

    Notes
    -----
    The schema is always enforced, which is more than ``"strict": false`` asks for.
    ``name`` and ``description`` are labels and do not reach the model.
    """
    if response_format is None:
        return None
    response_format = _mapping("response_format", response_format)
    kind = response_format.get("type")
    if kind not in _FORMATS:
        raise ConfigError(f"response_format.type {kind!r}: expected one of {', '.join(_FORMATS)}")
    wanted = ("type", "json_schema") if kind == "json_schema" else ("type",)
    _refuse_unknown("response_format", response_format, wanted)
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec("json_object")
    where = "response_format.json_schema"
    named = _mapping(where, response_format.get("json_schema"))
    _refuse_unknown(where, named, ("name", "description", "schema", "strict"))
    for field, expected in (("name", str), ("description", str), ("strict", bool)):
        value = named.get(field)
        if value is not None and not isinstance(value, expected):
            raise ConfigError(f"{where}.{field} {value!r}: expected {expected.__name__}")
    if named.get("schema") is None:
        raise ConfigError(f"{where} has no 'schema'")
    return _json_schema(f"{where}.schema", named["schema"], {})


def grammar_from_structured_outputs(fields: Mapping[str, Any] | None) -> GrammarSpec | None:
    """Return the grammar that vLLM's structured-output fields ask for.

    Parameters
    ----------
    fields : mapping or None
        ``structured_outputs``, with one of ``json`` (a schema as a mapping or as text),
        ``json_object``, ``regex``, ``choice`` or ``grammar`` (Lark). With JSON also
        ``disable_any_whitespace`` or ``whitespace_pattern``. The older names with the
        prefix ``guided_`` mean the same. Fields that are None or False ask for nothing.

    Returns
    -------
    GrammarSpec or None
        None where nothing is asked for.

    Raises
    ------
    ConfigError
        If a field is unknown, two forms are given, or a value has a wrong type.
    """
    if fields is None:
        return None
    fields = _mapping("structured_outputs", fields)
    known = {old + name: name for name in (*_FORMS, *_SPACING) for old in ("", _OLD_PREFIX)}
    _refuse_unknown("structured_outputs", fields, known)
    given = [(key, known[key], value) for key, value in fields.items() if _asks(value)]
    forms = [(key, name, value) for key, name, value in given if name in _FORMS]
    spacing = {name: value for _, name, value in given if name in _SPACING}
    if not forms:
        if spacing:
            raise ConfigError(f"structured_outputs.{min(spacing)} needs 'json' or 'json_object'")
        return None
    if len(forms) > 1:
        keys = ", ".join(key for key, _, _ in forms)
        raise ConfigError(f"structured_outputs has {keys}: expected one of them")
    key, name, value = forms[0]
    where = f"structured_outputs.{key}"
    if spacing and name not in ("json", "json_object"):
        raise ConfigError(f"structured_outputs.{min(spacing)} has no meaning beside {key!r}")
    options = _spacing_options(spacing)
    if name == "json":
        return _json_schema(where, value, options)
    if name == "json_object":
        if value is not True:
            raise ConfigError(f"{where} {value!r}: expected true or false")
        if options:
            return _json_schema(where, {"type": "object"}, options)
        return GrammarSpec("json_object")
    if name == "choice":
        return _choice(where, value)
    if not isinstance(value, str):
        raise ConfigError(f"{where} is of type {type(value).__name__}: expected a string")
    if name == "grammar" and "::=" in value:
        raise ConfigError(f"{where} is written in EBNF ('::='): expected Lark syntax")
    return GrammarSpec("regex" if name == "regex" else "lark", value)


def _asks(value: Any) -> bool:
    return value is not None and value is not False


def _spacing_options(spacing: Mapping[str, Any]) -> dict[str, Any]:
    if len(spacing) == len(_SPACING):
        raise ConfigError(f"structured_outputs has {' and '.join(_SPACING)}: expected one of them")
    pattern = spacing.get("whitespace_pattern")
    if pattern is not None:
        if not isinstance(pattern, str):
            raise ConfigError(
                f"structured_outputs.whitespace_pattern {pattern!r}: expected a string"
            )
        return {"whitespace_pattern": pattern}
    compact = spacing.get("disable_any_whitespace")
    if compact is None:
        return {}
    if compact is not True:
        raise ConfigError(
            f"structured_outputs.disable_any_whitespace {compact!r}: expected true or false"
        )
    return {"whitespace_flexible": False}


def _json_schema(where: str, schema: Any, options: Mapping[str, Any]) -> GrammarSpec:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON: {error}") from None
    if not isinstance(schema, Mapping | bool):
        raise ConfigError(f"{where} is of type {type(schema).__name__}: expected an object")
    if options:
        if not isinstance(schema, Mapping) or "x-guidance" in schema:
            raise ConfigError(f"{where}: white space cannot be set for this schema from outside")
        schema = {**schema, "x-guidance": dict(options)}
    return GrammarSpec("json_schema", _written(where, schema))


def _choice(where: str, value: Any) -> GrammarSpec:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{where} {value!r}: expected a list of strings")
    return GrammarSpec("choice", _written(where, list(value)))


def _written(where: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, default=_as_dict)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} cannot be written as JSON: {error}") from None


def _as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is of type {type(value).__name__}: expected an object")
    return value


def _refuse_unknown(where: str, given: Mapping[str, Any], known: Any) -> None:
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        raise ConfigError(
            f"{where} has unknown fields {', '.join(unknown)}: expected {', '.join(known)}"
        )
