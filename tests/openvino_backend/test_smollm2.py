"""The same promises on a real model."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino import load_openvino, prepare, read_manifest
from draftproof.backends.reference import next_token_laws
from draftproof.core.types import FlatBatch, Row

pytestmark = pytest.mark.model

TEXT = (
    *("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis", "ĠParis", "."),
    *("ĠThe", "Ġcapital", "Ġof", "ĠItaly", "Ġis"),
)


@pytest.fixture(scope="module", params=["f32", "int8"])
def model(request, smollm2_gguf, tmp_path_factory):
    folder = prepare(smollm2_gguf, request.param, tmp_path_factory.getbasetemp() / "smollm2")
    return load_openvino(folder, kv_cache_bytes=256 << 20), read_manifest(folder)


@pytest.fixture(scope="module")
def names(smollm2_gguf):
    return DecoderWeights(smollm2_gguf).file.metadata["tokenizer.ggml.tokens"]


@pytest.fixture(scope="module")
def text(names):
    return [names.index(piece) for piece in TEXT]


def score(backend, tokens, widths):
    seq, parts, begin = backend.open(), [], 0
    for width in widths:
        row = Row(seq, tokens[begin : begin + width], begin, width)
        parts.append(backend.forward(FlatBatch.from_rows([row])).copy())
        begin += width
    backend.close(seq)
    return np.concatenate(parts)


def test_the_law_is_that_of_the_file(model, text, names):
    backend, manifest = model
    law = next_token_laws(score(backend, text, [len(text)]))
    best = [names[token] for token in law.argmax(axis=1)]
    assert (best[3], best[-1]) == ("Ġis", "ĠRome")
    assert manifest.mean_tv <= {"f32": 1e-4, "int8": 0.08}[manifest.precision]


def test_blocks_and_single_tokens_agree(model):
    backend, _ = model
    tokens = np.random.default_rng(5).integers(0, 49152, 48).tolist()
    whole = score(backend, tokens, [48])
    for widths in ([40, *[1] * 8], [40, 8], [33, 4, 11]):
        # Logits are of the order of 20; kernels for other widths round differently.
        assert np.abs(score(backend, tokens, widths) - whole).max() < 1e-3


def test_plain_decoding_equals_verification_to_the_bit(smollm2_gguf, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "smollm2"
    folder = prepare(smollm2_gguf, "int8", cache)
    backend = load_openvino(folder, kv_cache_bytes=128 << 20, deterministic=True)
    tokens = np.random.default_rng(6).integers(0, 49152, 56).tolist()
    plain = score(backend, tokens, [40, *[1] * 16])
    for widths in ([40, 16], [40, 5, 5, 6], [40, 2, 13, 1]):
        assert np.array_equal(score(backend, tokens, widths), plain)


@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_trees_equal_plain_decoding_to_the_bit(smollm2_gguf, tmp_path_factory, precision):
    cache = tmp_path_factory.getbasetemp() / "smollm2"
    folder = prepare(smollm2_gguf, precision, cache)
    backend = load_openvino(folder, kv_cache_bytes=128 << 20, deterministic=True)
    rng = np.random.default_rng(8)
    text, row = (rng.integers(0, 49152, count).tolist() for count in (60, 10))
    parents = [-1, 0, 0, 1, 1, 2, 3, 3, 5, 6]
    seq = backend.open()
    backend.forward(FlatBatch.from_rows([Row(seq, text, 0, 0)]))
    found = backend.forward(FlatBatch.from_rows([Row(seq, row, 60, 10, parents)])).copy()
    for node in range(10):
        line, at = [], node
        while at >= 0:
            line, at = [row[at], *line], parents[at]
        plain = score(backend, text + line, [60, *[1] * len(line)])
        assert np.array_equal(found[node], plain[-1])
