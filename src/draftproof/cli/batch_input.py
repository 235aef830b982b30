"""Lines of prompts: from a JSONL file to requests, each with its own options."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.cli.compare import derive_seed
from draftproof.cli.prompts import as_chat, read_stdin
from draftproof.cli.values import token_bias
from draftproof.core import strict_json
from draftproof.errors import ConfigError, DraftproofError, PromptError

if TYPE_CHECKING:
    from draftproof.core.constraint import GrammarSpec

__all__ = ["LINE_OPTIONS", "PromptLine", "read_lines"]

#: What a line may override, and the kind of its value.
LINE_OPTIONS: Mapping[str, str] = {
    "max_tokens": "an integer",
    "temperature": "a number",
    "top_k": "an integer",
    "top_p": "a number",
    "min_p": "a number",
    "repetition_penalty": "a number",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "logit_bias": "an object of numbers by token id",
    "allowed_token_ids": "a list of integers",
    "banned_token_ids": "a list of integers",
    "min_tokens": "an integer",
    "stop": "a string or a list of strings",
    "stop_token_ids": "a list of integers",
    "ignore_eos": "true or false",
    "seed": "an integer",
    "stream": "an integer",
    "logprobs": "an integer",
    "num_speculative_tokens": "an integer",
    "max_speculative_tokens": "an integer",
    "proposer": "a string",
    "rule": "a string",
    "logprobs_mode": "a string",
    "prediction": "a string",
    "tenant": "a string",
    "response_format": "an object",
    "structured_outputs": "an object",
}
#: Line keys that stand for the option ``grammar``.
_GRAMMARS = ("response_format", "structured_outputs")

_PROMPT_KEYS = ("id", "prompt", "messages")


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line of the input.

    Parameters
    ----------
    key : int or str
        Its id: the one it gives, or its line number from 1.
    prompt : str or list of dict
        Text or chat; empty when the line is at fault.
    options : mapping
        Keyword arguments of `Engine.request`.
    request_hash : str
        Names what was asked, so that a resumed run can tell a changed request.
    error : Exception, optional
        What is wrong with the line.
    """

    key: int | str
    prompt: str | list[dict[str, str]]
    options: Mapping[str, Any]
    request_hash: str
    error: DraftproofError | None = None


def read_lines(
    path: Path,
    defaults: Mapping[str, Any],
    settings: Mapping[str, Any],
    *,
    chat: bool = False,
    system: str | None = None,
) -> list[PromptLine]:
    """Read a JSONL file of prompts.

    Parameters
    ----------
    path : Path
        The file; ``-`` is stdin.
    defaults : mapping
        Request options of the command line; a line's own come first. A seed is a
        seed for all lines: each line derives its own from it and its id.
    settings : mapping
        What else decides the text, such as the model; part of the request hash.
    chat : bool, default False
        Put string prompts through the chat template.
    system : str, optional
        System message of those chats.

    Returns
    -------
    list of PromptLine
        One per line that is not blank. Lines at fault are among them, with their
        error.

    Raises
    ------
    ConfigError
        If the file cannot be read, or ids are doubled or of another kind.
    """
    lines: list[PromptLine] = []
    seen: dict[int | str, int] = {}
    for number, raw in enumerate(_read(path).split("\n"), 1):
        if not raw.strip():
            continue
        data, error = _parse(raw, number)
        key = _key(data, number)
        if key in seen:
            raise ConfigError(
                f"{path} line {number} has id {key!r}, as line {seen[key]}; expected another"
            )
        seen[key] = number
        prompt: str | list[dict[str, str]] = ""
        options: dict[str, Any] = {}
        if error is None:
            try:
                prompt = _prompt(data, number, chat, system)
                options = _options(data, number, defaults, key)
            except DraftproofError as found:
                error = found
        wanted = {"line": data if error is None else raw, "defaults": defaults, **settings}
        lines.append(PromptLine(key, prompt, options, _hash(wanted), error))
    return lines


