"""What the rules need of the laws of many places, whoever computes them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

__all__ = ["Cut", "Edges", "PlaceLaws"]


class Cut(NamedTuple):
    """What is taken from each of R laws before it is drawn from.

    Parameters
    ----------
    dropped : Tensor of int64, shape (R,)
        A token whose weight becomes 0, -1 for none.
    units : Tensor of float64, shape (R,)
        Factor of the draft's weights that are subtracted, 0 for none; what would fall
        below 0 becomes 0.
    draft_weights : Tensor of float32 or float64, shape (Q, padded V)
        Weights of draft laws; may be empty when all units are 0.
    draft_rows : Tensor of int64, shape (R,)
        Which of them each row takes.
    """

    dropped: Tensor
    units: Tensor
    draft_weights: Tensor
    draft_rows: Tensor


class Edges(NamedTuple):
    """Where R coins fell in their cumulative laws, in units of the weights.

    Parameters
    ----------
    tokens : Tensor of int64, shape (R,)
        The first token whose step exceeds the point; the last of positive weight where
        rounding leaves none.
    lower, upper : Tensor of float64, shape (R,)
        Cumulative weight before and after that token.
    point, total : Tensor of float64, shape (R,)
        Coin times total, and the total.
    """

    tokens: Tensor
    lower: Tensor
    upper: Tensor
    point: Tensor
    total: Tensor


class PlaceLaws(Protocol):
    """Laws of N places.

    Attributes
    ----------
    totals : Tensor of float64, shape (N,)
        Sum of the weights of each place.
    sums : Tensor of float64, shape (N, nb)
        Sums of the weights of each block of 256 tokens.
    slack : Tensor of float64, shape (N,)
        Share of the total that filters may have kept or dropped wrongly.
    is_bad : Tensor of bool, shape (N,)
        Places that have no law.
    """

    totals: Tensor
    sums: Tensor
    slack: Tensor
    is_bad: Tensor

    def weights_at(self, places: Tensor, tokens: Tensor) -> Tensor:
        """Return single weights as float64, in the shape of ``places``."""
        ...

    def block(self, places: Tensor, blocks: Tensor) -> Tensor:
        """Return one block of weights per place, float64, shape (R, 256)."""
        ...

    def excess_sums(
        self, places: Tensor, units: Tensor, draft_weights: Tensor, draft_rows: Tensor
    ) -> Tensor:
        """Return the block sums of ``(w - units * q)+``, float64, shape (R, nb)."""
        ...

    def search(self, places: Tensor, sums: Tensor, coins: Tensor, cut: Cut | None) -> Edges:
        """Find coins in cumulative laws after a cut, whose block sums are ``sums``."""
        ...
