"""Faults of the random numbers: one coin for two things, wrong keys, wrong ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from draftproof.core.law import Law
from draftproof.core.rng import CoinSource, RoundCoins
from draftproof.core.types import Draft, Verdict
from draftproof.testing.faults.drafter import TableDrafter
from draftproof.testing.faults.fault import EngineFault
from draftproof.testing.faults.parts import EngineParts, LawAt, PiecewiseExecutor
from draftproof.testing.faults.rules import judged_by, token_rule
from draftproof.testing.faults.scenes import SCENES
from draftproof.verify.dispatch import plain_token

__all__ = ["COIN_FAULTS"]

#: Coins of a request, start of the round and offset to the coin that is taken.
_Wire: TypeAlias = Callable[[Any, int, int], Any]


class _RewiredCoins:
    """Coins of a request, some of which are other coins of it."""

    def __init__(self, inner: Any, wires: Mapping[str, _Wire]) -> None:
        self._inner = inner
        self._wires = wires

    def round(self, start: int) -> _RewiredRound:
        return _RewiredRound(self._inner, start, self._wires)


class _RewiredRound:
    def __init__(self, source: Any, start: int, wires: Mapping[str, _Wire]) -> None:
        self._source = source
        self._wires = wires
        self.start = start

    def _coin(self, purpose: str, i: int) -> Any:
        wire = self._wires.get(purpose)
        if wire is not None:
            return wire(self._source, self.start, i)
        return getattr(self._source.round(self.start), purpose)(i)

    def draft(self, i: int) -> Any:
        return self._coin("draft", i)

    def accept(self, i: int) -> Any:
        return self._coin("accept", i)

    def sample(self, i: int) -> Any:
        return self._coin("sample", i)

    def noise(self, i: int, vocab_size: int) -> Any:
        wire = self._wires.get("noise")
        if wire is None:
            return self._source.round(self.start).noise(i, vocab_size)
        return wire(self._source.round(self.start), i, vocab_size)


def _rewired(**wires: _Wire) -> Callable[[EngineParts], EngineParts]:
    def plant(parts: EngineParts) -> EngineParts:
        right = parts.coins
        return replace(parts, coins=lambda seed, stream: _RewiredCoins(right(seed, stream), wires))

    return plant


class _GeneratorCoins:
    """One stateful generator: what a coin is depends on how many were taken before."""

    def __init__(self, rng: np.random.Generator, start: int = 0) -> None:
        self._rng = rng
        self.start = start

    def round(self, start: int) -> _GeneratorCoins:
        return _GeneratorCoins(self._rng, start)

    def draft(self, i: int) -> float:
        del i
        return float(self._rng.random())

    accept = sample = draft


def _generator_per_request(parts: EngineParts) -> EngineParts:
    return replace(
        parts, coins=lambda seed, stream: _GeneratorCoins(np.random.default_rng((seed, stream)))
    )


def _generator_of_the_engine(parts: EngineParts) -> EngineParts:
    rng = np.random.default_rng(1)
    return replace(parts, coins=lambda _seed, _stream: _GeneratorCoins(rng))


class _CountingCoins:
    """Keys coins by the round's number in the process, not by its position."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rounds = 0

    def round(self, start: int) -> Any:
        self._rounds += 1
        return _RewiredRound(
            self._inner, start, {"sample": lambda s, _, i: s.round(self._rounds).sample(i)}
        )


def _numbered_rounds(parts: EngineParts) -> EngineParts:
    right = parts.coins
    return replace(parts, coins=lambda seed, stream: _CountingCoins(right(seed, stream)))


