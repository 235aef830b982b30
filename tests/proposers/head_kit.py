"""A small random draft head, and a table target that has hidden states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draftproof.backends.numpy_head import NumpyHead
from draftproof.backends.table import MarkovTable, PagedStore, TableBackend
from draftproof.core.rng import CoinSource
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.models.head_files import HeadShape, HeadWeights
from draftproof.testing.branching import BranchingCoins, exact_law

VOCAB = 7
SHAPE = HeadShape(
    hidden_size=8, num_heads=4, num_kv_heads=2, head_dim=4, ffn_size=12,
    vocab_size=VOCAB, draft_vocab_size=5, window=6, rope_theta=100.0,
)  # fmt: skip
#: Of three tokens two can be drafted.
SMALL = replace(SHAPE, vocab_size=3, draft_vocab_size=2)
SMALL_TABLE = MarkovTable(3, None, seed=1)
PROMPT = (0, 1, 0)
HORIZON = 4


def draft_ids(shape=SHAPE):
    return np.sort(np.random.default_rng(8).permutation(shape.vocab_size)[: shape.draft_vocab_size])


def weights(shape=SHAPE, seed=0):
    generator = np.random.default_rng(seed)
    tensors = {
        name: generator.normal(float(len(extent) == 1), 0.4, extent).astype(np.float32)
        for name, extent in shape.tensors().items()
    }
    return HeadWeights(shape, tensors, draft_ids(shape), "a table", {"seed": seed})


def matrices(shape=SHAPE):
    generator = np.random.default_rng(1)
    return generator.normal(size=(2, shape.vocab_size, shape.hidden_size)).astype(np.float32)


def numpy_head(shape=SHAPE, seed=0):
    return NumpyHead(weights(shape, seed), *matrices(shape))


class HiddenTable(TableBackend):
    """A table model; the hidden state of a token follows from it and its position."""

    def __init__(self, table, shape=SHAPE, **options):
        super().__init__(table, PagedStore(2000, 4), **options)
        self._matrices = matrices(shape)
        self._hidden = np.empty((0, shape.hidden_size), np.float32)

    @property
    def info(self):
        return replace(super().info, hidden_size=self._matrices.shape[2])

    def forward(self, batch):
        logits = super().forward(batch)
        turned = np.cos(batch.positions[:, None] * np.arange(1, self._matrices.shape[2] + 1))
        self._hidden = (self._matrices[0][batch.token_ids] + turned).astype(np.float32)
        return logits

    def hidden(self):
        return self._hidden

    def matrices(self):
        return tuple(self._matrices)


def joint_law(proposer_of, rule, kappa=2, horizon=HORIZON):
    """The law of the whole output, by every branch of every coin."""

    def program(brancher):
        def coins(seed, stream):
            return BranchingCoins(brancher) if seed == 77 else CoinSource(seed, stream)

        core = EngineCore(
            HiddenTable(SMALL_TABLE, SMALL), proposers=[proposer_of()], coin_source=coins,
            kappa=kappa, rule=rule,
        )  # fmt: skip
        core.submit(GenerateRequest(PROMPT, max_tokens=horizon, seed=77, request_id="studied"))
        core.submit(GenerateRequest((1, 2), max_tokens=3, seed=1, request_id="beside"))
        return tuple(core.run()["studied"].token_ids)

    return exact_law(program)


def distance_from_target(law, horizon=HORIZON):
    """Total variation from the law of plain decoding."""
    expected = {}

    def walk(outcome, prob):
        if len(outcome) == horizon:
            expected[outcome] = prob
            return
        context = np.array([*PROMPT, *outcome])
        row = SMALL_TABLE.probs(context, np.arange(len(context)))
        for token in range(3):
            walk((*outcome, token), prob * row[token])

    walk((), 1.0)
    keys = law.keys() | expected.keys()
    return 0.5 * sum(abs(law.get(key, 0.0) - expected.get(key, 0.0)) for key in keys)
