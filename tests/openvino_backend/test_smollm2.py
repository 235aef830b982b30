"""The same promises on a real model."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.openvino import load_openvino, prepare, read_manifest
from draftproof.backends.reference import next_token_laws, reference_logits
from draftproof.core.types import FlatBatch, Row

pytestmark = pytest.mark.model

TEXT = "The Ġcapital Ġof ĠFrance Ġis ĠParis . ĠThe Ġcapital Ġof ĠItaly Ġis".split()


@pytest.fixture(scope="module", params=["f32", "int8"])
def model(request, smollm2_gguf, tmp_path_factory):
    folder = prepare(smollm2_gguf, request.param, tmp_path_factory.mktemp("smollm2"))
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


def test_the_law_is_that_of_the_file(model, smollm2_gguf, text, names):
    backend, manifest = model
    law = next_token_laws(score(backend, text, [len(text)]))
    best = [names[token] for token in law.argmax(axis=1)]
    assert (best[3], best[-1]) == ("Ġis", "ĠRome")
    assert manifest.mean_tv <= {"f32": 1e-4, "int8": 0.08}[manifest.precision]


def test_the_reference_knows_the_capital(smollm2_gguf, text, names):
    logits = reference_logits(DecoderWeights(smollm2_gguf), np.array([text], np.int32))
    assert names[int(logits[0, -1].argmax())] == "ĠRome"


def test_blocks_and_single_tokens_agree(model):
    backend, _ = model
    tokens = np.random.default_rng(5).integers(0, 49152, 48).tolist()
    whole = score(backend, tokens, [48])
    for widths in ([40, *[1] * 8], [40, 8], [33, 4, 11]):
        # Logits are of the order of 20; kernels for other widths round differently.
        assert np.abs(score(backend, tokens, widths) - whole).max() < 1e-3
