"""Drafts as slots: which of them to fill so that a pass commits most per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.planner.cost import Floats
from draftproof.planner.rounds import DraftCost, RoundCost

__all__ = ["Admitted", "Beliefs", "SlotPricer"]

#: Contexts that share a price of drafting, in tokens, and how many prices are kept.
CONTEXT_STEP = 128
MOST_PRICES = 1024

#: What a drafter is believed to survive, rows by depths, and how often it answers.
Beliefs = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The best prefix of the slots of one assignment.

    Parameters
    ----------
    kappas : ndarray of int64, shape (B,)
        Drafts per row.
    gain : float
        Its expected tokens per second over those of plain decoding.
    """

    kappas: NDArray[np.int64]
    gain: float


class SlotPricer:
    """Prices every draft position of every row with the cost model.

    Parameters
    ----------
    cost : RoundCost
        Costs; its own drafter stands for those that ``drafters`` does not name.
    drafters : mapping of str to DraftCost
        Costs of drafters by name.
    max_kappa : int
        Longest draft.
    """

    def __init__(self, cost: RoundCost, drafters: Mapping[str, DraftCost], max_kappa: int) -> None:
        self._cost = cost
        self._drafters = dict(drafters)
        self._depths = max(max_kappa, 1)
        self._prices: dict[tuple[str, int, int], Floats] = {}

    def admit(
        self,
        assignment: Sequence[str],
        limits: NDArray[np.int64],
        beliefs: Mapping[str, Beliefs],
        context: float,
    ) -> Admitted:
        """Find the best prefix of the slots, sorted by what they yield.

        Parameters
        ----------
        assignment : sequence of str, length B
            The drafter of each row; empty for none.
        limits : ndarray of int64, shape (B,)
            Most drafts of each row.
        beliefs : mapping of str to Beliefs
            What to expect of each drafter.
        context : float
            Cached tokens per row.

        Returns
        -------
        Admitted
            Drafts per row; none where plain decoding is best.
        """
        batch, depths = len(assignment), self._depths
        used = list(dict.fromkeys(name for name in assignment if name))
        if not used or not limits.any():
            return Admitted(np.zeros(batch, dtype=np.int64), 1.0)
        survival, given = beliefs[used[0]]
        who = np.zeros(batch, dtype=np.int64)
        if len(used) > 1 or not all(assignment):
            who = np.asarray([used.index(name) if name else -1 for name in assignment])
            given = np.select([who == i for i in range(len(used))], [beliefs[n][1] for n in used])
            survival = np.select(
                [(who == i)[:, None] for i in range(len(used))], [beliefs[n][0] for n in used]
            )
        # Depth by depth, so that a stable sort by yield takes shallow slots first and
        # no draft has a hole. Within a depth the n-th best row pays the n-th price.
        worth = (survival * given[:, None]).T
        allowed = np.arange(depths)[:, None] < limits
        if len(used) > 1 or not all(assignment):
            allowed &= who >= 0
        worth[~allowed] = -1.0
        rows = np.argsort(-worth, axis=1, kind="stable")
        price = self.price(used[0], batch, context)
        if len(used) > 1:
            price = self._mixed_price(who[rows], used, context)
        worth = worth[np.arange(depths)[:, None], rows].ravel()
        order = np.argsort(-worth, kind="stable")[: int(allowed.sum())]
        row_of = rows.ravel()[order]
        sums = np.empty((3, len(order) + 1))
        sums[:, 0] = batch, batch, 0.0
        sums[0, 1:] = given[row_of]
        sums[1, 1:] = worth[order]
        sums[2, 1:] = price.ravel()[order]
        tokens, yielded, drafting = sums.cumsum(axis=1)
        pace = yielded / (self._cost.pass_seconds(batch, tokens, context) + drafting)
        best = int(pace.argmax())
        return Admitted(np.bincount(row_of[:best], minlength=batch), float(pace[best] / pace[0]))

    def _mixed_price(self, who: NDArray[np.int64], used: Sequence[str], context: float) -> Floats:
        """Return the price of each slot where every drafter counts its own rows.

        Parameters
        ----------
        who : ndarray of int64, shape (depths, B)
            Number of the drafter of each slot, best slot of a depth first; -1 for none.
        used : sequence of str
            Drafters by number.
        context : float
            Cached tokens per row.
        """
        price = np.zeros(who.shape)
        for index, name in enumerate(used):
            mine = who == index
            rank = np.maximum(np.cumsum(mine, axis=1) - 1, 0)
            own = np.take_along_axis(self.price(name, who.shape[1], context), rank, axis=1)
            price = np.where(mine, own, price)
        return price

    def price(self, name: str, batch: int, context: float) -> Floats:
        """Return the seconds that the n-th row at each depth adds to drafting.

        Parameters
        ----------
        name : str
            The drafter.
        batch : int
            Rows.
        context : float
            Cached tokens per row; rounded, since drafting costs change slowly with it.

        Returns
        -------
        ndarray of float64, shape (depths, B)
            Kept for the next call.
        """
        bucket = round(context / CONTEXT_STEP)
        held = self._prices.get((name, batch, bucket))
        if held is None:
            if len(self._prices) >= MOST_PRICES:
                self._prices.clear()
            draft = self._drafters.get(name, self._cost.draft)
            rows = np.arange(batch + 1.0)
            whole = [
                draft.depth_seconds(depth + 1, rows, bucket * CONTEXT_STEP)
                for depth in range(self._depths)
            ]
            held = self._prices[name, batch, bucket] = np.diff(np.stack(whole), axis=1)
        return held
