"""Coins that are integrated exactly, and laws held in fractions.

The shipped rules take coins as arguments and compare them: ``coin * q < p``,
``coin < h``, ``law.draw(coin)``. Here a coin is an interval that is still open. Each
comparison splits the interval; a `Chooser` follows one part and remembers the
probability of doing so. Running the shipped code once per path therefore visits
every outcome with its exact probability: what is enumerated is the code that
ships, not a second description of it. A coin that is used twice keeps its
interval, so that reused coins are integrated exactly as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np

from draftproof.core.base_law import Law

T = TypeVar("T")


@dataclass
class Chooser:
    """One path through a tree of choices: a script of ranks, extended by first options."""

    script: list[int]
    weight: Any = Fraction(1)
    sizes: list[int] = field(default_factory=list)

    def choose(self, probs: Sequence[Any]) -> int:
        options = [i for i, prob in enumerate(probs) if prob > 0]
        depth = len(self.sizes)
        if depth == len(self.script):
            self.script.append(0)
        self.sizes.append(len(options))
        picked = options[self.script[depth]]
        self.weight = self.weight * probs[picked]
        return picked


def outcomes(run: Callable[[Chooser], T]) -> Iterator[tuple[Any, T]]:
    """Run a function once per path; yield the probability and result of each."""
    script: list[int] = []
    while True:
        chooser = Chooser(script)
        result = run(chooser)
        yield chooser.weight, result
        while script and script[-1] + 1 == chooser.sizes[len(script) - 1]:
            script.pop()
        if not script:
            return
        script[-1] += 1


class Coin:
    """A uniform on [0, 1) of which only an interval is known."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.low: Any = Fraction(0)
        self.high: Any = Fraction(1)

    def cell(self, edges: Sequence[Any], widths: Sequence[Any] | None = None) -> int:
        """Return i with edges[i - 1] <= u < edges[i]; the last edge counts as 1.

        ``widths``, the known differences of the edges, only save time.
        """
        if widths is not None and self.low == 0 and self.high == 1:
            picked = self.chooser.choose(widths)
            self.low = edges[picked - 1] if picked else self.low
            self.high = edges[picked]
            return picked
        bounds = [0, *edges[:-1], 1]
        clipped = [min(max(bound, self.low), self.high) for bound in bounds]
        widths = [b - a for a, b in pairwise(clipped)]
        picked = self.chooser.choose([w / (self.high - self.low) for w in widths])
        self.low, self.high = clipped[picked], clipped[picked + 1]
        return picked

    def __lt__(self, bound: Any) -> bool:
        if bound >= self.high:
            return True
        if bound <= self.low:
            return False
        return self.cell([bound, 1]) == 0

    __le__ = __lt__  # the end of an interval has no measure

    def __mul__(self, factor: Any) -> ScaledCoin:
        return ScaledCoin(self, factor)

    __rmul__ = __mul__


@dataclass
class ScaledCoin:
    coin: Coin
    factor: Any

    def __lt__(self, bound: Any) -> bool:
        if isinstance(bound, Fraction):
            return self.coin < bound / Fraction(self.factor)
        return self.coin < bound / self.factor

    __le__ = __lt__


class Noise:
    """Exponential noise of one position: at most two races, jointly exact."""

    def __init__(self, chooser: Chooser) -> None:
        self.chooser = chooser
        self.first: tuple[Sequence[Any], int] | None = None

    def race(self, probs: Sequence[Any]) -> int:
        if self.first is None:
            winner = self.chooser.choose(probs)
            self.first = (probs, winner)
            return winner
        held, first_winner = self.first
        joint = [race_joint(held, probs, first_winner, y) for y in range(len(probs))]
        return self.chooser.choose([value / held[first_winner] for value in joint])