def _read(path: Path) -> str:
    if str(path) == "-":
        return read_stdin()
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--prompts {path}: {error.strerror}; expected a JSONL file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompts {path}: byte {error.start} is not UTF-8 text") from error


def _parse(raw: str, number: int) -> tuple[dict[str, Any], DraftproofError | None]:
    try:
        data = strict_json.loads(raw)
    except ValueError as error:
        return {}, PromptError(f"line {number} is not JSON: {error}")
    if not isinstance(data, dict):
        return {}, PromptError(f"line {number} is {raw.strip()[:60]!r}; expected a JSON object")
    return data, None


def _key(data: Mapping[str, Any], number: int) -> int | str:
    key = data.get("id", number)
    if isinstance(key, bool) or not isinstance(key, int | str):
        raise ConfigError(f"line {number} has id {key!r}; expected a string or an integer")
    return key


def _prompt(
    data: Mapping[str, Any], number: int, chat: bool, system: str | None
) -> str | list[dict[str, str]]:
    if ("prompt" in data) == ("messages" in data):
        raise PromptError(f"line {number}: expected either 'prompt' or 'messages'")
    if "prompt" in data:
        text = data["prompt"]
        if not isinstance(text, str):
            raise PromptError(f"line {number}: prompt is {text!r}; expected a string")
        return as_chat(text, system) if chat else text
    messages = data["messages"]
    if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
        raise PromptError(
            f"line {number}: messages is {messages!r}; "
            "expected a list of objects with the strings 'role' and 'content'"
        )
    return messages


def _is_message(value: object) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"role", "content"}
        and all(isinstance(part, str) for part in value.values())
    )


def _options(
    data: Mapping[str, Any], number: int, defaults: Mapping[str, Any], key: int | str
) -> dict[str, Any]:
    """Merge a line's options over those of the command line."""
    options = dict(defaults)
    if options.get("seed") is not None:
        # From the id and not from the order, so that a resumed run draws the same.
        options["seed"] = derive_seed(options["seed"], json.dumps(key))
    for name, value in data.items():
        if name in _PROMPT_KEYS:
            continue
        kind = LINE_OPTIONS.get(name)
        if kind is None:
            known = [*_PROMPT_KEYS, *LINE_OPTIONS]
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise ConfigError(f"line {number}: unknown key {name!r}; nearest known key: {near!r}")
        if not _fits(value, kind):
            raise ConfigError(f"line {number}: {name} is {value!r}; expected {kind}")
        options[name] = token_bias(value, name) if name == "logit_bias" else value
    if "logprobs_mode" in data and options.get("logprobs") is None:
        raise ConfigError(f"line {number}: logprobs_mode {data['logprobs_mode']!r} needs logprobs")
    asked = [name for name in _GRAMMARS if name in data]
    if len(asked) > 1:
        raise ConfigError(f"line {number}: {' and '.join(asked)}; expected one of them")
    if asked:
        options["grammar"] = _grammar(asked[0], options.pop(asked[0]))
    return options


def _grammar(name: str, value: Mapping[str, Any]) -> GrammarSpec | None:
    from draftproof.grammar import grammar_from_response_format, grammar_from_structured_outputs

    if name == "response_format":
        return grammar_from_response_format(value)
    return grammar_from_structured_outputs(value)


def _fits(value: object, kind: str) -> bool:
    match kind:
        case "an integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "a number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "true or false":
            return isinstance(value, bool)
        case "a string":
            return isinstance(value, str)
        case "a list of integers":
            return isinstance(value, list) and all(_fits(item, "an integer") for item in value)
        case "a string or a list of strings":
            return isinstance(value, str) or _all_strings(value)
        case _:
            return isinstance(value, dict)


def _all_strings(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(item, str) for item in value)


def _hash(wanted: Mapping[str, Any]) -> str:
    text = json.dumps(wanted, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
