"""SentencePiece BPE: the rule by its definition, byte fallback, spaces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import ModelFileError
from draftproof.text import Tokenizer
from draftproof.text.spm import SentencePieceEncoder

Build = Callable[[Mapping[str, Any]], Tokenizer]
SPACE = "\u2581"


def by_definition(text: str, pieces: Mapping[str, int], scores: list[float]) -> list[str]:
    """Merge the best neighbouring pair, leftmost on ties, until there is none."""
    symbols = list(text)
    while True:
        pairs = [
            (-scores[pieces[a + b]], index)
            for index, (a, b) in enumerate(itertools.pairwise(symbols))
            if a + b in pieces
        ]
        if not pairs:
            return symbols
        index = min(pairs)[1]
        symbols[index : index + 2] = ["".join(symbols[index : index + 2])]


def encoder(pieces: Mapping[str, int], scores: list[float], **changes: Any) -> SentencePieceEncoder:
    options: dict[str, Any] = {
        "byte_ids": {},
        "literals": {},
        "unknown_id": 99,
        "space_prefix": False,
        **changes,
    }
    return SentencePieceEncoder(pieces, scores, **options)


ALPHABET = f"ab{SPACE}"
VOCABULARIES = st.lists(
    st.tuples(st.text(ALPHABET, min_size=2, max_size=5), st.integers(-4, 0)),
    unique_by=lambda pair: pair[0],
    max_size=16,
)


@settings(deadline=None, max_examples=300)
@given(VOCABULARIES, st.text("ab ", max_size=24))
def test_equals_the_definition_for_any_vocabulary(longer: list[tuple[str, int]], text: str) -> None:
    """Scores tie often, and pieces that reach over spaces turn word splitting off."""
    items = [(char, 0) for char in ALPHABET] + longer
    pieces = {piece: index for index, (piece, _) in enumerate(items)}
    scores = [float(score) for _, score in items]
    expected = by_definition(text.replace(" ", SPACE), pieces, scores)
    assert encoder(pieces, scores).encode(text) == [pieces[symbol] for symbol in expected]


def test_two_pairs_for_one_piece_the_left_one_wins() -> None:
    """A merge list rebuilt from scores must rank one of the two pairs first."""
    names = ["a", "b", "aa", "ba", "aab", "aba", "aaa"]
    pieces = {name: index for index, name in enumerate(names)}
    one = encoder(pieces, [0, 0, -1, -2, -9, -9, -3])
    assert [names[i] for i in one.encode("aaa")] == ["aaa"]
    assert [names[i] for i in one.encode("aaaaa")] == ["aa", "aaa"]


def metadata(**changes: Any) -> dict[str, Any]:
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3] + [6] * 256
    words = [SPACE, "h", "i", "hi", f"{SPACE}hi", "\n", "é", "  ".replace(" ", SPACE)]
    texts += [*words, "[TOOL]"]
    types += [1] * len(words) + [4]
    scores = [0.0] * 259 + [-5.0, -6.0, -7.0, -1.0, -2.0, -8.0, -9.0, -3.0] + [0.0]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tuple(texts),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }


@pytest.fixture(scope="module")
def spm(gguf_tokenizer: Build) -> Tokenizer:
    return gguf_tokenizer(metadata())


def test_ids_and_prefix_space(spm: Tokenizer) -> None:
    texts = metadata()["tokenizer.ggml.tokens"]
    ids = spm.encode("hi hi")
    assert [texts[i] for i in ids] == ["<s>", f"{SPACE}hi", f"{SPACE}hi"]
    assert spm.decode(ids) == " hi hi"
    assert spm.encode("") == [1]


def test_byte_fallback(spm: Tokenizer) -> None:
    ids = spm.encode("日", add_special=False)
    assert b"".join(map(spm.token_bytes, ids)) == b" " + "日".encode()
    assert ids[1:] == [3 + byte for byte in "日".encode()]
    # A character with a piece does not fall back.
    assert len(spm.encode("é", add_special=False)) == 2


@settings(deadline=None)
@given(text=st.text(max_size=40))
def test_round_trip_up_to_the_prefix_space(spm: Tokenizer, text: str) -> None:
    # The space character of pieces is itself written as a space.
    text = text.replace(SPACE, "_")
    expected = f" {text}" if text else ""
    assert spm.decode(spm.encode(text)) == expected


def test_control_spellings_are_text_and_literals_are_found(spm: Tokenizer) -> None:
    ids = spm.encode("</s><s>", add_special=False)
    assert not {1, 2} & set(ids)
    assert spm.decode(ids) == " </s><s>"
    tool = len(metadata()["tokenizer.ggml.tokens"]) - 1
    assert tool in spm.encode("hi[TOOL]hi")


def test_no_prefix_space_where_the_file_says(gguf_tokenizer: Build) -> None:
    tokenizer = gguf_tokenizer(
        metadata(
            tokenizer__ggml__add_space_prefix=False,
            tokenizer__ggml__add_bos_token=False,
        )
    )
    assert tokenizer.decode(tokenizer.encode("hi")) == "hi"


def test_without_bytes_or_unknown_token_it_is_refused(gguf_tokenizer: Build) -> None:
    types = metadata()["tokenizer.ggml.token_type"].copy()
    types[5] = 5
    with pytest.raises(ModelFileError, match="255 of 256 byte tokens and no unknown"):
        gguf_tokenizer(
            metadata(tokenizer__ggml__token_type=types, tokenizer__ggml__unknown_token_id=None)
        )
    bad = ["<unk>", "<s>", "</s>", "<0xZZ>", *metadata()["tokenizer.ggml.tokens"][4:]]
    with pytest.raises(ModelFileError, match="byte token '<0xZZ>'"):
        gguf_tokenizer(metadata(tokenizer__ggml__tokens=tuple(bad)))


def test_word_memory_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftproof.text.spm._CACHE_WORDS", 4)
    pieces = {char: index for index, char in enumerate("abcdefgh" + SPACE)}
    one = encoder(pieces, [0.0] * 9)
    for char in "abcdefgh" * 3:
        assert one.encode(f"{char}{char} {char}") == [
            *(pieces[char], pieces[char], pieces[SPACE], pieces[char])
        ]
    assert len(one._cache) <= 4
