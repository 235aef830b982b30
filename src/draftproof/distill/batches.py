"""From shards on disk to padded batches in torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from draftproof.distill.corpus import Corpus, Recording
from draftproof.distill.held_out import split
from draftproof.errors import ConfigError

__all__ = ["Batch", "held_out_batches", "padded", "split", "training_batches"]

Tensor = Any
#: Shards that are mixed before batches are cut.
_MIXED: Final = 6
#: Longer recordings are trained on in pieces, so that a small batch holds several texts.
_PIECE: Final = 96


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """B sequences of at most T positions.

    Parameters
    ----------
    features : torch.Tensor of float32, shape (B, T, E)
        The target's feature before each token.
    token_ids : torch.Tensor of int64, shape (B, T)
        The tokens.
    wanted : torch.Tensor of float32, shape (B, T, E)
        The target's feature after each token.
    lengths : torch.Tensor of int64, shape (B,)
        Positions of each sequence; what follows is padding.
    """

    features: Tensor
    token_ids: Tensor
    wanted: Tensor
    lengths: Tensor

    def mask(self, step: int) -> Tensor:
        """Return which positions step ``step`` predicts, (B, T) of bool."""
        places = torch.arange(self.token_ids.shape[1])[None, :]
        return (places >= step) & (places < self.lengths[:, None])


def padded(recordings: Sequence[Recording]) -> Batch:
    """Put recordings side by side.

    Parameters
    ----------
    recordings : sequence of Recording
        Each of at least 2 hidden states.

    Returns
    -------
    Batch
        The batch.
    """
    longest = max(map(len, recordings)) - 1
    width = recordings[0].hidden.shape[1]
    features = np.zeros((len(recordings), longest, width), dtype=np.float32)
    wanted = np.zeros_like(features)
    ids = np.zeros((len(recordings), longest), dtype=np.int64)
    for row, each in enumerate(recordings):
        count = len(each) - 1
        features[row, :count] = each.hidden[:-1]
        wanted[row, :count] = each.hidden[1:]
        ids[row, :count] = each.token_ids[1 : count + 1]
    lengths = np.array([len(each) - 1 for each in recordings], dtype=np.int64)
    return Batch(*map(torch.from_numpy, (features, ids, wanted, lengths)))


def training_batches(
    corpus: Corpus, num_tokens: int, generator: np.random.Generator
) -> Iterator[Batch]:
    """Yield batches for ever, each epoch in another order.

    Shards that were added since the last epoch are read too.

    Parameters
    ----------
    corpus : Corpus
        The corpus; its held-out shards are left out.
    num_tokens : int
        About how many positions a batch has.
    generator : numpy.random.Generator
        Decides the order.

    Yields
    ------
    Batch
        Sequences of similar length.

    Raises
    ------
    ConfigError
        If there is nothing to train on.
    """
    while True:
        paths, _held = split(corpus)
        order = generator.permutation(len(paths)).tolist()
        is_empty = True
        for at in range(0, len(order), _MIXED):
            mixed = [
                piece
                for index in order[at : at + _MIXED]
                for each in corpus.read(paths[index]).recordings
                for piece in _pieces(each)
                if len(piece) > 1
            ]
            if not mixed:
                continue
            is_empty = False
            groups = _groups(mixed, num_tokens)
            for index in generator.permutation(len(groups)).tolist():
                yield padded(groups[index])
        if is_empty:
            raise ConfigError("no text to train on was recorded; expected some sentences")


def held_out_batches(corpus: Corpus, most: int, num_tokens: int) -> list[Batch]:
    """Return what acceptance is measured on.

    Parameters
    ----------
    corpus : Corpus
        The corpus.
    most : int
        Most positions in all.
    num_tokens : int
        Positions of a batch.

    Returns
    -------
    list of Batch
        The same ones whenever the corpus is the same.

    Raises
    ------
    ConfigError
        If nothing is held out.
    """
    _paths, held = split(corpus)
    found: list[Recording] = []
    for path in held:
        for each in corpus.read(path).recordings:
            if len(each) > 1 and sum(map(len, found)) < most:
                found.append(each)
    if not found:
        raise ConfigError("no text is held out to measure on; expected some sentences more")
    return [padded(group) for group in _groups(found, num_tokens)]


def _pieces(recording: Recording) -> Iterator[Recording]:
    """Cut a recording; each piece begins with the token that the last one ended with."""
    for at in range(0, len(recording), _PIECE):
        yield Recording(
            recording.token_ids[at : at + _PIECE + 1], recording.hidden[at : at + _PIECE]
        )


def _groups(recordings: list[Recording], num_tokens: int) -> list[list[Recording]]:
    """Cut recordings, sorted by length, into groups of about as many positions."""
    groups: list[list[Recording]] = [[]]
    room = num_tokens
    for each in sorted(recordings, key=len):
        if groups[-1] and room < len(each):
            groups.append([])
            room = num_tokens
        groups[-1].append(each)
        room -= len(each)
    return groups