def race_joint(q: Sequence[Any], p: Sequence[Any], x: int, y: int) -> Any:
    """Return Pr[argmin E/q = x and argmin E/p = y] over shared exponentials E.

    With s = E_x / q_x, t = E_y / p_y and r = t / s the density in r is
    q_x p_y / (q_x + r p_y + sum of max(q_z, r p_z))^2, rational between kinks.
    """
    others = [z for z in range(len(p)) if z not in (x, y)]
    if q[x] == 0 or p[y] == 0:
        return Fraction(0)
    if x == y:
        rest = sum((max(q[z] / q[x], p[z] / p[x]) for z in others), Fraction(0))
        return 1 / (1 + rest)
    low = q[y] / p[y]
    high = q[x] / p[x] if p[x] else None
    kinks = {q[z] / p[z] for z in others if p[z]}
    inner = sorted(r for r in kinks if r > low and (high is None or r < high))
    if high is not None and low >= high:
        return Fraction(0)
    total = Fraction(0)
    for a, b in zip([low, *inner], [*inner, high], strict=True):
        steep = [z for z in others if p[z] and q[z] / p[z] <= a]
        base = q[x] + sum((q[z] for z in others if z not in steep), Fraction(0))
        slope = p[y] + sum((p[z] for z in steep), Fraction(0))
        upper = 0 if b is None else 1 / (slope * (base + slope * b))
        total += q[x] * p[y] * (1 / (slope * (base + slope * a)) - upper)
    return total


class SymbolicCoins:
    """Stands in for `RoundCoins`; ``key`` says which places share a coin."""

    def __init__(
        self,
        chooser: Chooser,
        start: int = 0,
        store: dict[Any, Any] | None = None,
        key: Callable[[str, int, int], Any] = lambda purpose, start, i: (purpose, start, i),
    ) -> None:
        self.chooser = chooser
        self.start = start
        self.store = {} if store is None else store
        self.key = key

    def _at(self, purpose: str, i: int, kind: type) -> Any:
        place = self.key(purpose, self.start, i)
        if place not in self.store:
            self.store[place] = kind(self.chooser)
        return self.store[place]

    def draft(self, i: int) -> Coin:
        return self._at("draft", i, Coin)

    def accept(self, i: int) -> Coin:
        return self._at("accept", i, Coin)

    def sample(self, i: int) -> Coin:
        return self._at("sample", i, Coin)

    def noise(self, i: int, vocab_size: int) -> Noise:
        return self._at("noise", i, Noise)


class FractionLaw(Law):
    """A law in exact fractions, drawn from with symbolic coins."""

    __slots__ = ("edges", "probs")

    def __init__(self, weights: Sequence[Any]) -> None:
        total = sum(weights, Fraction(0))
        self.probs = tuple(Fraction(w) / total for w in weights)
        self.edges = tuple(accumulate(self.probs))
        self._vocab_size = len(self.probs)

    def prob(self, token: int) -> Any:
        return self.probs[token]

    def probs_at(self, token_ids: Any) -> Any:
        return [self.probs[t] for t in token_ids]

    def draw(self, u: Any) -> int:
        return u.cell(self.edges, self.probs)

    def race(self, noise: Any) -> int:
        return noise.race(self.probs)

    def dense(self) -> Any:
        return np.array([float(p) for p in self.probs])

    def argmax(self) -> int:
        return max(range(len(self.probs)), key=lambda t: (self.probs[t], -t))

    def _excess(self, other: Law, scale: Any) -> tuple[Any, Law | None]:
        pairs = ((p, Fraction(other.prob(t))) for t, p in enumerate(self.probs))
        excess = [max(scale * p - q, Fraction(0)) for p, q in pairs]
        mass = sum(excess, Fraction(0))
        return mass, (FractionLaw(excess) if mass > 0 else None)


class TracedLaw:
    """A shipped law under symbolic coins: its own scores and residuals, exact draws.

    That ``draw`` of the shipped law follows ``dense`` is proved beside the law.
    """

    def __init__(self, law: Law) -> None:
        self.law = law
        self.probs = law.dense().tolist()
        self.edges = np.cumsum(self.probs).tolist()
        self.vocab_size = law.vocab_size
        self.is_one_hot = law.is_one_hot

    def prob(self, token: int) -> float:
        return self.law.prob(token)

    def draw(self, u: Coin) -> int:
        if self.is_one_hot:
            return self.law.draw(0.0)
        return u.cell(self.edges, self.probs)

    def residual_with_mass(self, other: Any, scale: float = 1) -> tuple[float, TracedLaw]:
        plain = other.law if isinstance(other, TracedLaw) else other
        mass, law = self.law.residual_with_mass(plain, scale)
        return mass, TracedLaw(law)

    def residual(self, other: Any, scale: float = 1) -> TracedLaw:
        return self.residual_with_mass(other, scale)[1]
