"""Rules that emit the target's own tokens: draws, races, and the greedy token.

The device names the target's token at every place of a row; the host walks along the
drafts while they hold those tokens, down a chain or a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from draftproof.core.noise import PositionNoise
from draftproof.core.tree import TreeDraft, TreeVerdict
from draftproof.core.types import Draft
from draftproof.device.draws import Drawn, draw
from draftproof.device.laws import TorchLaws
from draftproof.device.noise import make_noise
from draftproof.device.place_laws import PlaceLaws
from draftproof.device.precision import WEIGHT_ERROR

__all__ = ["draw_places", "race_places", "visited", "walk"]

#: Places whose races are held at once.
_RACES = 16


def draw_places(laws: PlaceLaws, coins: Tensor) -> Drawn:
    """Draw a token at every place.

    Parameters
    ----------
    laws : PlaceLaws
        N laws.
    coins : Tensor of float64, shape (N,)
        ``RoundCoins.sample`` of each place.

    Returns
    -------
    Drawn
        One token per place.
    """
    every = torch.arange(len(coins), device=coins.device)
    return draw(laws, every, laws.sums, coins, laws.slack * laws.totals)


def race_places(laws: TorchLaws, noise: Sequence[PositionNoise | ArrayLike], size: int) -> Drawn:
    """Let the tokens of every place race, the argmin of noise / weight.

    Parameters
    ----------
    laws : TorchLaws
        At least N laws.
    noise : sequence of PositionNoise or array_like, length N
        ``RoundCoins.noise`` of each place.
    size : int
        Number of entries V.

    Returns
    -------
    Drawn
        The winners, the lowest id on ties; near where another token is so close behind
        that the rounding of a weight decides, or where filters were unsure.
    """
    winners, nears = [], []
    for begin in range(0, len(noise), _RACES):
        part = make_noise(noise[begin : begin + _RACES], size, laws.weights.device)
        weights = laws.weights[begin : begin + len(part), :size]
        times = torch.where(weights > 0, part / weights, torch.inf)
        best = times.amin(1)
        winner = (times == best[:, None]).int().argmax(1)
        times.scatter_(1, winner[:, None], torch.inf)
        winners.append(winner)
        nears.append(times.amin(1) <= best * (1 + 2 * WEIGHT_ERROR))
    is_near = torch.cat(nears) | (laws.slack[: len(noise)] > 0)
    return Drawn(torch.cat(winners), is_near)


def walk(draft: Draft | TreeDraft, tokens: Sequence[int]) -> TreeVerdict:
    """Follow the drafts while they hold the target's own tokens.

    Parameters
    ----------
    draft : Draft or TreeDraft
        The drafts of a row.
    tokens : sequence of int, length N + 1
        The target's token after the committed text, then after each draft or node.

    Returns
    -------
    TreeVerdict
        The kept path and the target's token after it.
    """
    node_of, inner = _children(draft)
    node = -1
    path: list[int] = []
    while True:
        token = tokens[node + 1]
        child = node_of.get((node, token))
        if child is None:
            break
        path.append(child)
        node = child
    if node in inner:
        return TreeVerdict(tuple(path), token, "recovered")
    return TreeVerdict(tuple(path), token, "bonus" if path else "sampled")


def visited(verdict: TreeVerdict) -> tuple[int, ...]:
    """Return the nodes whose law decided a walk, -1 for the committed text."""
    return (-1, *verdict.path)


def _children(draft: Draft | TreeDraft) -> tuple[Mapping[tuple[int, int], int], set[int]]:
    parents = draft.parents if isinstance(draft, TreeDraft) else range(-1, len(draft) - 1)
    pairs = zip(parents, draft.token_ids, strict=True)
    return {pair: node for node, pair in enumerate(pairs)}, set(parents)
