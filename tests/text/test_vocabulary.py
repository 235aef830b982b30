"""Pairing a drafter with a target (CR-2): same meaning of every id, padding apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from draftproof.core.protocols import Tokenizer as TokenizerProtocol
from draftproof.errors import IncompatibleModelsError
from draftproof.text import Tokenizer, check_same_vocabulary

Build = Callable[..., Tokenizer]
Metadata = Callable[..., dict[str, Any]]


@pytest.fixture
def with_tokens(gguf_tokenizer: Build, byte_level: Metadata) -> Callable[..., Tokenizer]:
    """The tiny tokenizer with its token list changed by a function."""

    def build(change: Callable[[list[str], list[int]], None]) -> Tokenizer:
        texts = list(byte_level()["tokenizer.ggml.tokens"])
        types = byte_level()["tokenizer.ggml.token_type"].tolist()
        change(texts, types)
        return gguf_tokenizer(
            byte_level(
                tokenizer__ggml__tokens=tuple(texts),
                tokenizer__ggml__token_type=np.array(types, np.int32),
            )
        )

    return build


def swap(a: int, b: int) -> Callable[[list[str], list[int]], None]:
    def change(texts: list[str], types: list[int]) -> None:
        texts[a], texts[b] = texts[b], texts[a]
        types[a], types[b] = types[b], types[a]

    return change


def test_equal_vocabularies(tiny: Tokenizer, with_tokens: Callable[..., Tokenizer]) -> None:
    same = with_tokens(lambda texts, types: None)
    size = tiny.vocab_size
    assert check_same_vocabulary(tiny, same, size, size) == size


def test_two_swapped_ids_are_refused_by_the_first(
    tiny: Tokenizer, with_tokens: Callable[..., Tokenizer]
) -> None:
    other, size = with_tokens(swap(40, 90)), tiny.vocab_size
    with pytest.raises(IncompatibleModelsError, match=r"id 40: target '%', draft 'W'") as caught:
        check_same_vocabulary(tiny, other, size, size)
    assert "\n" not in str(caught.value)


def test_two_swapped_control_tokens_are_refused(
    tiny: Tokenizer, with_tokens: Callable[..., Tokenizer]
) -> None:
    """Both add no bytes; only the spelling tells them apart."""
    other, size = with_tokens(swap(0, 1)), tiny.vocab_size
    message = r"id 0: target '<\|end\|>', draft '<\|im_start\|>'"
    with pytest.raises(IncompatibleModelsError, match=message):
        check_same_vocabulary(tiny, other, size, size)


def test_sizes_that_differ_by_padding_are_allowed(
    tiny: Tokenizer, with_tokens: Callable[..., Tokenizer]
) -> None:
    def pad(texts: list[str], types: list[int]) -> None:
        for _ in range(7):
            texts.append(f"[PAD{len(texts)}]")
            types.append(5)

    size = tiny.vocab_size
    padded = with_tokens(pad)
    # Padding of logits rows alone, and padding that the files spell out.
    assert check_same_vocabulary(tiny, tiny, size + 128, size) == size
    assert check_same_vocabulary(tiny, padded, size, size + 7) == size
    assert check_same_vocabulary(padded, tiny, size + 7, size + 128) == size


def test_real_extra_tokens_are_refused_on_either_side(
    tiny: Tokenizer, with_tokens: Callable[..., Tokenizer]
) -> None:
    def add(texts: list[str], types: list[int]) -> None:
        texts.append("extra")
        types.append(1)

    larger, size = with_tokens(add), tiny.vocab_size
    with pytest.raises(IncompatibleModelsError, match=rf"draft has {size + 1} .*'extra'"):
        check_same_vocabulary(tiny, larger, size + 1, size + 1)
    with pytest.raises(IncompatibleModelsError, match=rf"target has {size + 1} .*'extra'"):
        check_same_vocabulary(larger, tiny, size + 1, size + 1)


def test_logits_shorter_than_the_vocabulary_are_refused(tiny: Tokenizer) -> None:
    size = tiny.vocab_size
    with pytest.raises(IncompatibleModelsError, match=f"draft has {size} tokens but scores only"):
        check_same_vocabulary(tiny, tiny, size, size - 1)


def test_tokenizers_without_spellings_are_compared_by_bytes(
    tiny: Tokenizer, bytes_tokenizer: Callable[[Sequence[bytes]], TokenizerProtocol]
) -> None:
    data = [tiny.token_bytes(i) for i in range(tiny.vocab_size)]
    size = len(data)
    assert check_same_vocabulary(tiny, bytes_tokenizer(data), size, size) == size
    data[200], data[201] = data[201], data[200]
    with pytest.raises(IncompatibleModelsError, match="id 200: target b'"):
        check_same_vocabulary(tiny, bytes_tokenizer(data), size, size)
