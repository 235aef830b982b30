"""The same promises on a real model with quantised weights."""

from __future__ import annotations

import numpy as np
import pytest

import draftproof
from draftproof.backends.decoder_weights import DecoderWeights
from draftproof.backends.llama_cpp import load_llama_cpp
from draftproof.backends.reference import next_token_laws, reference_logits
from draftproof.core.types import FlatBatch, Row

pytestmark = pytest.mark.model

PROMPT = (
    "Repeat the text word for word.\n\nText: A cache that cannot go back must be told so before "
    "the first draft.\n\nCopy: A cache that cannot"
)
TEXT = (
    *("The", "Ġcapital", "Ġof", "ĠFrance", "Ġis", "ĠParis", "."),
    *("ĠThe", "Ġcapital", "Ġof", "ĠItaly", "Ġis"),
)


@pytest.fixture(scope="module")
def backend(smollm2_gguf):
    return load_llama_cpp(smollm2_gguf, kv_cache_bytes=64 << 20, threads=1)


@pytest.fixture(scope="module")
def engines(smollm2_gguf):
    options = {"backend": "llamacpp", "kv_cache_bytes": 64 << 20, "threads": 1}
    ngram = {"method": "ngram", "num_speculative_tokens": 7}
    plain = draftproof.load(smollm2_gguf, **options)
    drafting = draftproof.load(smollm2_gguf, speculative_config=ngram, **options)
    yield plain, drafting
    plain.close()
    drafting.close()


def score(backend, tokens, widths):
    sequence, parts, begin = backend.open(), [], 0
    for width in widths:
        row = Row(sequence, tokens[begin : begin + width], begin, width)
        parts.append(backend.forward(FlatBatch.from_rows([row])).copy())
        begin += width
    backend.close(sequence)
    return np.concatenate(parts)


def test_the_law_is_near_that_of_the_file(backend, smollm2_gguf):
    weights = DecoderWeights(smollm2_gguf)
    names = weights.file.metadata["tokenizer.ggml.tokens"]
    text = [names.index(piece) for piece in TEXT]
    law = next_token_laws(score(backend, text, [len(text)]))
    exact = next_token_laws(reference_logits(weights, np.array([text], dtype=np.int32))[0])
    best = [names[token] for token in law.argmax(axis=1)]
    assert (best[3], best[-1]) == ("Ġis", "ĠRome")
    # llama.cpp rounds activations to 8 bits where weights are quantised.
    assert 0.5 * np.abs(law - exact).sum(axis=1).mean() < 0.05


@pytest.mark.parametrize("options", [
    {"temperature": 0.0},
    {"temperature": 0.8, "seed": 3, "rule": "coupled"},
    {"temperature": 0.8, "seed": 4, "rule": "sample-match"},
])  # fmt: skip
def test_drafts_change_no_text(engines, options):
    plain, drafting = (
        engine.generate(PROMPT, max_tokens=24, ignore_eos=True, **options) for engine in engines
    )
    assert drafting.token_ids == plain.token_ids
    assert drafting.stats.num_drafts > 0
