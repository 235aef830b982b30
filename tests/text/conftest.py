"""Builders of small tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.models import GgufFile
from draftproof.text import Tokenizer, tokenizer_from_gguf
from draftproof.text.byte_level import BYTE_OF_CHAR

CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}
MERGES = ["h i", "Ġ hi", "Ã ©", "Ġ t", "Ġt h", "Ġth e", "ð Ł", "ðŁ Ļ", "1 2", "s y"]
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|end|>", "<|im_start|>", "<|im_end|>"]


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a GGUF with 256 bytes, some merges, control and user-defined tokens."""
    texts = [*CONTROL, *(CHAR_OF_BYTE[byte] for byte in range(256))]
    texts += [merge.replace(" ", "") for merge in MERGES]
    types = [3] * len(CONTROL) + [1] * (len(texts) - len(CONTROL))
    texts.append("<tool>")
    types.append(4)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tuple(texts),
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": tuple(MERGES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHATML,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }


@pytest.fixture(scope="session")
def gguf_tokenizer() -> Callable[[Mapping[str, Any]], Tokenizer]:
    """Build a tokenizer from metadata, without a file."""

    def build(metadata: Mapping[str, Any]) -> Tokenizer:
        kept = {key: value for key, value in metadata.items() if value is not None}
        return tokenizer_from_gguf(GgufFile(Path("tiny.gguf"), 3, kept, ()))

    return build


@pytest.fixture(scope="session")
def byte_level() -> Callable[..., dict[str, Any]]:
    """Metadata of a tiny byte-level model; keywords change keys (``__`` for a dot)."""
    return byte_level_metadata


@pytest.fixture(scope="session")
def tiny(gguf_tokenizer: Callable[..., Tokenizer]) -> Tokenizer:
    """A tiny byte-level tokenizer with a chat template."""
    return gguf_tokenizer(byte_level_metadata())


class BytesTokenizer:
    """A tokenizer that is a list of byte strings; enough for decoding tests."""

    def __init__(self, data: Sequence[bytes]) -> None:
        self.data = list(data)
        self.eos_token_ids: frozenset[int] = frozenset()

    @property
    def vocab_size(self) -> int:
        return len(self.data)

    def token_bytes(self, token_id: int) -> bytes:
        return self.data[token_id]

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(self.data[i] for i in token_ids).decode("utf-8", "replace")

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        raise NotImplementedError

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        raise NotImplementedError


@pytest.fixture(scope="session")
def bytes_tokenizer() -> type[BytesTokenizer]:
    """The class, to build tokenizers from byte strings."""
    return BytesTokenizer
