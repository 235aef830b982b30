"""A small random draft head, and a table target that has hidden states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draftproof.backends.numpy_head import NumpyHead
from draftproof.backends.table import PagedStore, TableBackend
from draftproof.models.head_files import HeadShape, HeadWeights

VOCAB = 7
SHAPE = HeadShape(
    hidden_size=8, num_heads=4, num_kv_heads=2, head_dim=4, ffn_size=12,
    vocab_size=VOCAB, draft_vocab_size=5, window=6, rope_theta=100.0,
)  # fmt: skip
#: Of three tokens two can be drafted.
SMALL = replace(SHAPE, vocab_size=3, draft_vocab_size=2)


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
