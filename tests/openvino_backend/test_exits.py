"""An early exit is the graph of the first layers, the final norm and the head."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino import load_openvino, prepare
from draftproof.backends.reference import reference_logits
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import ConfigError, ModelFileError

CLOSE = 2e-4


def score(backend, text, cuts=(1, 3)):
    """Score a text in passes of uneven widths, so that cached keys are read too."""
    sequence, parts, begin = backend.open(), [], 0
    for end in (*cuts, len(text)):
        row = Row(sequence, text[begin:end], begin, end - begin)
        parts.append(backend.forward(FlatBatch.from_rows([row])).copy())
        begin = end
    backend.close(sequence)
    return np.concatenate(parts)


def expected(path, text, num_layers):
    weights = DecoderWeights(path)
    weights.shape = replace(weights.shape, num_layers=num_layers)
    return reference_logits(weights, np.array([text], dtype=np.int32))[0]


@pytest.mark.parametrize(("arch", "tied"), [("llama", True), ("qwen2", False), ("qwen3", True)])
def test_an_exit_is_the_model_of_the_first_layers(
    tiny_gguf, load_tiny, prepared_cache, tokens, arch, tied
):
    path = tiny_gguf(arch, tied=tied)
    target = load_tiny(path).backend
    exit_ = target.early_exit(1)
    assert np.abs(score(exit_, tokens) - expected(path, tokens, 1)).max() < CLOSE
    whole = expected(path, tokens, 2)
    assert np.abs(score(target, tokens) - whole).max() < CLOSE  # the target is as it was
    assert np.abs(expected(path, tokens, 1) - whole).max() > 1  # a cut that did nothing would show


def test_all_layers_are_the_whole_model(llama, tokens):
    whole = llama.backend.early_exit(2)
    assert np.array_equal(score(whole, tokens), score(llama.backend, tokens))


def test_an_exit_holds_as_many_tokens_in_a_cache_of_its_own(llama, tokens):
    target = llama.backend
    exit_ = target.early_exit(1)
    assert exit_.info.kv_bytes_per_token * 2 == target.info.kv_bytes_per_token
    assert exit_.usage.total_pages == target.usage.total_pages
    assert exit_.info.context_length == target.info.context_length
    assert exit_.info.vocab_size == target.info.vocab_size
    assert exit_.info.name.endswith("first 1 layers")
    before = target.usage
    sequence = exit_.open(tokens)
    exit_.forward(FlatBatch.from_rows([Row(sequence, tokens, 0, 1)]))
    assert target.usage == before


@pytest.mark.parametrize("num_layers", [0, -1, 3])
def test_a_number_of_layers_that_is_not_there_is_refused(llama, num_layers):
    with pytest.raises(ConfigError, match=f"after {num_layers} layers, expected 1 to 2"):
        llama.backend.early_exit(num_layers)


def test_a_graph_that_we_did_not_prepare_has_no_exit(tiny_gguf, prepared_cache, tmp_path):
    folder = prepare(tiny_gguf("llama"), "f32", prepared_cache)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        shutil.copy(folder / name, tmp_path / name)
    backend = load_openvino(tmp_path, context_length=64, kv_cache_bytes=4 << 20)
    with pytest.raises(ModelFileError, match="not prepared from a GGUF file"):
        backend.early_exit(1)
