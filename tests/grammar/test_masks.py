"""Masks equal what the definition of a regular expression allows."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from grammar_kit import CONTROL, Definition, Pieces, byte_pieces, factory, ids

from draftproof.core.constraint import GrammarKind, GrammarSpec

#: Two ends, a control token, the same bytes twice, pieces that reach over boundaries.
PIECES = Pieces(
    [b"<end>", b"a", b"b", b"c", b"ab", b"ba", b"abc", CONTROL, b"a", b"</s>", b"cc"], ends=(0, 9)
)
MAKE = factory(PIECES, padding=5)
SIZE = PIECES.vocab_size + 5

PATTERNS = [
    "a", "", "abc", "a?b?c?", "(ab|ba)*c", "[abc]{2,3}", "a*", "(a|ab)(c|bc)", "a+b{0,2}", "(abc)*",
    "c(a|b)*c", "(aa|b)+|ca",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_path_has_the_mask_of_the_definition(pattern: str) -> None:
    definition = Definition(pattern, "abc", 9)
    constraint = MAKE(GrammarSpec("regex", pattern))
    for length in range(3):
        for path in product(range(-1, SIZE), repeat=length):
            seen = ids(constraint.allowed(path))
            assert seen == definition.allowed(PIECES, path, SIZE), path


@pytest.mark.parametrize("pattern", ["(ab|ba)*c", "a?b?c?", "[abc]{2,3}"])
def test_committed_text_and_drafts_are_one_path(pattern: str) -> None:
    definition = Definition(pattern, "abc", 9)
    make = GrammarSpec("regex", pattern)
    for first in ids(MAKE(make).allowed()) or []:
        constraint = MAKE(make)
        constraint.advance(first)
        for path in product(range(PIECES.vocab_size), repeat=2):
            assert ids(constraint.allowed(path)) == definition.allowed(PIECES, (first, *path), SIZE)


def test_masks_are_read_only_rows_of_the_logits() -> None:
    mask = MAKE(GrammarSpec("regex", "a*")).allowed()
    assert mask is not None
    assert (mask.dtype, mask.shape) == (np.bool_, (SIZE,))
    assert not mask.flags.writeable
    assert ids(mask) == [0, 1, 8, 9]


def test_a_row_may_be_shorter_than_the_vocabulary() -> None:
    constraint = factory(PIECES, padding=-2)(GrammarSpec("regex", "a*"))
    assert ids(constraint.allowed()) == [0, 1, 8]  # the end at 9 cannot be emitted


def test_the_spelling_of_a_control_token_is_text_and_the_token_is_not() -> None:
    tokenizer = byte_pieces(b"<end>")
    constraint = factory(tokenizer)(GrammarSpec("regex", "<end>"))
    assert ids(constraint.allowed()) == [2 + ord("<"), tokenizer.vocab_size - 1]
    anything = factory(tokenizer)(GrammarSpec("regex", "(?s:.*)"))
    mask = anything.allowed()
    assert mask is not None
    assert mask[0], "the end of a text that matches"
    assert not mask[1], "a control token"


def test_bytes_are_allowed_as_they_make_up_characters() -> None:
    tokenizer = byte_pieces("é".encode())
    constraint = factory(tokenizer)(GrammarSpec("regex", "[éè]x"))
    first, second = (2 + byte for byte in "é".encode())
    whole = tokenizer.vocab_size - 1
    assert ids(constraint.allowed()) == [first, whole]
    assert ids(constraint.allowed([first])) == [second - 1, second]
    assert ids(constraint.allowed([first, second])) == ids(constraint.allowed([whole]))


def test_a_byte_that_no_text_holds_is_never_allowed() -> None:
    tokenizer = byte_pieces(b"\xffq", b"q")
    inverted = factory(tokenizer)(GrammarSpec("lark", "start: A\nA: ~/q/"))
    mask = inverted.allowed()
    assert mask is not None
    assert not mask[2 + 0xFF]
    assert not mask[tokenizer.vocab_size - 2]
    assert mask[2 + ord("q")]


def test_certain_text_does_not_narrow_the_mask_to_one_cut() -> None:
    """llguidance would allow the tokenizer's own cut only, which is another law."""
    tokenizer = Pieces([b"<end>", b"a", b"b", b"c", b"ab", b"bc", b"abc"])
    constraint = factory(tokenizer)(GrammarSpec("choice", '["abc"]'))
    assert ids(constraint.allowed()) == [1, 4, 6]
    assert constraint.likely(8) == (6,)
    assert ids(constraint.allowed()) == [1, 4, 6]
    assert ids(constraint.allowed([1])) == [2, 5]


QUOTES = ['"', "\\", "\n\t\x7f", "//#"]
OBJECT = {
    "type": "object",
    "properties": {"a//#": {"enum": [1, "x"]}},
    "required": ["a//#"],
    "additionalProperties": False,
}
COMPACT = {
    "x-guidance": {"whitespace_flexible": False},
    "type": "array",
    "items": {"type": "boolean"},
    "maxItems": 2,
}


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("json_object", "", ['{"a": [1, {}]}', "{}", '{"a":1,"b":null}'], ["[]", "1", " {}"]),
        ("choice", '["yes", "yes!", "n\\u00f6"]', ["yes", "yes!", "nö"], ["no", "ye"]),
        ("choice", json.dumps(QUOTES), QUOTES, ["n"]),
        ("regex", "a/b\n[/]\\d", ["a/b\n/7"], ["a/b", "a\\/b\n/7"]),
        (
            "json_schema",
            json.dumps(OBJECT),
            ['{"a//#": 1}', '{ "a//#":"x"\n}'],
            ["{}", '{"a//#": 2}', '{"b": 1}'],
        ),
        (
            "json_schema",
            json.dumps(COMPACT, indent=1),
            ["[]", "[true,false]"],
            ["[true, false]", "[true,true,true]"],
        ),
        (
            "lark",
            'start: e\ne: e "+" t | t\nt: "(" e ")" | /[0-9]+/  // a sum',
            ["1+(2+30)", "7"],
            ["1+", "(1"],
        ),
    ],
)
def test_each_kind_takes_what_it_says(
    kind: GrammarKind, source: str, good: list[str], bad: list[str]
) -> None:
    make, spec = factory(byte_pieces()), GrammarSpec(kind, source)
    for text in good + bad:
        mask = make(spec).allowed([2 + byte for byte in text.encode()])
        assert (mask is not None and bool(mask[0])) == (text in good), text
