"""Integrate over coins: the exact law of a program, by running every branch of it.

A program that decides by coins is run again and again. Each run takes one branch at
every decision and carries the branch's probability; the runs together are the law.
The shipped code decides: coins answer comparisons and draws, nothing is rewritten.

A coin that is asked again narrows the interval it is known to lie in, so a coin that
is used for two things is integrated correctly and a biased program shows its bias.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import numpy as np

from draftproof.core.law import DenseLaw, Law, SparseLaw
from draftproof.errors import InvariantError

__all__ = ["Brancher", "BranchingCoins", "exact_law"]

Outcome = TypeVar("Outcome", bound=Hashable)


class Brancher:
    """Chooses a branch at every decision of one run.

    Parameters
    ----------
    path : sequence of int
        Branches to take first; later decisions take their first possible branch.
    """

    def __init__(self, path: Sequence[int] = ()) -> None:
        self.path = list(path)
        self.num_branches: list[int] = []
        self.probability = 1.0
        self._depth = 0

    def choose(self, probs: Sequence[float]) -> int:
        """Take a branch.

        Parameters
        ----------
        probs : sequence of float
            Probabilities of the branches; those of 0 are never taken.

        Returns
        -------
        int
            Index of the branch.
        """
        possible = [index for index, prob in enumerate(probs) if prob > 0.0]
        if len(possible) == 1:
            return possible[0]
        if self._depth == len(self.path):
            self.path.append(0)
        branch = self.path[self._depth]
        self._depth += 1
        self.num_branches.append(len(possible))
        self.probability *= probs[possible[branch]]
        return possible[branch]

    def next_path(self) -> list[int] | None:
        """Return the path of the next run, None when all were taken."""
        for depth in range(len(self.path) - 1, -1, -1):
            if self.path[depth] + 1 < self.num_branches[depth]:
                return [*self.path[:depth], self.path[depth] + 1]
        return None


class _Coin:
    """A uniform of [0, 1) that is known only to lie in ``[low, high)``."""

    __slots__ = ("_brancher", "high", "low")

    def __init__(self, brancher: Brancher) -> None:
        self._brancher = brancher
        self.low, self.high = 0.0, 1.0

    def __lt__(self, bound: float) -> bool:
        """Decide whether the coin is below a bound."""
        cut = min(max(float(bound), self.low), self.high)
        width = self.high - self.low
        below = (cut - self.low) / width
        if self._brancher.choose((below, (self.high - cut) / width)) == 0:
            self.high = cut
            return True
        self.low = cut
        return False

    def __mul__(self, factor: float) -> _ScaledCoin:
        """Scale the coin, for comparisons without a division."""
        return _ScaledCoin(self, float(factor))

    def pick(self, law: Law) -> int:
        """Draw from a law by its cumulative sums."""
        edges = np.concatenate([[0.0], np.cumsum(law.dense())])
        edges[-1] = 1.0
        parts = np.clip(edges, self.low, self.high)
        shares = np.diff(parts) / (self.high - self.low)
        token = self._brancher.choose(shares.tolist())
        self.low, self.high = float(parts[token]), float(parts[token + 1])
        return token


class _ScaledCoin:
    __slots__ = ("_coin", "_factor")

    def __init__(self, coin: _Coin, factor: float) -> None:
        self._coin = coin
        self._factor = factor

    def __lt__(self, bound: float) -> bool:
        """Decide whether the scaled coin is below a bound."""
        return self._coin < (bound / self._factor if self._factor > 0.0 else np.inf)


class _Noise:
    """Race noise of one position.

    The target's race is one branching draw. A drafter's race over the same noise is
    another, independent one: how the two agree is not enumerated, only that the
    emitted law does not depend on it.
    """

    __slots__ = ("_brancher",)

    def __init__(self, brancher: Brancher) -> None:
        self._brancher = brancher

    def pick(self, law: Law) -> int:
        """Draw the winner of a race."""
        return self._brancher.choose(law.dense().tolist())


class BranchingCoins:
    """All coins of one request, each a branch point; stands in for ``CoinSource``.

    Parameters
    ----------
    brancher : Brancher
        Chooses the branches of this run.
    """

    def __init__(self, brancher: Brancher) -> None:
        self._brancher = brancher
        self._coins: dict[tuple[Any, ...], _Coin] = {}

    def round(self, start: int) -> _RoundCoins:
        """Return the coins of a round."""
        return _RoundCoins(self, start)

    def coin(self, *key: Any) -> _Coin:
        """Return the coin of a key; the same key is the same coin."""
        if key not in self._coins:
            self._coins[key] = _Coin(self._brancher)
        return self._coins[key]


class _RoundCoins:
    """Keyed as ``draftproof.core.rng.RoundCoins`` is."""

    def __init__(self, source: BranchingCoins, start: int) -> None:
        self._source = source
        self.start = start

    def draft(self, i: int) -> _Coin:
        return self._source.coin("draft", self.start, i)

    def accept(self, i: int) -> _Coin:
        return self._source.coin("accept", self.start, i)

    def sample(self, i: int) -> _Coin:
        return self._source.coin("sample", self.start + i)

    def noise(self, i: int, vocab_size: int) -> _Noise:  # noqa: ARG002
        return _Noise(self._source._brancher)


@contextmanager
def _branching_draws() -> Iterator[None]:
    """Let laws that are asked with a branching coin ask the coin instead."""

    def wrap(original: Callable[[Any, Any], int]) -> Callable[[Any, Any], int]:
        def method(law: Law, coin: Any) -> int:
            if isinstance(coin, (_Coin, _Noise)):
                return coin.pick(law)
            return original(law, coin)

        return method

    with (
        patch.object(DenseLaw, "draw", wrap(DenseLaw.draw)),
        patch.object(DenseLaw, "race", wrap(DenseLaw.race)),
        patch.object(SparseLaw, "draw", wrap(SparseLaw.draw)),
        patch.object(SparseLaw, "race", wrap(SparseLaw.race)),
    ):
        yield


def exact_law(
    program: Callable[[Brancher], Outcome], *, max_runs: int = 1_000_000
) -> dict[Outcome, float]:
    """Return the law of a program's outcome.

    Parameters
    ----------
    program : callable of Brancher
        Runs once, takes its coins from ``BranchingCoins(brancher)``, and returns a
        hashable outcome. Everything but the coins must be the same in every run.
    max_runs : int, default 1000000
        Most branches.

    Returns
    -------
    dict of outcome to float
        Probabilities; they sum to 1 up to rounding.

    Raises
    ------
    InvariantError
        If there are more branches than ``max_runs``, or a run decided differently
        from another on the same path.
    """
    law: defaultdict[Outcome, float] = defaultdict(float)
    path: list[int] | None = []
    runs = 0
    with _branching_draws():
        while path is not None:
            if runs == max_runs:
                raise InvariantError(f"the program has more than {max_runs} branches")
            runs += 1
            brancher = Brancher(path)
            outcome = program(brancher)
            if len(brancher.num_branches) != len(brancher.path):
                raise InvariantError(f"a run did not follow its path {path}: state leaked into it")
            law[outcome] += brancher.probability
            path = brancher.next_path()
    return dict(law)
