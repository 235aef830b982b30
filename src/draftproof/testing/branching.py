"""Integrate over coins: the exact law of a program, by running every branch of it.

A program that decides by coins is run again and again. Each run takes one branch at
every decision and carries the branch's probability; the runs together are the law.
The shipped code decides: coins answer comparisons and draws, nothing is rewritten.

A coin that is asked again narrows the interval it is known to lie in, so a coin that
is used for two things is integrated correctly and a biased program shows its bias.
Numbers are whatever the program compares coins with: with
`draftproof.testing.fraction_law.FractionLaw` every probability is an exact fraction,
with the shipped laws a float64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, TypeVar
from unittest.mock import patch

from draftproof.core.law import DenseLaw, Law, SparseLaw
from draftproof.errors import InvariantError
from draftproof.testing.races import joint_race

__all__ = [
    "Brancher",
    "BranchingCoins",
    "Coin",
    "CoinKey",
    "Noise",
    "by_place",
    "exact_law",
    "outcomes",
]

Result = TypeVar("Result")
Outcome = TypeVar("Outcome", bound=Hashable)
#: (purpose, start of the round, offset) -> the place of a coin.
CoinKey = Callable[[str, int, int], Hashable]


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
        self.probability: Any = 1
        self._depth = 0

    def choose(self, probs: Sequence[Any]) -> int:
        """Take a branch.

        Parameters
        ----------
        probs : sequence of Fraction or float
            Probabilities of the branches; those of 0 are never taken.

        Returns
        -------
        int
            Index of the branch.
        """
        possible = [index for index, prob in enumerate(probs) if prob > 0]
        if len(possible) == 1:
            return possible[0]
        if self._depth == len(self.path):
            self.path.append(0)
        branch = self.path[self._depth]
        self._depth += 1
        self.num_branches.append(len(possible))
        self.probability = self.probability * probs[possible[branch]]
        return possible[branch]

    def next_path(self) -> list[int] | None:
        """Return the path of the next run, None when all were taken."""
        for depth in range(len(self.path) - 1, -1, -1):
            if self.path[depth] + 1 < self.num_branches[depth]:
                return [*self.path[:depth], self.path[depth] + 1]
        return None


class Coin:
    """A uniform of [0, 1) that is known only to lie in ``[low, high)``.

    Parameters
    ----------
    brancher : Brancher
        Chooses the branches of this run.
    """

    __slots__ = ("_brancher", "_whole", "high", "low")

    def __init__(self, brancher: Brancher) -> None:
        self._brancher = brancher
        self._whole = True
        self.low: Any = 0
        self.high: Any = 1

    def __lt__(self, bound: Any) -> bool:
        """Decide whether the coin is below a bound."""
        if bound >= self.high:
            return True
        if not bound > self.low:
            return False
        width = self.high - self.low
        below = (bound - self.low) / width
        self._whole = False
        if self._brancher.choose((below, (self.high - bound) / width)) == 0:
            self.high = bound
            return True
        self.low = bound
        return False

    #: The end of an interval has no measure.
    __le__ = __lt__

    def __mul__(self, factor: Any) -> _ScaledCoin:
        """Scale the coin, for comparisons without a division."""
        return _ScaledCoin(self, factor)

    __rmul__ = __mul__

    def pick(self, probs: Sequence[Any], edges: Sequence[Any]) -> int:
        """Draw from a law by its cumulative sums.

        Parameters
        ----------
        probs : sequence of Fraction or float, length V
            The law.
        edges : sequence of Fraction or float, length V
            Its cumulative sums.

        Returns
        -------
        int
            A token of positive probability.
        """
        if self._whole:
            token = self._brancher.choose(probs)
            self._whole = False
            self.low = edges[token - 1] if token else 0
            self.high = edges[token]
            return token
        # Rounding may leave the last edge short of 1: it belongs to the last token.
        last = max(token for token, prob in enumerate(probs) if prob > 0)
        bounds = [0, *edges[:last], 1]
        clipped = [min(max(bound, self.low), self.high) for bound in bounds]
        width = self.high - self.low
        token = self._brancher.choose([(b - a) / width for a, b in pairwise(clipped)])
        self.low, self.high = clipped[token], clipped[token + 1]
        return token


class _ScaledCoin:
    __slots__ = ("_coin", "_factor")

    def __init__(self, coin: Coin, factor: Any) -> None:
        self._coin = coin
        self._factor = factor

    def __lt__(self, bound: Any) -> bool:
        """Decide whether the scaled coin is below a bound."""
        if not self._factor > 0:
            return bool(bound > 0)
        # Not through float: a shipped law may answer 1.0 where a fraction is compared.
        factor = Fraction(self._factor) if isinstance(bound, Fraction) else self._factor
        return bool(self._coin < bound / factor)

    __le__ = __lt__


class Noise:
    """Race noise of one position.

    Two races over it, say the drafter's and the target's, are enumerated jointly. A
    later race is joint with the one before it alone: what a discarded draft raced
    earlier no longer matters to a rule that emits the target's winner.

    Parameters
    ----------
    brancher : Brancher
        Chooses the branches of this run.
    """

    __slots__ = ("_brancher", "_held")

    def __init__(self, brancher: Brancher) -> None:
        self._brancher = brancher
        self._held: tuple[Sequence[Any], int] | None = None

    def race(self, probs: Sequence[Any]) -> int:
        """Return the winner of a race of a law, shape (V,), over this noise."""
        if self._held is None:
            winner = self._brancher.choose(probs)
        else:
            before, first = self._held
            joint = [joint_race(before, probs, first, second) for second in range(len(probs))]
            winner = self._brancher.choose([value / before[first] for value in joint])
        self._held = (probs, winner)
        return winner


def by_place(purpose: str, start: int, i: int) -> Hashable:
    """Return the place of a coin as ``draftproof.core.rng`` keys it."""
    return (purpose, start + i) if purpose in ("sample", "noise") else (purpose, start, i)


class BranchingCoins:
    """All coins of one request, each a branch point; stands in for ``CoinSource``.

    Parameters
    ----------
    brancher : Brancher
        Chooses the branches of this run.
    key : callable of (str, int, int), default by_place
        Which places share a coin.
    """

    def __init__(self, brancher: Brancher, key: CoinKey = by_place) -> None:
        self._brancher = brancher
        self._key = key
        self._held: dict[Hashable, Any] = {}

    def round(self, start: int) -> _RoundCoins:
        """Return the coins of a round."""
        return _RoundCoins(self, start)

    def at(self, kind: type[Any], purpose: str, start: int, i: int) -> Any:
        """Return the coin or noise of a place; the same place is the same one."""
        place = self._key(purpose, start, i)
        held = self._held.get(place)
        if held is None:
            held = self._held[place] = kind(self._brancher)
        return held


class _RoundCoins:
    """Keyed as ``draftproof.core.rng.RoundCoins`` is."""

    __slots__ = ("_source", "start")

    def __init__(self, source: BranchingCoins, start: int) -> None:
        self._source = source
        self.start = start

    def draft(self, i: int) -> Coin:
        coin: Coin = self._source.at(Coin, "draft", self.start, i)
        return coin

    def accept(self, i: int) -> Coin:
        coin: Coin = self._source.at(Coin, "accept", self.start, i)
        return coin

    def sample(self, i: int) -> Coin:
        coin: Coin = self._source.at(Coin, "sample", self.start, i)
        return coin

    def noise(self, i: int, vocab_size: int) -> Noise:  # noqa: ARG002
        noise: Noise = self._source.at(Noise, "noise", self.start, i)
        return noise


@contextmanager
def _branching_draws() -> Iterator[None]:
    """Let shipped laws that are asked with a branching coin ask the coin instead.

    That their own ``draw`` and ``race`` follow ``dense`` is proved beside the laws.
    """

    def wrap(original: Callable[[Any, Any], int]) -> Callable[[Any, Any], int]:
        def method(law: Law, coin: Any) -> int:
            if isinstance(coin, Coin):
                probs = law.dense().tolist()
                return coin.pick(probs, list(accumulate(probs)))
            if isinstance(coin, Noise):
                return coin.race(law.dense().tolist())
            return original(law, coin)

        return method

    with (
        patch.object(DenseLaw, "draw", wrap(DenseLaw.draw)),
        patch.object(DenseLaw, "race", wrap(DenseLaw.race)),
        patch.object(SparseLaw, "draw", wrap(SparseLaw.draw)),
        patch.object(SparseLaw, "race", wrap(SparseLaw.race)),
    ):
        yield


def outcomes(
    program: Callable[[Brancher], Result], *, max_runs: int = 1_000_000
) -> list[tuple[Any, Result]]:
    """Return every run of a program with its probability.

    Parameters
    ----------
    program : callable of Brancher
        Runs once, takes its coins from ``BranchingCoins(brancher)``, and returns an
        outcome. Everything but the coins must be the same in every run.
    max_runs : int, default 1000000
        Most branches.

    Returns
    -------
    list of (probability, outcome)
        Fractions or floats, as the program's laws are; they sum to 1, floats up to
        rounding.

    Raises
    ------
    InvariantError
        If there are more branches than ``max_runs``, or a run decided differently
        from another on the same path.
    """
    runs: list[tuple[Any, Result]] = []
    path: list[int] | None = []
    with _branching_draws():
        while path is not None:
            if len(runs) == max_runs:
                raise InvariantError(f"the program has more than {max_runs} branches")
            brancher = Brancher(path)
            outcome = program(brancher)
            if len(brancher.num_branches) != len(brancher.path):
                raise InvariantError(f"a run did not follow its path {path}: state leaked into it")
            runs.append((brancher.probability, outcome))
            path = brancher.next_path()
    return runs


def exact_law(
    program: Callable[[Brancher], Outcome], *, max_runs: int = 1_000_000
) -> dict[Outcome, Any]:
    """Return the law of a program's outcome.

    Parameters
    ----------
    program : callable of Brancher
        As for `outcomes`; its result is hashable.
    max_runs : int, default 1000000
        Most branches.

    Returns
    -------
    dict of outcome to Fraction or float
        Probabilities; they sum to 1, floats up to rounding.

    Raises
    ------
    InvariantError
        See `outcomes`.
    """
    law: defaultdict[Outcome, Any] = defaultdict(int)
    for probability, outcome in outcomes(program, max_runs=max_runs):
        law[outcome] += probability
    return dict(law)
