"""Asking changes nothing: a constraint equals a fresh one that took in the same tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from grammar_kit import after, byte_pieces, factory, ids
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.constraint import Constraint, GrammarSpec
from draftproof.errors import InvariantError

SCHEMA = {
    "type": "object",
    "properties": {
        "abc": {"type": "integer", "minimum": 3, "maximum": 120},
        "é": {"enum": ["ab", "cé", 'b"']},
        "l": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["abc"],
    "additionalProperties": False,
}
PIECES = byte_pieces(b'{"', b'":', b'": ', b"true", b'"}', b"},", b"  ", b"12", "é".encode(), b"ab")
MAKE = factory(PIECES, padding=3)
SIZE = PIECES.vocab_size + 3
SPECS = [
    GrammarSpec("json_schema", json.dumps(SCHEMA)),
    GrammarSpec("json_object"),
    GrammarSpec("regex", "(ab|abc|é)*[a-c]{2,4}(x|yz)?"),
    GrammarSpec("choice", '["abc", "abcd", "a{\\"x"]'),
    GrammarSpec("lark", 'start: e\ne: e "+" t | t\nt: "(" e ")" | N\nN: /\\d+/\n%ignore / {0,3}/'),
    GrammarSpec("lark", "start: A B\nA: /a*/\nB: /(ab)*c/"),
]  # fmt: skip


def drafted(constraint: Constraint, picks: list[int]) -> tuple[int, ...]:
    """Turn numbers into a path: mostly allowed tokens, some ends and some junk."""
    path: tuple[int, ...] = ()
    for pick in picks:
        allowed = ids(constraint.allowed(path))
        if pick % 7 == 0 or not allowed:
            path += ((pick // 7) % (SIZE + 2) - 1,)
        else:
            path += (allowed[-1 - (pick % len(allowed)) if pick % 2 else pick % len(allowed)],)
    return path


def state(constraint: Constraint) -> Any:
    mask = constraint.allowed()
    ways = (ids(mask) or [])[:3] + (ids(mask) or [])[-3:]
    deeper = [ids(constraint.allowed((way,))) for way in ways]
    return ids(mask), deeper, constraint.is_complete, constraint.forced(4), constraint.likely(9)


@settings(deadline=None, max_examples=100)
@given(st.sampled_from(SPECS), st.lists(st.lists(st.integers(0, 9999), max_size=5), max_size=12))
def test_questions_leave_no_trace(spec: GrammarSpec, rounds: list[list[int]]) -> None:
    constraint = MAKE(spec)
    committed: list[int] = []
    for number, picks in enumerate(rounds):
        path = drafted(constraint, picks)
        asked = ids(constraint.allowed(path))
        assert asked == ids(after(MAKE, spec, committed).allowed(path))
        if number % 3 == 0:
            constraint.likely(5)
        kept = path[: len(picks) // 2]
        if constraint.allowed(kept) is None:
            with pytest.raises(InvariantError, match="does not allow it"):
                after(MAKE, spec, [*committed, *kept])
            continue
        for token in kept:
            constraint.advance(token)
            committed.append(token)
        assert state(constraint) == state(after(MAKE, spec, committed))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SPECS), st.lists(st.integers(0, 9999), max_size=8), st.randoms())
def test_the_order_of_questions_does_not_matter(spec: GrammarSpec, picks: Any, random: Any) -> None:
    constraint = MAKE(spec)
    path = drafted(MAKE(spec), picks)
    questions = [path[:n] for n in range(len(path) + 1)] + [path[n:] for n in range(len(path))]
    random.shuffle(questions)
    for question in questions:
        assert ids(constraint.allowed(question)) == ids(MAKE(spec).allowed(question))


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(SPECS), st.lists(st.integers(1, 9999), max_size=10))
def test_certain_tokens_are_alone_in_their_masks(spec: GrammarSpec, picks: list[int]) -> None:
    constraint = MAKE(spec)
    for token in drafted(MAKE(spec), [pick | 1 for pick in picks]):
        if constraint.allowed((token,)) is None:
            break
        constraint.advance(token)
        forced, likely = constraint.forced(6), constraint.likely(6)
        for place, certain in enumerate(forced):
            assert ids(constraint.allowed(forced[:place])) == [certain]
        assert likely[: len(forced)] == forced
        assert constraint.allowed(likely) is not None
        assert not {*forced, *likely} & PIECES.eos_token_ids
        for limit in range(4):
            assert constraint.likely(limit) == likely[:limit]
            assert constraint.forced(limit) == forced[:limit]


def test_a_token_that_the_grammar_refuses_cannot_be_committed() -> None:
    constraint = MAKE(GrammarSpec("choice", '["ab"]'))
    for token in (0, 1, 2 + ord("b"), -1, SIZE, SIZE - 1):
        with pytest.raises(InvariantError, match=f"token {token} was committed after 0 tokens"):
            constraint.advance(token)
    constraint.advance(2 + ord("a"))
    assert ids(constraint.allowed()) == [2 + ord("b")]


def test_after_an_end_there_are_only_ends() -> None:
    constraint = MAKE(GrammarSpec("regex", "a*"))
    constraint.advance(2 + ord("a"))
    assert not constraint.is_complete
    assert ids(constraint.allowed((0, 0))) == [0]
    assert constraint.allowed((0, 2 + ord("a"))) is None
    assert not constraint.is_complete, "an end that was only asked about"
    constraint.advance(0)
    assert constraint.is_complete
    assert ids(constraint.allowed()) == ids(constraint.allowed((0,))) == [0]
    assert constraint.allowed((2 + ord("a"),)) is None
    assert constraint.forced(3) == constraint.likely(3) == ()
    constraint.advance(0)


def test_a_match_that_nothing_can_continue_is_complete() -> None:
    constraint = MAKE(GrammarSpec("json_object"))
    for token in PIECES.encode('{"ab": 12}')[:-1]:
        constraint.advance(token)
        assert not constraint.is_complete
    constraint.advance(2 + ord("}"))
    assert constraint.is_complete
    assert ids(constraint.allowed()) == [0]


def test_drafts_are_the_tokenizers_cut_of_certain_text() -> None:
    tokenizer = byte_pieces(b'{"', b"name", b'":', b"na", b"me", b'"x')
    spec = GrammarSpec("json_schema", json.dumps({
        "x-guidance": {"whitespace_flexible": False},
        "type": "object", "properties": {"name": {"enum": ["x", "y"]}},
        "required": ["name"], "additionalProperties": False,
    }))  # fmt: skip
    constraint = factory(tokenizer)(spec)
    likely = constraint.likely(9)
    # The closing quote may yet belong to a longer token, so the last piece stays open.
    assert [tokenizer.pieces[t] for t in likely] == [b'{"', b"name", b'":']
    assert constraint.forced(9) == ()
    assert constraint.likely(2) == likely[:2]
