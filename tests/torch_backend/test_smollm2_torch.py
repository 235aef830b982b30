"""A GGUF file on PyTorch has the law of the file."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.reference import reference_logits
from draftproof.backends.torch_hf import load_torch
from draftproof.core.types import FlatBatch, Row

pytestmark = pytest.mark.model


def test_a_gguf_file_has_its_own_law_and_early_exit_shares_it(smollm2_gguf):
    weights = DecoderWeights(smollm2_gguf)
    tokens = np.random.default_rng(3).integers(0, 49152, 12).tolist()
    expected = reference_logits(weights, np.array([tokens], dtype=np.int32))[0]
    backend = load_torch(smollm2_gguf, kv_cache_bytes=16 << 20, dtype="float32")
    sequence, parts, begin = backend.open(), [], 0
    for width in (7, 1, 4):
        row = Row(sequence, tokens[begin : begin + width], begin, width)
        parts.append(backend.forward(FlatBatch.from_rows([row])).copy())
        begin += width
    assert np.abs(np.concatenate(parts) - expected).max() < 1e-3
    whole = backend.early_exit(30, kv_cache_bytes=16 << 20)
    row = Row(whole.open(), tokens, 0, 1)
    assert np.abs(whole.forward(FlatBatch.from_rows([row])) - expected[-1:]).max() < 1e-3