def _naive_draw(side: str, coin_type: type[Any]) -> Callable[[EngineParts], EngineParts]:
    """Draw by searching the cumulative sums, as a short kernel does, clamped to the end."""

    def draw(law: Law, u: float) -> int:
        sums = np.cumsum(law.dense()).astype(coin_type)
        found = int(np.searchsorted(sums, coin_type(u), side=side))  # type: ignore[call-overload]
        return min(found, law.vocab_size - 1)

    def rule(_: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
        for i, token in enumerate(draft.token_ids):
            p, q = law_at(i), draft.laws[i]  # type: ignore[index]
            if not coins.accept(i) * q.prob(token) < p.prob(token):
                return Verdict(i, draw(p.residual(q), coins.sample(i)), "recovered")
        last = len(draft)
        return Verdict(last, draw(law_at(last), coins.sample(last)), "bonus")

    return judged_by(rule)


def _noisy_residual(_: Any, draft: Draft, law_at: LawAt, coins: RoundCoins) -> Verdict:
    """Race the residual over the noise that drew the draft."""
    if not draft.token_ids:
        return Verdict(0, plain_token("standard", law_at(0), coins), "sampled")
    rule = token_rule(residual_draw=lambda law, held, i: law.race(held.noise(i, law.vocab_size)))
    return rule("standard", draft, law_at, coins)


def _racing(parts: EngineParts) -> EngineParts:
    assert isinstance(parts.proposer, TableDrafter)
    racer = TableDrafter(
        parts.proposer.table, pick=lambda law, coins, i: law.race(coins.noise(i, law.vocab_size))
    )
    return replace(parts, proposer=racer, executor=PiecewiseExecutor(chain=_noisy_residual))


_TOKEN, _TWO, _MATCH = SCENES["token rule"], SCENES["two rounds"], SCENES["sample-match"]
_HOLES, _BLOCK = SCENES["holes"], SCENES["block"]

#: Faults of the random numbers.
COIN_FAULTS: tuple[EngineFault, ...] = (
    EngineFault(
        "one coin drafts and accepts", "coins", _TOKEN,
        _rewired(accept=lambda s, start, i: s.round(start).draft(i)),
        "the uniform that drew a draft also judges it",
    ),
    EngineFault(
        "one coin accepts and recovers", "coins", _TOKEN,
        _rewired(sample=lambda s, start, i: s.round(start).accept(i)),
        "the uniform that rejected a draft also draws what replaces it",
    ),
    EngineFault(
        "one coin drafts and recovers", "coins", _TOKEN,
        _rewired(draft=lambda s, start, i: s.round(start).sample(i)),
        "drafts are drawn with the coins of the emitted tokens",
    ),
    EngineFault(
        "draft noise races the residual", "coins", _TOKEN, _racing,
        "the race that drew the draft is run again for the residual",
    ),
    EngineFault(
        "coupled noise races every position", "coins", SCENES["coupled"],
        _rewired(noise=lambda coins, _i, size: coins.noise(0, size)),
        "all positions of a round race over the noise of its first",
    ),
    EngineFault(
        "drafts keyed by position", "coins", _BLOCK,
        _rewired(draft=lambda s, start, i: s.round(start + i).draft(0)),
        "a discarded draft's coin draws again in the next round, which block verification "
        "cannot bear",
    ),
    EngineFault(
        "coins reused by every round", "coins", _TWO,
        _rewired(
            draft=lambda s, _start, i: s.round(0).draft(i),
            accept=lambda s, _start, i: s.round(0).accept(i),
        ),
        "the generator is seeded anew in every round",
    ),
    EngineFault(
        "emitted tokens share a coin", "coins", SCENES["certain drafts"],
        _rewired(sample=lambda s, _start, i: s.round(0).sample(i)),
        "the coin of the emitted token is keyed by its offset in the round alone",
    ),
    EngineFault(
        "accepted at equality", "coins", _HOLES,
        judged_by(token_rule(accepts=lambda u, q, p: u * q <= p)),
        "u = 0 accepts a draft that the target cannot emit", check="ends",
    ),
    EngineFault(
        "coin 0 draws an impossible token", "coins", _HOLES, _naive_draw("left", np.float64),
        "the first cumulative sum that reaches u, not the first that exceeds it", check="ends",
    ),
    EngineFault(
        "float32 coin becomes 1.0", "coins", _HOLES, _naive_draw("right", np.float32),
        "the largest coins round to 1, past the last cumulative sum", check="ends",
    ),
    EngineFault(
        "coins drawn in order", "coins", _MATCH, _generator_per_request,
        "one generator per request: drafts shift the coins of the text", "text", "SE-2",
    ),
    EngineFault(
        "coins keyed by the round's number", "coins", _MATCH, _numbered_rounds,
        "a round's coins depend on how many rounds came before", "text",
    ),
    EngineFault(
        "one generator for the batch", "coins", replace(SCENES["in company"], rule="sample-match"),
        _generator_of_the_engine,
        "a request's coins depend on its neighbours", "text", "SE-1",
    ),
    EngineFault(
        "seed ignored", "coins", _TOKEN,
        lambda parts: replace(parts, coins=lambda _seed, stream: CoinSource(0, stream)),
        "every request gets the same coins", "seeds", "SE-3",
    ),
)  # fmt: skip
