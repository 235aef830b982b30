"""The noise of races, made on the device from two words per place.

The definition is `draftproof.core.noise`. Words and uniforms are the same bits here;
only the logarithm may round its last bit otherwise, which is far below what the float32
weights of a race allow for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from draftproof.core.lanes import DEPTH, block_count, block_of, depth_of
from draftproof.core.noise import PositionNoise
from draftproof.device.laws import to_device

__all__ = ["make_noise"]

# The multipliers of the definition, as signed words.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def make_noise(
    noise: Sequence[PositionNoise | ArrayLike], size: int, device: torch.device
) -> Tensor:
    """Return the exponentials of some places.

    Parameters
    ----------
    noise : sequence of PositionNoise or array_like
        What ``RoundCoins.noise`` returned for each place. Two words of a `PositionNoise`
        cross to the device; of anything else all values do.
    size : int
        Number of entries V.
    device : torch.device
        Where they are wanted.

    Returns
    -------
    Tensor of float64, shape (N, V)
        Positive and finite.
    """
    keys = [held._keys for held in noise if isinstance(held, PositionNoise)]
    if len(keys) < len(noise):
        values = [np.asarray(held, dtype=np.float64)[:size] for held in noise]
        return to_device(np.stack(values), device)
    return _exponentials(to_device(np.array(keys, dtype=np.uint64).view(np.int64), device), size)


def _exponentials(keys: Tensor, size: int) -> Tensor:
    ids = np.arange(size)
    blocks = torch.arange(block_count(size), device=keys.device)
    block, depth = to_device(block_of(ids), keys.device), to_device(depth_of(ids), keys.device)
    first = _words(keys, 2 * blocks + 1)
    least = torch.log1p(-_uniforms(first)) / -DEPTH
    place = first & (DEPTH - 1)
    noise = least[:, block]
    own = torch.log1p(-_uniforms(_words(keys, 2 * torch.arange(size, device=keys.device))))
    return torch.where(depth == place[:, block], noise, noise - own)


def _words(keys: Tensor, counters: Tensor) -> Tensor:
    """Return the words of some counters for every place, shape (N, C), as signed integers."""
    words = (counters ^ keys[:, 1:]) * _GAMMA + keys[:, :1]
    words = (words ^ _shifted(words, 30)) * _FIRST
    words = (words ^ _shifted(words, 27)) * _SECOND
    return words ^ _shifted(words, 31)


def _shifted(words: Tensor, bits: int) -> Tensor:
    """Shift to the right and fill with zeros; a signed shift would copy the sign."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def _uniforms(words: Tensor) -> Tensor:
    return (_shifted(words, 12).double() + 0.5) * 2.0**-52
