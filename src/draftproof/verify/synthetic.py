"""Acceptance by a schedule, for load tests. The text means nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict
from draftproof.errors import ConfigError

__all__ = ["SyntheticAcceptance"]


@dataclass(frozen=True, slots=True)
class SyntheticAcceptance:
    """Keep draft i with a given probability, whatever drafter and target say.

    Parameters
    ----------
    rates : tuple of float
        ``rates[i]`` is the *unconditional* probability that draft ``i`` is kept, so
        that their sum is the mean number of kept drafts. In [0, 1], never rising;
        drafts past the end are not kept.

    Raises
    ------
    ConfigError
        If a rate is outside [0, 1], or above the rate before it: a draft cannot be
        kept more often than the one it follows.
    """

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        """Refuse rates that no schedule has."""
        before: float = 1
        for i, rate in enumerate(self.rates):
            if not 0 <= rate <= 1:
                raise ConfigError(f"synthetic rate {i} is {rate}: expected a number in [0, 1]")
            if rate > before:
                msg = f"synthetic rate {i} is {rate}: expected at most {before}, the one before"
                raise ConfigError(msg)
            before = rate
        if not self.rates:
            raise ConfigError("synthetic rates (): expected at least one")

    def conditional(self, i: int) -> float:
        """Return the probability that draft ``i`` is kept, given the one before it."""
        if i >= len(self.rates):
            return 0
        before = self.rates[i - 1] if i else 1
        return self.rates[i] / before if before > 0 else 0

    def label(self, vocab_size: int) -> str:  # noqa: ARG002
        """Return the label of a run."""
        return f"synthetic(acceptance={','.join(f'{rate:g}' for rate in self.rates)})"

    def bound(self, vocab_size: int) -> float:  # noqa: ARG002
        """Return 1: nothing is promised."""
        return 1.0

    def verify(self, draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
        """Keep drafts by the schedule; the token after them is the target's.

        Parameters
        ----------
        draft : Draft
            K drafts, at least one.
        law_at : callable of int
            Target law after ``j`` drafts; called once.
        coins : RoundCoins
            The coins of this round.

        Returns
        -------
        Verdict
            The number of kept drafts and the token after them.
        """
        last = len(draft)
        kept = 0
        while kept < last and coins.accept(kept) < self.conditional(kept):
            kept += 1
        token = law_at(kept).draw(coins.sample(kept))
        return Verdict(kept, token, "bonus" if kept == last else "recovered")
