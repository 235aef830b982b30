"""Drafts as slots: which of them to fill so that a pass commits most per second.

Seconds are looked up: those of passes and of drafting are worked out once for a number of
rows and a rounded context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.planner.cost import Floats
from draftproof.planner.rounds import DraftCost, RoundCost

__all__ = ["Admitted", "Beliefs", "SlotPricer", "Spare"]

#: Contexts that share a price, in tokens, and how many prices are kept.
CONTEXT_STEP = 128
MOST_PRICES = 1024
#: How often a draft may fare worse than what its risk is reckoned with.
BAD_LUCK = 0.25

#: What a drafter is believed to survive, rows by depths, and how often it answers.
Beliefs = tuple[Floats, Floats]


@dataclass(frozen=True, slots=True)
class Admitted:
    """The best prefix of the slots of one assignment.

    Parameters
    ----------
    kappas : list of int, length B
        Drafts per row.
    gain : float
        Its expected tokens per second over those of plain decoding.
    drafting_s : float
        Seconds of drafting them.
    loss : float
        Plain steps that are lost if nothing is accepted.
    risk : float
        The same if the drafts fare worse than expected, see `Spare`.
    """

    kappas: list[int]
    gain: float
    drafting_s: float = 0.0
    loss: float = 0.0
    risk: float = 0.0


@dataclass(frozen=True, slots=True)
class Spare:
    """What a round may lose, in plain steps.

    Parameters
    ----------
    worst : float
        If nothing is accepted.
    doubt : float
        If every row keeps what it is believed to keep less of one time in `BAD_LUCK`: the drafts
        whose chance to be kept is ``1 - BAD_LUCK``. Rows are taken to fare alike, since one
        drafter serves them, often on texts of one kind.
    """

    worst: float = float("inf")
    doubt: float = float("inf")


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
        self._passes: dict[tuple[int, int], Floats] = {}
        # Running sums of one row's drafting, and its passes: what a single row needs.
        self._single: dict[tuple[str, int], tuple[list[float], list[float]]] = {}

    def admit(
        self,
        assignment: Sequence[str],
        limits: Sequence[int],
        beliefs: Mapping[str, Beliefs],
        context: float,
        spare: Spare | None = None,
    ) -> Admitted:
        """Find the best prefix of the slots, sorted by what they yield.

        Parameters
        ----------
        assignment : sequence of str, length B
            The drafter of each row; empty for none.
        limits : sequence of int, length B
            Most drafts of each row.
        beliefs : mapping of str to Beliefs
            What to expect of each drafter.
        context : float
            Cached tokens per row.
        spare : Spare, optional
            What may be lost; without it anything.

        Returns
        -------
        Admitted
            Drafts per row; none where plain decoding is best.
        """
        spare = spare or Spare()
        batch, depths = len(assignment), self._depths
        used = list(dict.fromkeys(name for name in assignment if name))
        if not used or not any(limits):
            return Admitted([0] * batch, 1.0)
        if batch == 1:
            return self._admit_one(used[0], limits[0], beliefs[used[0]], context, spare)
        survival, given = beliefs[used[0]]
        who = np.zeros(batch, dtype=np.int64)
        is_plain = len(used) == 1 and all(assignment)
        if not is_plain:
            who = np.asarray([used.index(name) if name else -1 for name in assignment])
            given = np.select([who == i for i in range(len(used))], [beliefs[n][1] for n in used])
            survival = np.select(
                [(who == i)[:, None] for i in range(len(used))], [beliefs[n][0] for n in used]
            )
        # Depth by depth, so that a stable sort by yield takes shallow slots first and
        # no draft has a hole. Within a depth the n-th best row pays the n-th price.
        worth = (survival * given[:, None]).T
        allowed = np.arange(depths)[:, None] < np.asarray(limits)
        if not is_plain:
            allowed &= who >= 0
        worth[~allowed] = -1.0
        rows = np.argsort(-worth, axis=1, kind="stable")
        price = self.price(used[0], batch, context)
        if len(used) > 1:
            price = self._mixed_price(who[rows], used, context)
        worth = np.take_along_axis(worth, rows, axis=1).ravel()
        order = np.argsort(-worth, kind="stable")[: int(allowed.sum())]
        row_of = rows.ravel()[order]
        drafting = _running(0.0, price.ravel()[order])
        yielded = _running(batch, worth[order])
        passes = self.passes(batch, context)
        certain = passes[: len(order) + 1]  # the pass where every draft comes
        expected = certain
        if (given < 1.0).any():
            grid = np.arange(len(certain))
            expected = np.interp(_running(0.0, given[row_of]), grid, certain)
        seconds = expected + drafting
        # Rows whose drafts differ in number bring another shape nearly every round.
        seconds[1:] += self._cost.change_s
        pace = yielded / seconds
        # The drafts that may be lost all come.
        loss = (certain + drafting) / passes[0] - 1.0
        kept = _running(0.0, np.where(worth[order] >= 1.0 - BAD_LUCK, 1.0, 0.0))
        risk = loss - kept / batch
        pace[1:][(loss[1:] > spare.worst) | (risk[1:] > spare.doubt)] = 0.0
        best = int(pace.argmax())
        kappas = np.bincount(row_of[:best], minlength=batch).tolist()
        gain = pace[best] * passes[0] / batch
        return Admitted(
            kappas, float(gain), float(drafting[best]), float(loss[best]), float(risk[best])
        )

    def loss_of_one(
        self, assignment: Sequence[str], kappas: Sequence[int], context: float
    ) -> tuple[float, float]:
        """Return what a round of at most one draft per row loses if none is accepted.

        Parameters
        ----------
        assignment : sequence of str, length B
            The drafter of each row; empty for none.
        kappas : sequence of int, length B
            0 or 1.
        context : float
            Cached tokens per row.

        Returns
        -------
        loss : float
            In plain steps.
        drafting_s : float
            Seconds of drafting.
        """
        batch, drafting = len(assignment), 0.0
        for name in dict.fromkeys(assignment):
            count = sum(k for who, k in zip(assignment, kappas, strict=True) if who == name)
            if name and count:
                drafting += float(self.price(name, batch, context)[0, :count].sum())
        passes = self.passes(batch, context)
        return float((passes[sum(kappas)] + drafting) / passes[0]) - 1.0, drafting

    def change(self, batch: int, context: float) -> float:
        """Return what a change of shape costs, in plain steps of so many rows."""
        return self._cost.change_s / float(self.passes(batch, context)[0])

    def _admit_one(
        self, name: str, limit: int, beliefs: Beliefs, context: float, spare: Spare
    ) -> Admitted:
        """Return the best length of a single row; arrays of this size cost more than lists."""
        drafting, passes = self._single_sums(name, context)
        plain, given = passes[0], float(beliefs[1][0])
        best = Admitted([0], 1.0)
        kept = sure = 0.0
        survival = beliefs[0][0].tolist()
        for kappa in range(1, min(limit, self._depths) + 1):
            loss = (passes[kappa] + drafting[kappa]) / plain - 1.0
            if loss > spare.worst:
                break
            worth = given * survival[kappa - 1]
            kept, sure = kept + worth, sure + (worth >= 1.0 - BAD_LUCK)
            seconds = given * passes[kappa] + (1.0 - given) * plain + drafting[kappa]
            gain = (1.0 + kept) * plain / seconds
            if gain > best.gain and loss - sure <= spare.doubt:
                best = Admitted([kappa], gain, drafting[kappa], loss, loss - sure)
        return best

    def _single_sums(self, name: str, context: float) -> tuple[list[float], list[float]]:
        bucket = round(context / CONTEXT_STEP)
        held = self._single.get((name, bucket))
        if held is None:
            if len(self._single) >= MOST_PRICES:
                self._single.clear()
            drafting = _running(0.0, self.price(name, 1, context)[:, 0])
            held = (drafting.tolist(), self.passes(1, context).tolist())
            self._single[name, bucket] = held
        return held

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

    def passes(self, batch: int, context: float) -> Floats:
        """Return the seconds of passes with 0, 1, ... drafts in all.

        Parameters
        ----------
        batch : int
            Rows.
        context : float
            Cached tokens per row; rounded, as in `price`.

        Returns
        -------
        ndarray of float64, shape (batch * depths + 1,)
            Kept for the next call.
        """
        bucket = round(context / CONTEXT_STEP)
        held = self._passes.get((batch, bucket))
        if held is None:
            if len(self._passes) >= MOST_PRICES:
                self._passes.clear()
            tokens = np.arange(batch, batch * (self._depths + 1) + 1.0)
            held = self._cost.pass_seconds(batch, tokens, bucket * CONTEXT_STEP)
            self._passes[batch, bucket] = held
        return held

    def price(self, name: str, batch: int, context: float) -> Floats:
        """Return the seconds that the n-th row at each depth adds to drafting.

        Parameters
        ----------
        name : str
            The drafter.
        batch : int
            Rows.
        context : float
            Cached tokens per row; rounded, since costs change slowly with it.

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


def _running(start: float, steps: Floats) -> Floats:
    """Return the start and the sums of it and the first 1, 2, ... steps."""
    sums = np.empty(len(steps) + 1)
    sums[0], sums[1:] = start, steps
    found: Floats = sums.cumsum()
    return found
