"""Streamed text equals the final text, and no character is shown in half (SM-1)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.core.protocols import Tokenizer as TokenizerProtocol
from draftproof.models import ModelSource
from draftproof.text import TextStream, Tokenizer

Build = Callable[[Sequence[bytes]], TokenizerProtocol]

# Whole and torn characters, and bytes that no UTF-8 text has.
PIECES = [
    b"a",
    b" the",
    "é".encode(),
    "é".encode()[:1],
    "é".encode()[1:],
    *("🙂".encode()[i : i + 1] for i in range(4)),
    "🙂".encode()[:2],
    "🙂".encode()[2:],
    "日本".encode()[:4],
    "日本".encode()[4:],
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0",
    b"\x80",
    b"",
]


def check(tokenizer: TokenizerProtocol, ids: Sequence[int]) -> None:
    stream = TextStream(tokenizer)
    final = tokenizer.decode(ids)
    shown = ""
    for token_id in ids:
        shown += stream.push(token_id)
        assert final.startswith(shown), "streamed text that the final text does not have"
    assert shown + stream.flush() == final


@settings(deadline=None)
@given(st.lists(st.integers(0, len(PIECES) - 1), max_size=40))
def test_streamed_equals_final_for_torn_characters(bytes_tokenizer: Build, ids: list[int]) -> None:
    check(bytes_tokenizer(PIECES), ids)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=20), st.data())
def test_streamed_equals_final_for_any_bytes(
    bytes_tokenizer: Build, pieces: list[bytes], data: Any
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=40))
    check(bytes_tokenizer(pieces), ids)


@settings(deadline=None)
@given(st.text(max_size=40), st.lists(st.integers(1, 5), min_size=1, max_size=40))
def test_no_replacement_character_inside_good_text(
    bytes_tokenizer: Build, text: str, widths: list[int]
) -> None:
    data, pieces = text.encode(), []
    for index in range(len(data) + 1):
        width = widths[index % len(widths)]
        pieces.append(data[:width])
        data = data[width:]
    stream = TextStream(bytes_tokenizer(pieces))
    shown = [stream.push(index) for index in range(len(pieces))]
    assert "".join(shown) == text
    assert stream.flush() == ""


def test_blocks_give_the_same_text_as_single_tokens(bytes_tokenizer: Build) -> None:
    rng = random.Random(5)
    ids = [rng.randrange(len(PIECES)) for _ in range(300)]
    tokenizer = bytes_tokenizer(PIECES)
    for block in range(1, 9):
        stream = TextStream(tokenizer)
        shown = "".join(stream.extend(ids[i : i + block]) for i in range(0, len(ids), block))
        assert shown + stream.flush() == tokenizer.decode(ids)


def test_holds_an_unfinished_character_until_it_is_whole(bytes_tokenizer: Build) -> None:
    face = "🙂".encode()
    stream = TextStream(bytes_tokenizer([face[:1], face[1:3], face[3:], b"x"]))
    assert [stream.push(i) for i in (0, 1, 2)] == ["", "", "🙂"]
    assert [stream.push(i) for i in (0, 3)] == ["", "\ufffdx"]
    assert stream.push(0) == ""
    assert stream.flush() == "\ufffd"
    assert stream.push(3) == "x"


def test_control_tokens_do_not_tear_a_character(tiny: Tokenizer) -> None:
    first, second = tiny.encode("ø")
    check(tiny, [first, 1, second])
    assert tiny.decode([first, 1, second]) == "ø"


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 300), max_size=60))
def test_tiny_vocabulary(tiny: Tokenizer, ids: list[int]) -> None:
    check(tiny, ids)


@pytest.mark.model
def test_real_vocabulary(smollm2_gguf: Path) -> None:
    tokenizer = Tokenizer.from_source(ModelSource("gguf", smollm2_gguf, "smollm2"))
    rng = random.Random(11)
    torn = [i for i in range(tokenizer.vocab_size) if b"\xf0" in tokenizer.token_bytes(i)]
    for _ in range(400):
        pool = torn + [rng.randrange(49_152) for _ in range(len(torn))]
        check(tokenizer, [rng.choice(pool) for _ in range(rng.randrange(60))])
