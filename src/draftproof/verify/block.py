"""Block verification: all drafts of a round are judged together.

Sun et al., 2403.10444, algorithm 2. Never fewer accepted drafts in expectation
than token-by-token verification, and the same law.
"""

from __future__ import annotations

from collections.abc import Callable

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict
from draftproof.verify.draft_laws import claimed_prob, draft_law
from draftproof.verify.no_law import NoLawError

__all__ = ["verify_block"]


def verify_block(draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
    """Keep the longest prefix whose own coin says yes.

    Parameters
    ----------
    draft : Draft
        K drafts, at least one.
    law_at : callable of int
        Target law after ``j`` drafts; not called past the first draft that the
        target cannot emit, and for ``K`` only if all drafts survive.
    coins : RoundCoins
        ``accept(i)`` decides the prefix that ends with draft ``i``, ``sample(i)``
        draws what follows.

    Returns
    -------
    Verdict
        ``num_accepted`` is the last success, not the first failure.

    Notes
    -----
    With P_0 = 1 and P_i = min(1, P_{i-1} p(x_i) / q(x_i)), prefix i survives if its
    coin is below h_i, where h_K = P_K and otherwise

        R_i = sum_x (P_i p(x | x^i) - q(x | x^i))+,   h_i = R_i / (R_i + 1 - P_i),

    and the token after prefix i < K comes from the law of that excess. Prefixes are
    asked from the longest down, so the excess is summed only where it decides:
    h_i = 1 where P_i = 1 (also for 0 / 0), and h_i is at most P_i as R_i is. Bounds of
    P_i come first, and decide most coins; they never decide otherwise than P_i would.

    Whether prefix i survives depends on drafts that come after it. The drafts that
    were thrown away are therefore not independent of the outcome, and their coins
    must not be used again: ``draft`` and ``accept`` coins are keyed by the round,
    see `draftproof.core.rng`.

    Where the target has no law after a prefix, that prefix is the last: whether there is
    one depends on the prefix alone, so this is a shorter draft like any other.
    """
    prefixes = _Prefixes(draft)
    last = len(draft)
    for i in range(last):
        try:
            target = law_at(i)
        except NoLawError:
            if i == 0:
                raise
            last = i
            break
        if not prefixes.extend(target):
            break
    for i in range(prefixes.longest, 0, -1):
        low, high = prefixes.ranges[i]
        if low < 1:
            coin = coins.accept(i - 1)
            if not coin < high:
                continue
            if not (i == last and coin < low):
                weight = prefixes.weight(i)
                if weight < 1:
                    if not coin < weight:
                        continue
                    if i < last:
                        mass, residual = prefixes.excess(i, weight)
                        if not coin < mass / (mass + (1 - weight)):
                            continue
                        return Verdict(i, residual.draw(coins.sample(i)), "recovered")
        if i == last:
            return Verdict(last, law_at(last).draw(coins.sample(last)), "bonus")
        return Verdict(i, prefixes.excess(i)[1].draw(coins.sample(i)), "recovered")
    return Verdict(0, prefixes.excess(0)[1].draw(coins.sample(0)), "recovered")


class _Prefixes:
    """The laws after every prefix of a draft that may survive, and the weights P_i.

    ``ranges[i]`` bounds P_i; both ends are P_i itself where it is known, and it is known
    to be 1 where the lower end is.
    """

    __slots__ = ("_draft", "_probs", "_proposals", "_targets", "ranges")

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._targets: list[Law] = []
        self._proposals: list[Law] = []
        self._probs: list[float] = []  # of the drafts under their own laws
        self.ranges: list[tuple[float, float]] = [(1, 1)]

    @property
    def longest(self) -> int:
        """Number of drafts of the longest prefix that the target can emit."""
        return len(self.ranges) - 1

    def extend(self, target: Law) -> bool:
        """Take in the law after the longest prefix; tell whether a longer one may survive."""
        i = self.longest
        proposal = draft_law(self._draft, i, target.vocab_size)
        prob = claimed_prob(self._draft, i, proposal)
        self._targets.append(target)
        self._proposals.append(proposal)
        self._probs.append(prob)
        low, high = target.prob_range(self._draft.token_ids[i])
        before = self.ranges[i]
        low, high = min(1, before[0] * (low / prob)), min(1, before[1] * (high / prob))
        self.ranges.append((low, high))
        if not low > 0 and low < high:  # too small for bounds
            high = self.weight(i + 1)
        if not high > 0:
            self.ranges.pop()
            return False
        return True

    def weight(self, i: int) -> float:
        """Return P_i; asks only the laws since the last weight that is known."""
        known = i
        while self.ranges[known][0] < self.ranges[known][1]:
            known -= 1
        weight = self.ranges[known][0]
        for j in range(known, i):
            ratio = self._targets[j].prob(self._draft.token_ids[j]) / self._probs[j]
            weight = min(1, weight * ratio)
            self.ranges[j + 1] = (weight, weight)
        return weight

    def excess(self, i: int, weight: float = 1) -> tuple[float, Law]:
        """Return the mass and the law of what the target has above the draft after prefix i."""
        return self._targets[i].residual_with_mass(self._proposals[i], weight)
