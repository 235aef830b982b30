"""A draft law whose weights live on a device, and drafting from such laws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftproof.core.law import DenseLaw, Law, OneHotLaw
from draftproof.device.draws import draw
from draftproof.device.greedy import greedy_tokens
from draftproof.device.laws import TorchLaws, to_device
from draftproof.device.places import Place, bucket, is_native, pack_places
from draftproof.errors import ConfigError, InvariantError, NonFiniteLogitsError

__all__ = ["DeviceLaw", "draw_drafts"]


class DeviceLaw(Law):
    """The law of a draft, held as weights on a device.

    A drafter on a device draws from the weights there and keeps them there; the
    executor reads them there. Every other use copies them to the host once.

    Parameters
    ----------
    weights : Tensor of float32, shape (V,)
        Weights, finite and not negative. Held, not copied: nobody may write to it.
    total : float
        Their sum, in float64.
    known : tuple of (int, float), optional
        A token and its weight that are known on the host already, so that asking for
        the probability of the drawn token does not wait for the device.

    Raises
    ------
    InvariantError
        If the weights have another shape or type, or the total is no positive number.
    """

    __slots__ = ("_host", "_known", "total", "weights")

    def __init__(
        self, weights: Tensor, total: float, known: tuple[int, float] | None = None
    ) -> None:
        if weights.ndim != 1 or weights.dtype != torch.float32 or len(weights) == 0:
            shape = tuple(weights.shape)
            raise InvariantError(f"weights {shape} of {weights.dtype}: expected (V,) of float32")
        if not 0.0 < total < float("inf"):
            raise InvariantError(f"weights with total {total}: expected a finite positive one")
        self._vocab_size = len(weights)
        self._known = known
        self._host: DenseLaw | None = None
        self.weights = weights
        self.total = total

    def __repr__(self) -> str:
        """Return a short description."""
        return f"DeviceLaw(<{self._vocab_size} tokens on {self.weights.device}>)"

    def on_host(self) -> DenseLaw:
        """Return the same law as the core holds it; the weights are copied once."""
        if self._host is None:
            self._host = DenseLaw(self.weights.cpu().numpy())
        return self._host

    def prob(self, token: int) -> float:
        """Return the probability of a token; 0 for an id outside the vocabulary."""
        if self._known is not None and token == self._known[0]:
            return self._known[1] / self.total
        if not 0 <= token < self._vocab_size:
            return 0.0
        return float(self.weights[token]) / self.total

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids."""
        return self.on_host().probs_at(token_ids)

    def draw(self, u: float) -> int:
        """Return the first token whose cumulative probability exceeds ``u``."""
        return self.on_host().draw(u)

    def race(self, noise: Any) -> int:
        """Return the argmin of noise / prob."""
        return self.on_host().race(noise)

    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, shape (V,), on the host."""
        return self.on_host().dense()

    def _excess(self, other: Law, scale: float) -> tuple[float, Law | None]:
        return self.on_host()._excess(other, scale)


def draw_drafts(
    logits: Tensor, places: Sequence[Place], coins: Sequence[float]
) -> list[tuple[int, Law] | Exception]:
    """Draw one draft per place; the laws stay on the device.

    Parameters
    ----------
    logits : Tensor, shape (M, V)
        Raw logits of the drafter.
    places : sequence of Place
        Where to draft, under which policies.
    coins : sequence of float
        ``RoundCoins.draft(i)`` of each place.

    Returns
    -------
    list of (int, Law) or Exception
        The draft and the law it was drawn from: a `DeviceLaw`, or a `OneHotLaw` under a
        greedy policy. A place without a law has its error and harms no other.

    Raises
    ------
    ConfigError
        If a place has stages in an unusual order, or ids or a mask that do not fit the
        vocabulary.

    Notes
    -----
    Three numbers per place cross to the host, in one copy.
    """
    if not places:
        return []
    vocab_size = logits.shape[1]
    for place in places:
        if not is_native(place, vocab_size):
            raise ConfigError(
                f"policy {place.params!r}: expected stages in the usual order, and ids "
                f"and masks over {vocab_size} tokens, for drafts on a device"
            )
    results: list[tuple[int, Law] | Exception] = [_no_law(i) for i in range(len(places))]
    greedy = [i for i, place in enumerate(places) if place.params.is_greedy]
    sampled = [i for i, place in enumerate(places) if not place.params.is_greedy]
    if greedy:
        packed = pack_places([places[i] for i in greedy], vocab_size, bucket(len(greedy)))
        tokens, is_bad = greedy_tokens(logits, packed)
        for i, token, bad in zip(greedy, tokens.tolist(), is_bad.tolist(), strict=False):
            if not bad:
                results[i] = token, OneHotLaw(token, vocab_size)
    if sampled:
        size = bucket(len(sampled))
        laws = TorchLaws(logits, pack_places([places[i] for i in sampled], vocab_size, size))
        uniforms = np.zeros(size)
        uniforms[: len(sampled)] = [coins[i] for i in sampled]
        for i, made in zip(sampled, _draw_all(laws, uniforms, vocab_size), strict=False):
            if made is not None:
                results[i] = made
    return results


def _draw_all(
    laws: TorchLaws, uniforms: NDArray[np.float64], vocab_size: int
) -> list[tuple[int, Law] | None]:
    device = laws.weights.device
    every = torch.arange(len(uniforms), device=device)
    no_error = torch.zeros_like(laws.totals)
    drawn = draw(laws, every, laws.sums, to_device(uniforms, device), no_error).tokens
    crossing = torch.stack(
        [drawn.double(), laws.weights_at(every, drawn), laws.totals, laws.is_bad.double()]
    )
    return [
        None
        if bad
        else (int(token), DeviceLaw(laws.weights[i, :vocab_size], total, (int(token), weight)))
        for i, (token, weight, total, bad) in enumerate(crossing.T.tolist())
    ]


def _no_law(i: int) -> Exception:
    return NonFiniteLogitsError(f"draft logits of place {i}: expected a finite largest one")
