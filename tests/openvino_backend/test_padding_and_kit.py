"""Padded heads, and the shipped conformance kit on the real runtime."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.openvino import OpenVINOBackend, prepare
from draftproof.backends.openvino.runner import GraphRunner, compile_paged
from draftproof.errors import ConfigError, InvariantError
from draftproof.testing import check_backend


def test_rows_of_a_padded_head_can_never_be_drawn(tiny_gguf, load_tiny, tokens):
    text = [token % 90 for token in tokens]
    whole = load_tiny(tiny_gguf("llama"))
    cut = load_tiny(tiny_gguf("llama"), vocab_size=90)
    assert cut.backend.info.vocab_size == 90
    logits = cut.score(text)
    assert logits.shape == (len(text), 90)
    assert np.array_equal(logits, whole.score(text)[:, :90])


def test_a_padded_id_is_refused_as_a_token(tiny_gguf, load_tiny):
    cut = load_tiny(tiny_gguf("llama"), vocab_size=90)
    with pytest.raises(InvariantError, match="token id 90, expected 0 to 89"):
        cut.score([1, 90])


@pytest.mark.parametrize("size", [0, 97])
def test_a_vocabulary_that_does_not_fit_the_head_is_refused(tiny_gguf, load_tiny, size):
    with pytest.raises(ConfigError, match=f"the tokenizer has {size} tokens"):
        load_tiny(tiny_gguf("llama"), vocab_size=size)


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_the_runtime_passes_the_conformance_kit(tiny_gguf, prepared_cache, arch):
    folder = prepare(tiny_gguf(arch), "f32", prepared_cache)
    compiled = compile_paged(folder, "f32", None)

    def make():
        runner = GraphRunner(compiled, 4 << 20)
        return OpenVINOBackend(runner, name=arch, precision="f32", context_length=512)

    check_backend(make, tolerance=2e-4).require()
