"""What cannot be honoured is refused in one line that says what, and nothing crashes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from grammar_kit import CONTROL, Pieces, byte_pieces, factory

from draftproof.core.constraint import GrammarSpec
from draftproof.errors import ConfigError
from draftproof.grammar.compiling import MAX_DEFINITIONS, MAX_SOURCE

MAKE = factory(byte_pieces())

CASES = [
    ("regex", "x(a", "regex grammar: character 1: unclosed group at '(a'"),
    ("regex", "a\n/b(?=x)", "character 4: look-around.* at '(?=x)'"),
    ("regex", "(a)\\1", "character 3: backreferences are not supported"),
    ("regex", "ab\\", "character 2: a backslash with nothing after it"),
    ("regex", "\\bab", "lookarounds not supported"),
    ("regex", "(" * 300 + ")" * 300, "nested parentheses"),
    ("regex", "a" * (MAX_SOURCE + 1), "131073 characters: expected at most 131072"),
    ("regex", "[^\\s\\S]", "cannot go on after 0 tokens"),
    ("json_schema", "{", "not JSON: line 1 column 2"),
    ("json_schema", "", "not JSON"),
    ("json_schema", "[1]", "type list: expected an object"),
    ("json_schema", '{"const": NaN}', "NaN is not a value"),
    ("json_schema", '{"const": ' + "1" * 5000 + "}", "not JSON: Exceeds the limit"),
    ("json_schema", '{"not": {}}', 'Unimplemented keys: ["not"]'),
    ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
    ("json_schema", '{"type": "string", "format": "x"}', "Unknown format: x"),
    ("json_schema", '{"type": "string", "pattern": "(?=a)b"}', "look-around.*'(?=a)b'"),
    ("json_schema", '{"$ref": "http://example.com/s"}', "Default retriever does not fetch"),
    ("json_schema", '{"$ref": "#"}', "cannot go on after 0 tokens"),
    ("json_schema", '{"allOf": [{"$ref": "#"}], "type": "object"}', "circular references"),
    ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum (5) is greater"),
    ("json_schema", '{"x-guidance": {"lenient": true}}', "lenient would ignore"),
    ("json_schema", '{"x-guidance": {"spaces": 1}}', "unknown field `spaces`"),
    ("json_schema", "[" * 100_000, "nested too deeply"),
    ("json_schema", '{"items":' * 200 + "{}" + "}" * 200, "recursion limit"),
    ("json_object", "{}", "takes no source"),
    ("choice", "[]", "expected a JSON list"),
    ("choice", '"a"', "expected a JSON list"),
    ("choice", '["a", 1]', "entry 1 is of type int"),
    ("choice", '["\ud800"]', "lone surrogate at character 2"),
    ("lark", 'start: "a" <|im_end|>', "<|im_end|> names a control token"),
    ("lark", 'start: "a" <[0-5]>', "<[0-5]> names a control token"),
    ("lark", 'start: a\na[temperature=0.5]: "<x>"', "option 'temperature'"),
    ("lark", 'start: a\na[lazy, max_tokens=5]: "<x>"', "option 'max_tokens'"),
    ("lark", 'start: a "b"\na[stop="b"]: /a+/', "option 'stop'"),
    ("lark", 'start: a\na[capture]: "b"', "option 'capture'"),
    ("lark", '%llguidance {"no_forcing": false}\nstart: "a"', "%llguidance options"),
    ("lark", 'start: "a"\nb: "x', "line 2 column 6: lexer error"),
    ("lark", "start: foo", 'line 1 column 8: unknown name: "foo"'),
    ("lark", 'x: "a"', "no start rule"),
    ("lark", "start: start", "cannot go on after 0 tokens"),
    ("lark", "start: " + "(" * 500 + '"a"' + ")" * 500, "too deeply nested"),
    ("lark", "start: a0\n" + "\n".join(f'a{i}: "x"' for i in range(MAX_DEFINITIONS)),
     f"{MAX_DEFINITIONS + 1} definitions: expected at most {MAX_DEFINITIONS}"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "source", "reason"), CASES, ids=lambda v: repr(v)[:40])
def test_the_reason_is_named_in_one_line(kind: str, source: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MAKE(GrammarSpec(kind, source))
    message = str(caught.value)
    assert message.startswith(f"{kind} grammar")
    assert "\n" not in message
    assert len(message) < 400
    place = 0
    for part in reason.split(".*"):
        assert part in message[place:]
        place = message.index(part, place)


def test_options_that_change_the_language_alone_are_taken() -> None:
    for source in (
        'start: a "b"\na[lazy]: /x*b/',
        'start: a\na[suffix="<end>"]: /[a-z]*/  // <not a token>',
        'start: "<|im_end|>" /<[a-z]>/  # <neither>',
    ):
        MAKE(GrammarSpec("lark", source))


def test_a_model_without_an_end_is_refused() -> None:
    for tokenizer in (Pieces([b"a", CONTROL], ends=()), Pieces([b"a"], ends=(5,))):
        with pytest.raises(ConfigError, match="no end token"):
            factory(tokenizer)


#: Sources within the limits whose compilation overflowed a stack of 8 or 16 MiB.
HOSTILE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from grammar_kit import byte_pieces, factory
from draftproof.core.constraint import GrammarSpec
from draftproof.errors import ConfigError

def chain(links, depth, wrap, last):
    defs = {"a%d" % links: last}
    for i in range(links):
        inner = {"$ref": "#/$defs/a%d" % (i + 1)}
        for _ in range(depth):
            inner = wrap(inner)
        defs["a%d" % i] = inner
    source = {"$ref": "#/$defs/a0", "$defs": defs}
    return GrammarSpec("json_schema", json.dumps(source, separators=(",", ":")))

null = {"type": "null"}
sources = [
    chain(100, 50, lambda x: {"items": x, "type": "array"}, null),
    chain(130, 95, lambda x: {"items": x}, null),
    chain(100, 40, lambda x: {"anyOf": [x, null]}, {"type": "string"}),
    chain(110, 60, lambda x: {"allOf": [x]}, {"type": "string"}),
    chain(1000, 1, lambda x: {"type": "object", "required": ["x"], "properties": {"x": x}}, null),
    chain(3000, 0, None, null),
    GrammarSpec("lark", "start: A0\\n" + "\\n".join('A%d: A%d "b"' % (i, i + 1) for i in range(250))
                + '\\nA250: "a"'),
    GrammarSpec("regex", "(a{1000}){1000}"),
    GrammarSpec("regex", "|".join("a%d.*b%d" % (i, i) for i in range(3000))),
]
make = factory(byte_pieces())
for spec in sources:
    try:
        make(spec).allowed()
        print("made")
    except ConfigError as error:
        print("refused", error)
"""


def test_deep_and_large_sources_do_not_end_the_process() -> None:
    kit = str(__file__).rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, kit], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert len(done.stdout.splitlines()) == 9, done.stdout


MISSING = """
import sys
import draftproof, draftproof.grammar
assert "llguidance" not in sys.modules, "imported before a grammar was asked for"
sys.modules["llguidance"] = None
try:
    draftproof.grammar.make_constraints(None, 5)
except draftproof.errors.ConfigError as error:
    print(error)
"""


def test_without_llguidance_the_error_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MISSING], capture_output=True, text=True, check=True
    )
    assert "pip install 'draftproof[grammar]'" in done.stdout


def test_a_grammar_is_compiled_once_and_each_request_has_its_own_state() -> None:
    make = factory(byte_pieces())
    spec = GrammarSpec("json_schema", json.dumps({"enum": [f"v{i}" for i in range(50)]}))
    first, second = make(spec), make(spec)
    first.advance(2 + ord('"'))
    first.advance(2 + ord("v"))
    assert second.allowed((2 + ord("v"),)) is None
    for number in range(40):  # more than are kept
        make(GrammarSpec("regex", f"a{number}"))
    assert make(spec).allowed((2 + ord('"'),)) is not None
