"""Tokenizers from GGUF metadata: ids, bytes, begin and end tokens, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import InvariantError, ModelFileError, PromptError
from draftproof.models import ModelSource
from draftproof.text import Tokenizer
from draftproof.text.byte_level import bytes_of_piece
from draftproof.text.pretokenizers import split_family

Build = Callable[..., Tokenizer]
Metadata = Callable[..., dict[str, Any]]

TEXTS = [
    "",
    "hi the sys 12",
    "  leading and   runs \t of\n\n\nwhite space  ",
    "def f(x):\n    return x ** 2  # done\n",
    "日本語のテキスト、漢字とかな。",
    "한국어 · العربية · हिन्दी · Ελληνικά",
    "🙂🙃👩‍👩‍👧‍👦🇫🇷👍🏽",
    "naïve café e\u0301 \ufffd \ufeff",
    "1234567890 3.14159 ½ ٣",
    "\u00a0nbsp\u2003em\u200bzero",
    "<|im_start|>system<|im_end|><|end|>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode(text)
    assert tiny.decode(ids) == text
    assert not {0, 1, 2} & set(ids), "user text became a control token"


@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_round_trip_of_any_text(tiny: Tokenizer, text: str) -> None:
    assert tiny.decode(tiny.encode(text)) == text


def test_merges_are_applied_in_order(tiny: Tokenizer) -> None:
    def data(text: str) -> list[bytes]:
        return [tiny.token_bytes(i) for i in tiny.encode(text)]

    assert data("hi hi") == [b"hi", b" hi"]
    assert data(" the") == [b" the"]
    # The digit rule of this family cuts before the merge of "12" can apply.
    assert data("12") == [b"1", b"2"]
    # User-defined tokens are ordinary text and are found.
    assert data("hi<tool>hi") == [b"hi", b"<tool>", b"hi"]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "12 don't", ["12", " don", "'t"]),
        ("smollm", "12 don't", ["1", "2", " don", "'t"]),
        ("llama-bpe", "12345 DON'T\n\nx", ["123", "45", " DON", "'T", "\n\n", "x"]),
        ("qwen2", "12 a.b", ["1", "2", " a", ".b"]),
        ("qwen35", "ka\u0301b c", ["ka\u0301b", " c"]),
        ("tekken", "fooBar 12/", ["foo", "Bar", " ", "1", "2", "/"]),
        ("gpt-4o", "fooBar's 1234", ["foo", "Bar's", " ", "123", "4"]),
    ],
)
def test_families_split_as_their_models_do(pre: str, text: str, pieces: list[str]) -> None:
    found = [
        (bytes_of_piece(piece) or b"").decode()
        for piece, _ in split_family(pre).pre_tokenizer().pre_tokenize_str(text)
    ]
    assert found == pieces


def test_whole_pieces_win_where_the_family_ignores_merges(
    gguf_tokenizer: Build, byte_level: Metadata
) -> None:
    texts = byte_level()["tokenizer.ggml.tokens"]
    extra = {
        "tokenizer__ggml__tokens": (*texts, "xyz"),
        "tokenizer__ggml__token_type": np.array([3] * 3 + [1] * (len(texts) - 2), np.int32),
    }
    plain = gguf_tokenizer(byte_level(tokenizer__ggml__pre="smaug-bpe", **extra))
    whole = gguf_tokenizer(byte_level(tokenizer__ggml__pre="llama-bpe", **extra))
    assert len(plain.encode("xyz", add_special=False)) == 3
    assert whole.encode("xyz", add_special=False) == [len(texts)]


def test_qwen2_composes_characters_first(gguf_tokenizer: Build, byte_level: Metadata) -> None:
    tokenizer = gguf_tokenizer(byte_level(tokenizer__ggml__pre="qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


@pytest.mark.parametrize(
    ("pre", "flag", "expected"),
    [
        ("smollm", None, []),
        ("smollm", True, [1]),
        ("llama-bpe", None, [1]),
        ("llama-bpe", False, []),
    ],
)
def test_begin_token_follows_the_flag_then_the_family(
    gguf_tokenizer: Build, byte_level: Metadata, pre: str, flag: bool | None, expected: list[int]
) -> None:
    metadata = byte_level(tokenizer__ggml__pre=pre, tokenizer__ggml__add_bos_token=flag)
    tokenizer = gguf_tokenizer(metadata)
    body = tokenizer.encode("hi", add_special=False)
    assert tokenizer.encode("hi") == expected + body
    assert tokenizer.encode("") == expected


def test_end_token_is_added_where_the_file_says(
    gguf_tokenizer: Build, byte_level: Metadata
) -> None:
    tokenizer = gguf_tokenizer(byte_level(tokenizer__ggml__add_eos_token=True))
    assert tokenizer.encode("hi")[-1] == 2
    assert 2 not in tokenizer.encode("hi", add_special=False)


def test_end_ids_are_collected(gguf_tokenizer: Build, byte_level: Metadata) -> None:
    assert gguf_tokenizer(byte_level()).eos_token_ids == {2}
    more = byte_level(tokenizer__ggml__eot_token_id=0, tokenizer__ggml__eom_token_id=2**32 - 1)
    assert gguf_tokenizer(more).eos_token_ids == {0, 2}


def test_named_special_tokens_are_control_whatever_their_type(
    gguf_tokenizer: Build, byte_level: Metadata
) -> None:
    """Some converters store the end-of-turn token as user-defined text."""
    types = byte_level()["tokenizer.ggml.token_type"].copy()
    types[2] = 4
    tokenizer = gguf_tokenizer(byte_level(tokenizer__ggml__token_type=types))
    assert 2 not in tokenizer.encode("a<|im_end|>b")
    assert tokenizer.token_bytes(2) == b""


def test_bytes_of_control_padding_and_out_of_range_ids(
    gguf_tokenizer: Build, byte_level: Metadata
) -> None:
    texts = byte_level()["tokenizer.ggml.tokens"]
    types = byte_level()["tokenizer.ggml.token_type"]
    padded = byte_level(
        tokenizer__ggml__tokens=(*texts, *(f"[PAD{len(texts) + i}]" for i in range(3))),
        tokenizer__ggml__token_type=np.array([*types, 5, 5, 5], np.int32),
    )
    tokenizer = gguf_tokenizer(padded)
    assert tokenizer.vocab_size == len(texts)
    for index in (0, 1, len(texts), len(texts) + 2, 10**6):
        assert tokenizer.token_bytes(index) == b""
    with pytest.raises(InvariantError, match="-1 is negative"):
        tokenizer.token_bytes(-1)


def test_missing_bytes_are_dropped(gguf_tokenizer: Build, byte_level: Metadata) -> None:
    types = byte_level()["tokenizer.ggml.token_type"].copy()
    types[3 + 0x04] = 5
    tokenizer = gguf_tokenizer(byte_level(tokenizer__ggml__token_type=types))
    assert tokenizer.decode(tokenizer.encode("a\x04b")) == "ab"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer__ggml__pre": "made-up"}, r"tiny\.gguf: unknown .*pre 'made-up'.*smollm"),
        ({"tokenizer__ggml__pre": None}, r"no tokenizer\.ggml\.pre"),
        ({"tokenizer__ggml__model": "t5"}, "'t5' is not supported, expected one of gpt2, llama"),
        ({"tokenizer__ggml__merges": ("h i", "q zz")}, "merges are inconsistent"),
        ({"tokenizer__ggml__merges": ("hi",)}, "merges are inconsistent"),
        ({"tokenizer__ggml__merges": ("h q",)}, "makes 'hq', which is no token of text"),
        ({"tokenizer__ggml__merges": None}, "merges is missing"),
        ({"tokenizer__ggml__token_type": np.zeros(3, np.int32)}, "3 token types"),
        ({"tokenizer__chat_template": "{% for %}"}, "chat template does not compile"),
        ({"tokenizer__ggml__model": "llama"}, "scores is missing"),
    ],
)
def test_bad_files_are_refused_by_name(
    gguf_tokenizer: Build, byte_level: Metadata, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelFileError, match=message) as caught:
        gguf_tokenizer(byte_level(**changes))
    assert "\n" not in str(caught.value)


def test_lone_surrogates_are_refused(tiny: Tokenizer) -> None:
    with pytest.raises(PromptError, match=r"lone surrogate .* at character 2"):
        tiny.encode("ab\udc80")


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return Tokenizer.from_source(ModelSource("gguf", smollm2_gguf, "smollm2"))


# Ids from a plain byte-pair encoder over the same merges, written apart from this one.
# fmt: off
SMOLLM2_IDS = {
    "Hello, world!": [19556, 28, 905, 17],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "  multiple   spaces": [216, 2701, 256, 5600],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "def f(x):\n    return x ** 2  # ok\n\n\n": [
        1604, 275, 24, 104, 727, 472, 1003, 1792, 1903, 216, 34, 216, 907, 10907, 16506,
    ],
    "日本語のテキスト、漢字とかな。": [
        23274, 115, 40993, 179, 120, 248, 26453, 11100, 224, 10391, 251, 10391, 134, 11100, 226,
        29917, 177, 137, 112, 36518, 7365, 118, 7365, 229, 7365, 120, 19076,
    ],
    "Привет, мир!": [155, 249, 46879, 16464, 32547, 28, 41337, 7872, 9175, 17],
    "🙂🙃👩‍👧": [10813, 38887, 10813, 243, 221, 10813, 235, 119, 321, 231, 10813, 235, 117],
    "don't DON'T I'll 3.14159 ½": [
        12420, 982, 422, 2154, 23, 68, 339, 3060, 216, 35, 30, 33, 36, 33, 37, 41, 216, 16738,
    ],
    "x\t\ty\r\n\r\nz   ": [104, 197, 197, 105, 7209, 198, 106, 333],
    "<|im_start|>user<|im_end|>": [
        44, 108, 306, 79, 3738, 108, 46, 4093, 44, 108, 306, 79, 486, 108, 46,
    ],
    "aaaaaaaaaaaaaaaaaaaaaaa": [46880, 46880, 46880, 46880, 46880, 11510, 81],
}
# fmt: on


@pytest.mark.model
@pytest.mark.parametrize("text", SMOLLM2_IDS)
def test_smollm2_ids(smollm2: Tokenizer, text: str) -> None:
    assert smollm2.encode(text) == SMOLLM2_IDS[text]


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_round_trip(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text
    assert all(smollm2.token_bytes(i) for i in ids)


@pytest.mark.model
def test_smollm2_chat(smollm2: Tokenizer) -> None:
    """Ids as the reference implementation of chat templates gives them."""
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "  sure? \n"},
    ]
    # fmt: off
    assert smollm2.encode_chat(messages) == [
        1, 9690, 198, 6077, 5453, 30, 2, 198, 1, 4093, 198, 34, 27, 34, 47, 2, 198, 1, 520, 9531,
        198, 36, 2, 198, 1, 4093, 3805, 2090, 47, 3717, 2, 198, 1, 520, 9531, 198,
    ]
    # fmt: on
    assert smollm2.eos_token_ids == {2}
    assert smollm2.vocab_size == 49_152
