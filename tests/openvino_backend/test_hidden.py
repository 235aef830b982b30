"""Hidden states of the OpenVINO runtime: whose they are, and what a draft head makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.backends.borrowed import borrow
from draftproof.backends.openvino.head import OpenVINOHead
from draftproof.core.policy import SamplingParams
from draftproof.core.protocols import HiddenStates
from draftproof.core.types import FlatBatch, Row
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import IncompatibleModelsError
from draftproof.models.head_files import HeadShape, HeadWeights
from draftproof.proposers.draft_head import DraftHeadProposer

SHAPE = HeadShape(
    hidden_size=64, num_heads=1, num_kv_heads=1, head_dim=64, ffn_size=128, vocab_size=96,
    draft_vocab_size=60, window=16,
)  # fmt: skip


def random_head():
    generator = np.random.default_rng(3)
    tensors = {
        name: (generator.normal(size=extent) / 8 + (len(extent) == 1)).astype(np.float32)
        for name, extent in SHAPE.tensors().items()
    }
    return HeadWeights(SHAPE, tensors, np.arange(60, dtype=np.int64), "tiny", {})


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", ["f32", "int8"])
def test_logits_are_hidden_states_times_the_output_layer(tiny_gguf, load_tiny, tied, precision):
    target = load_tiny(tiny_gguf(tied=tied), precision, with_hidden=True).backend
    assert isinstance(target, HiddenStates)
    assert target.info.hidden_size == 64
    borrowed = borrow(target)
    assert (borrowed.output is borrowed.embedding) == tied
    assert borrowed.embedding.shape == (96, 64)


def test_every_token_has_its_state_whatever_travels_with_it(tiny_gguf, load_tiny, tokens):
    target = load_tiny(tiny_gguf(), with_hidden=True).backend
    alone = target.open()
    target.forward(FlatBatch.from_rows([Row(alone, tokens[:30], 0, 0)]))
    expected = target.hidden()
    assert expected.shape == (30, 64)
    first, second = target.open(), target.open()
    rows = [Row(first, tokens[40:45], 0, 5), Row(second, tokens[:28], 0, 1)]
    target.forward(FlatBatch.from_rows(rows))
    np.testing.assert_allclose(target.hidden()[5:], expected[:28], atol=2e-4)
    target.forward(FlatBatch.from_rows([Row(second, tokens[28:30], 28, 2)]))
    np.testing.assert_allclose(target.hidden(), expected[28:], atol=2e-4)


def test_states_are_given_only_when_asked_for(llama):
    assert llama.backend.info.hidden_size == 0
    with pytest.raises(IncompatibleModelsError, match="gives no hidden states"):
        borrow(llama.backend)


def test_a_head_leaves_seed_identical_text_as_it_is(tiny_gguf, load_tiny):
    target = load_tiny(tiny_gguf(), with_hidden=True, deterministic=True).backend
    assert not target.info.trees
    borrowed = borrow(target)
    runner = OpenVINOHead(random_head(), borrowed.embedding, borrowed.output)

    def texts(kappa):
        core = EngineCore(
            target, proposers=[DraftHeadProposer(runner)], kappa=kappa, rule="sample-match",
            deterministic=True,
        )  # fmt: skip
        for index in range(3):
            core.submit(
                GenerateRequest(
                    tuple(range(5 + index, 50)),
                    SamplingParams(),
                    max_tokens=30,
                    seed=index,
                    request_id=str(index),
                )
            )
        results = core.run()
        assert not any(result.notes for result in results.values())
        drafted = sum(result.stats.num_draft_tokens for result in results.values())
        return drafted, [results[str(index)].token_ids for index in range(3)]

    drafted, with_head = texts(3)
    assert drafted > 50
    assert with_head == texts(0)[1]
