"""Real kinds of tokenizers: SmolLM2's byte-level one, and SentencePiece with byte fallback."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from grammar_kit import ids

from draftproof.core.constraint import GrammarSpec
from draftproof.grammar import make_constraints
from draftproof.models import GgufFile, resolve
from draftproof.text import Tokenizer, tokenizer_from_gguf

SPACE = "\u2581"
SCHEMA = {
    "x-guidance": {"whitespace_flexible": False},
    "type": "object",
    "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


def sentence_piece() -> Tokenizer:
    words = [SPACE, "name", f"{SPACE}name", "ok", "na", "me", "o", "k", "A", '":"', "true", '{"']
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *words]
    types = [2, 3, 3, *[6] * 256, *[1] * len(words)]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tuple(texts),
        "tokenizer.ggml.scores": np.array([-float(len(t) < 3) for t in texts], np.float32),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return tokenizer_from_gguf(GgufFile(Path("tiny.gguf"), 3, metadata, ()))


def test_sentence_piece_with_byte_fallback() -> None:
    tokenizer = sentence_piece()
    size = tokenizer.vocab_size + 4
    make = make_constraints(tokenizer, size)
    constraint = make(GrammarSpec("choice", '["A \\u00e9", "AB"]'))
    piece, byte = 3 + 256 + 8, 3 + ord("A")
    assert ids(constraint.allowed()) == [byte, piece], "both ids of the same text"
    constraint.advance(byte)
    space = [3 + ord(" "), 3 + 256]
    assert ids(constraint.allowed()) == sorted([*space, 3 + ord("B")])
    first, second = (3 + b for b in "é".encode())
    assert constraint.forced(3) == ()
    assert ids(constraint.allowed((space[1], first))) == [second]
    constraint.advance(space[1])
    assert constraint.forced(3) == (first, second)


def test_sentence_piece_drafts_have_no_space_of_their_own() -> None:
    tokenizer = sentence_piece()
    make = make_constraints(tokenizer, tokenizer.vocab_size)
    constraint = make(GrammarSpec("json_schema", json.dumps(SCHEMA)))
    drafts = constraint.likely(8)
    written = b"".join(map(tokenizer.token_bytes, drafts))
    assert written
    assert b'{"name":"'.startswith(written)
    assert constraint.allowed(drafts) is not None
    assert not {0, 1, 2} & set(drafts)


@pytest.mark.model
def test_smollm2(smollm2_gguf: Path) -> None:
    tokenizer = Tokenizer.from_source(resolve(str(smollm2_gguf)))
    size = tokenizer.vocab_size + 64
    make = make_constraints(tokenizer, size)
    control = sorted(tokenizer.vocabulary.control_ids.values())
    ends = sorted(tokenizer.eos_token_ids)
    anything = make(GrammarSpec("regex", "(?s:.*)")).allowed()
    assert anything is not None
    assert anything.shape == (size,)
    assert ids(anything[control]) == [control.index(end) for end in ends]
    assert not anything[tokenizer.vocab_size :].any()
    constraint = make(GrammarSpec("json_schema", json.dumps(SCHEMA)))
    tokens = tokenizer.encode('{"name":"Ada 😀","ok":true}', add_special=False)
    drafted = 0
    for token in tokens:
        drafted += constraint.likely(1) == (token,)
        constraint.advance(token)
    assert drafted >= 2
    assert constraint.is_complete
    assert ids(constraint.allowed()) == ends
    spelled = make(GrammarSpec("choice", json.dumps(["<|im_end|>"])))
    assert ids(np.logical_and(spelled.allowed(), np.isin(np.arange(size), control))) == []
