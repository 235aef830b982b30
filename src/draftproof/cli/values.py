"""What the text of options and lines turns into, checked before a model is loaded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.core import strict_json
from draftproof.errors import ConfigError

if TYPE_CHECKING:
    from draftproof.core.constraint import GrammarSpec

__all__ = [
    "bias_option",
    "check_request",
    "grammar_option",
    "has_drafter",
    "json_object",
    "read_text_file",
    "speculative_config",
    "token_bias",
]


def json_object(text: str, what: str) -> dict[str, Any]:
    """Read a JSON object.

    Parameters
    ----------
    text : str
        The JSON.
    what : str
        Its name in errors.

    Returns
    -------
    dict
        The object.

    Raises
    ------
    ConfigError
        If it is not one.
    """
    try:
        value = strict_json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{what} is {text!r}; expected JSON ({error})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{what} is {text!r}; expected a JSON object")
    return value


def token_bias(bias: Mapping[str, Any], what: str) -> dict[int, float]:
    """Turn the string keys of a JSON object into token ids.

    Parameters
    ----------
    bias : mapping
        Biases by token id.
    what : str
        Its name in errors.

    Returns
    -------
    dict of int to float
        The biases.

    Raises
    ------
    ConfigError
        If a key is no token id or a value no number.
    """
    result: dict[int, float] = {}
    for key, value in bias.items():
        if not key.isascii() or not key.isdecimal():
            raise ConfigError(f"{what} has the key {key!r}; expected a token id")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{what} of token {key} is {value!r}; expected a number")
        result[int(key)] = float(value)
    return result


def bias_option(text: str | None) -> dict[int, float] | None:
    """Read ``--logit-bias``.

    Parameters
    ----------
    text : str, optional
        The JSON.

    Returns
    -------
    dict of int to float, optional
        Biases by token id.

    Raises
    ------
    ConfigError
        If it is not an object of numbers by token id.
    """
    return None if text is None else token_bias(json_object(text, "--logit-bias"), "--logit-bias")


def speculative_config(
    text: str | None,
    *,
    draft_model: str | None,
    num_speculative_tokens: int | str | None,
    rule: str | None,
    draft: str | None = None,
) -> dict[str, Any]:
    """Join the JSON of ``--speculative-config`` with its shorthands.

    Parameters
    ----------
    text : str, optional
        The JSON.
    draft_model : str, optional
        Stands for ``method`` and ``model``: a model, or a draft head.
    num_speculative_tokens : int or str, optional
        Stands for the key of the same name: a number, also as text, or ``"auto"``.
    rule : str, optional
        Stands for ``rejection_sample_method``.
    draft : str, optional
        Stands for ``method`` and, behind a colon, for ``num_layers`` or ``model``.

    Returns
    -------
    dict
        The configuration, not checked further.

    Raises
    ------
    ConfigError
        If an option contradicts the JSON, or drafts are asked for without a drafter.
    """
    config = {} if text is None else json_object(text, "--speculative-config")
    if isinstance(num_speculative_tokens, str) and num_speculative_tokens != "auto":
        num_speculative_tokens = _whole_or_auto(num_speculative_tokens)
    shorthands = {
        "method": ("--draft-model", None if draft_model is None else _method_of(draft_model)),
        "model": ("--draft-model", draft_model),
        "num_speculative_tokens": ("--num-speculative-tokens", num_speculative_tokens),
        "rejection_sample_method": ("--rule", rule),
    }
    if draft is not None:
        if draft_model is not None:
            raise ConfigError(
                f"--draft {draft} and --draft-model {draft_model}; expected one of them"
            )
        shorthands |= {key: ("--draft", value) for key, value in _draft_option(draft).items()}
    for key, (option, value) in shorthands.items():
        if value is None:
            continue
        if config.setdefault(key, value) != value:
            raise ConfigError(
                f"--speculative-config has {key} {config[key]!r} and {option} says {value!r}; "
                "expected one of them"
            )
    if num_speculative_tokens and not has_drafter(config):
        raise ConfigError(
            f"num_speculative_tokens is {num_speculative_tokens} and there is no drafter; "
            'expected --draft-model, --draft or --speculative-config \'{"method": "ngram"}\''
        )
    return config


def _draft_option(text: str) -> dict[str, Any]:
    """Read ``--draft``: a method, and what it needs behind a colon."""
    method, colon, value = text.partition(":")
    method = method.replace("-", "_")
    if not colon:
        return {"method": method}
    if method == "early_exit":
        if not value.isascii() or not value.isdecimal():
            raise ConfigError(f"--draft is {text!r}; expected a number of layers, as early-exit:8")
        return {"method": method, "num_layers": int(value)}
    from draftproof.build.methods import LAWFUL

    if method not in LAWFUL or not value:
        raise ConfigError(
            f"--draft is {text!r}; expected early-exit:LAYERS, draft-model:MODEL, or a method "
            "without a value"
        )
    return {"method": method, "model": value}


def _method_of(draft_model: str) -> str:
    """Return how a model or a head drafts."""
    from draftproof.models.head_files import is_head

    return "draft_head" if is_head(draft_model) else "draft_model"


def _whole_or_auto(text: str) -> int:
    """Read the number of drafts where it is not ``auto``."""
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(
            f"--num-speculative-tokens is {text!r}; expected a whole number or auto"
        ) from error


def has_drafter(config: Mapping[str, Any]) -> bool:
    """Whether a configuration names a drafter.

    Parameters
    ----------
    config : mapping
        From `speculative_config`.

    Returns
    -------
    bool
        False for plain decoding.
    """
    return config.get("method", "none") != "none" or config.get("model") is not None


def check_request(options: Mapping[str, Any]) -> None:
    """Refuse options out of range now, before a model is loaded.

    Parameters
    ----------
    options : mapping
        Keyword arguments of `Engine.request`.

    Raises
    ------
    ConfigError
        If a value cannot be honoured by any model.
    """
    from draftproof.core.policy import SamplingParams
    from draftproof.engine import GenerateRequest

    given = {key: value for key, value in options.items() if value is not None}
    policy = {field.name for field in dataclasses.fields(SamplingParams) if field.init}
    SamplingParams(**{key: value for key, value in given.items() if key in policy})
    GenerateRequest(
        prompt_ids=(0,),
        params=SamplingParams(min_tokens=given.get("min_tokens", 0)),
        max_tokens=given["max_tokens"],
        stop=tuple(given.get("stop", ())),
        kappa=given.get("num_speculative_tokens"),
        logprobs=given.get("logprobs"),
        logprobs_mode=given.get("logprobs_mode", "raw"),
    )


def grammar_option(
    *,
    json_schema: str | None,
    json_object: bool,
    regex: str | None,
    choice: Sequence[str] | None,
    grammar: Path | None,
) -> GrammarSpec | None:
    """Read the options that say what the whole output must match.

    Parameters
    ----------
    json_schema : str, optional
        A JSON schema, or the path of a file that holds one.
    json_object : bool
        Any JSON object.
    regex : str, optional
        A regular expression.
    choice : sequence of str, optional
        One of these texts.
    grammar : Path, optional
        A file with a grammar in Lark syntax.

    Returns
    -------
    GrammarSpec or None
        None where nothing is asked for.

    Raises
    ------
    ConfigError
        If more than one is given, or a file cannot be read.
    """
    from draftproof.core.constraint import GrammarSpec

    given = {
        "--json-schema": json_schema,
        "--json-object": json_object or None,
        "--regex": regex,
        "--choice": choice or None,
        "--grammar": grammar,
    }
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(names)} are given; expected one of them")
    if json_schema is not None:
        is_text = json_schema.lstrip().startswith(("{", "true", "false"))
        source = json_schema if is_text else read_text_file(Path(json_schema), "--json-schema")
        return GrammarSpec("json_schema", source)
    if json_object:
        return GrammarSpec("json_object")
    if regex is not None:
        return GrammarSpec("regex", regex)
    if choice:
        return GrammarSpec("choice", json.dumps(list(choice)))
    if grammar is not None:
        return GrammarSpec("lark", read_text_file(grammar, "--grammar"))
    return None


def read_text_file(path: Path, option: str) -> str:
    """Read a UTF-8 file that an option names.

    Parameters
    ----------
    path : Path
        The file.
    option : str
        Its option, for errors.

    Returns
    -------
    str
        The text.

    Raises
    ------
    ConfigError
        If it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}; expected a text file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{option} {path}: byte {error.start} is not UTF-8 text") from error
