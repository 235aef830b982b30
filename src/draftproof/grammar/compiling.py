"""From a grammar specification to a parser at its start, with bounds and clear errors.

Three things differ from llguidance's defaults. Masks are not narrowed to the tokens
that the tokenizer would choose for text that is certain (``no_forcing``): a mask holds
every token that can continue a match, so that the law is the target's own, conditioned
on the grammar alone. Options that this engine does not carry out (captures, temperatures
and token counts inside a grammar, stop strings that are hidden again, control tokens by
name) are refused. And compiling runs on a thread with a large stack: the compiler
recurses along chains of references, and a chain of a thousand overflows an ordinary
stack, which no exception reports.
"""

from __future__ import annotations

import json
import re
import threading
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import llguidance

from draftproof.core.constraint import GrammarSpec
from draftproof.errors import ConfigError

__all__ = ["MAX_DEFINITIONS", "MAX_SOURCE", "compile_grammar"]

#: Longest source, in characters.
MAX_SOURCE = 128 * 1024
#: Most definitions of one Lark grammar; compile time grows with their square at worst.
MAX_DEFINITIONS = 256
#: Stack of the compiling thread in bytes. The deepest sources within ``MAX_SOURCE`` that
#: were tried need between 16 and 256 MiB. Only pages that are touched are ever backed.
_STACK = 256 * 1024 * 1024
#: The stack size of new threads is a setting of the process.
_stack_setting = threading.Lock()

#: At the end, so that line numbers stay the user's and nothing before can undo it.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'

#: Work per position, llguidance's defaults, stated so that they are ours to keep.
_LIMITS = llguidance.LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=250_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)

#: A string, a regular expression or a comment of a Lark grammar.
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')
_DEFINITION = re.compile(r"(?m)^\s*[?!]?@?[A-Za-z_][\w.-]*\s*(?:\[([^\]\n]*)\])?[^:\n]*:")
_REFUSED_OPTIONS = ("capture", "max_tokens", "stop", "stop_capture", "temperature")


def compile_grammar(
    spec: GrammarSpec, parser_tokens: llguidance.LLTokenizer
) -> llguidance.LLMatcher:
    """Return a parser that stands at the start of the grammar.

    Parameters
    ----------
    spec : GrammarSpec
        The grammar.
    parser_tokens : llguidance.LLTokenizer
        The tokens of the model.

    Returns
    -------
    llguidance.LLMatcher
        To be copied, never advanced.

    Raises
    ------
    ConfigError
        If the source is too long, malformed or asks for what is not supported.
    """
    if len(spec.source) > MAX_SOURCE:
        raise ConfigError(
            f"{spec.kind} grammar of {len(spec.source)} characters: expected at most {MAX_SOURCE}"
        )
    try:
        spec.source.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{spec.kind} grammar holds a lone surrogate at character {error.start}"
        ) from None
    source = _LARK_OF[spec.kind](spec.source) + _OPTIONS
    matcher = _on_large_stack(
        lambda: llguidance.LLMatcher(parser_tokens, source, log_level=0, limits=_LIMITS)
    )
    if matcher.is_error():
        raise ConfigError(f"{spec.kind} grammar: {_reason(spec, matcher.get_error())}")
    return matcher


def _on_large_stack(work: Callable[[], llguidance.LLMatcher]) -> llguidance.LLMatcher:
    made: list[llguidance.LLMatcher] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            made.append(work())
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)

    with _stack_setting:
        before = threading.stack_size(_STACK)
        try:
            thread = threading.Thread(target=run, name="draftproof-grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _json_schema(source: str) -> str:
    schema = _parsed(source, "json_schema")
    if not isinstance(schema, dict | bool):
        raise ConfigError(
            f"json_schema grammar is of type {type(schema).__name__}: expected an object"
        )
    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    if isinstance(options, dict) and options.get("lenient"):
        raise ConfigError(
            "json_schema grammar: x-guidance.lenient would ignore keywords that are not "
            "supported; remove it to see which"
        )
    return f"start: %json {source}"


def _json_object(source: str) -> str:
    if source:
        raise ConfigError(f"json_object grammar takes no source, got {source[:40]!r}")
    return 'start: %json {"type": "object"}'


def _regex(source: str) -> str:
    if (len(source) - len(source.rstrip("\\"))) % 2:
        raise ConfigError(
            f"regex grammar: character {len(source) - 1}: a backslash with nothing after it"
        )
    return f"start: /{llguidance.regex_to_lark(source)}/" if source else 'start: ""'


def _choice(source: str) -> str:
    words = _parsed(source, "choice")
    if not isinstance(words, list) or not words:
        raise ConfigError(f"choice grammar {source[:40]!r}: expected a JSON list of strings")
    for index, word in enumerate(words):
        if not isinstance(word, str):
            raise ConfigError(
                f"choice grammar: entry {index} is of type {type(word).__name__}, expected a string"
            )
    return "start: " + " | ".join(json.dumps(word) for word in words)


def _lark(source: str) -> str:
    bare = _QUOTED.sub('""', source)
    definitions = list(_DEFINITION.finditer(bare))
    if len(definitions) > MAX_DEFINITIONS:
        raise ConfigError(
            f"lark grammar of {len(definitions)} definitions: expected at most {MAX_DEFINITIONS}"
        )
    for definition in definitions:
        for option in (definition.group(1) or "").split(","):
            name = option.partition("=")[0].strip()
            if name in _REFUSED_OPTIONS:
                raise ConfigError(f"lark grammar: the option {name!r} of a rule is not supported")
    if "%llguidance" in bare:
        raise ConfigError("lark grammar: %llguidance options are not supported")
    named = re.search(r"<[^<>\n]*>", bare)
    if named is not None:
        raise ConfigError(
            f"lark grammar: {named.group()} names a control token; a grammar describes text only"
        )
    return source


_LARK_OF: dict[str, Callable[[str], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "lark": _lark,
}


def _parsed(source: str, kind: str) -> Any:
    try:
        return json.loads(source, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        reason = f"line {error.lineno} column {error.colno}: {error.msg}"
        raise ConfigError(f"{kind} grammar is not JSON: {reason}") from None
    except ValueError as error:  # a number of too many digits
        raise ConfigError(f"{kind} grammar is not JSON: {error}") from None
    except RecursionError:
        raise ConfigError(f"{kind} grammar is nested too deeply") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a value")


def _reason(spec: GrammarSpec, report: str) -> str:
    """Return one line of llguidance's report: where, and what is wrong."""
    lines = report.splitlines() or ["unknown error"]
    faults = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if faults:
        # The report of an expression: itself, a caret below the place, the fault.
        caret = next((i for i, line in enumerate(lines) if re.fullmatch(r" *\^+", line)), 0)
        if spec.kind == "regex":
            place = _place_in_regex(spec.source, lines[caret].index("^") - 4)
            return f"character {place}: {faults[0]} at {spec.source[place : place + 40]!r}"
        return f"{faults[0]} in {lines[caret - 1].strip()[:60]!r}"
    located = re.match(r"(?:at )?(\d+)\((\d+)\): (.*)", lines[0])
    if located is None:
        return lines[0]
    line, column, what = located.groups()
    if spec.kind == "lark":
        return f"line {line} column {column}: {what}"
    return what.removeprefix("failed to compile JSON schema: ")


def _place_in_regex(source: str, place: int) -> int:
    """Return the character of the source at a place of its spelling inside a grammar."""

    def spelled(end: int) -> int:
        return len(llguidance.regex_to_lark(source[:end]))

    return bisect_left(range(len(source)), place, key=spelled)
