"""Rules that change the law, each with the most it can change it by.

They are reached only through `AllowLossy`. The bounds are total variation distances
between the law of one emitted token and the target's, given the text before it; over
n tokens they compose to at most ``1 - (1 - bound)**n``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from draftproof.core.law import Law
from draftproof.core.rng import RoundCoins
from draftproof.core.types import Draft, Verdict
from draftproof.errors import ConfigError
from draftproof.verify.draft_laws import claimed_prob, draft_law

__all__ = ["AcceptThreshold", "Lenience", "TypicalAcceptance", "joint_bound", "lossy_label"]


def lossy_label(knobs: str, bound: float) -> str:
    """Return the label of a run; the bound is rounded up to four digits."""
    shown = math.ceil(bound * 1e4 - 1e-9) / 1e4
    return f"lossy({knobs}, per-token TV <= {shown:g})"


def joint_bound(per_token: float, num_tokens: int) -> float:
    """Return the most that the law of a text can differ in total variation.

    Parameters
    ----------
    per_token : float
        Bound of each token, in [0, 1].
    num_tokens : int
        Length of the text.

    Returns
    -------
    float
        ``1 - (1 - per_token)**num_tokens``, from coupling token by token.
    """
    return -math.expm1(num_tokens * math.log1p(-per_token)) if per_token < 1 else 1.0


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"{name} {value}: expected a number in (0, 1]")


def _bonus(draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
    last = len(draft)
    return Verdict(last, law_at(last).draw(coins.sample(last)), "bonus")


@dataclass(frozen=True, slots=True)
class Lenience:
    """Accept with probability min(1, p / (lenience q)), as 2211.17192, appendix A.5.

    Parameters
    ----------
    lenience : float
        In (0, 1]; 1 is exact.
    """

    lenience: float

    def __post_init__(self) -> None:
        """Refuse values outside (0, 1]."""
        _check_share("lenience", self.lenience)

    def bound(self, vocab_size: int) -> float:  # noqa: ARG002
        """Return the largest TV of a token over all laws: 1 - lenience."""
        return 1 - self.lenience

    def bound_at(self, target: Law, proposal: Law) -> float:
        """Return the TV of a token for one pair of laws, sum of min(q - p, p (1/l - 1))+."""
        p, q = target.dense(), proposal.dense()
        slack = p * (1 / self.lenience - 1)
        return float(np.minimum(np.maximum(q - p, 0.0), slack).sum())

    def label(self, vocab_size: int) -> str:
        """Return the label of a run."""
        return lossy_label(f"lenience={self.lenience:g}", self.bound(vocab_size))

    def verify(self, draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
        """Run the token rule with lenient ratios; the residual stays (p - q)+.

        Parameters
        ----------
        draft : Draft
            K drafts, at least one.
        law_at : callable of int
            Target law after ``j`` drafts; called for ``0 .. num_accepted`` only.
        coins : RoundCoins
            The coins of this round.

        Returns
        -------
        Verdict
            The number of surviving drafts and the token after them.

        Notes
        -----
        With p itself in place of the residual the bound would not hold.
        """
        for i, token in enumerate(draft.token_ids):
            target = law_at(i)
            proposal = draft_law(draft, i, target.vocab_size)
            bar = self.lenience * claimed_prob(draft, i, proposal)
            if not coins.accept(i) * bar < target.prob(token):
                residual = target.residual(proposal)
                return Verdict(i, residual.draw(coins.sample(i)), "recovered")
        return _bonus(draft, law_at, coins)


@dataclass(frozen=True, slots=True)
class AcceptThreshold:
    """Accept by the target's probability alone, with a discount.

    The chain form of SGLang's ``threshold_acc`` and ``threshold_single``.

    Parameters
    ----------
    acc : float, default 1
        A draft is kept if ``u < p / acc``. In (0, 1].
    single : float, default 1
        A draft with p at least this is kept whatever the coin. In (0, 1].
    """

    acc: float = 1.0
    single: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values outside (0, 1]."""
        _check_share("threshold_acc", self.acc)
        _check_share("threshold_single", self.single)

    def bound(self, vocab_size: int) -> float:  # noqa: ARG002
        """Return the largest TV of a token over all laws."""
        return 1 - min(self.acc, self.single)

    def label(self, vocab_size: int) -> str:
        """Return the label of a run."""
        knobs = f"threshold_acc={self.acc:g}, threshold_single={self.single:g}"
        return lossy_label(knobs, self.bound(vocab_size))

    def verify(self, draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
        """Keep drafts by threshold; after a no, draw from p without the draft.

        Parameters
        ----------
        draft : Draft
            K drafts, at least one. They count as deterministic: their laws are not
            used.
        law_at : callable of int
            Target law after ``j`` drafts; called for ``0 .. num_accepted`` only.
        coins : RoundCoins
            The coins of this round.

        Returns
        -------
        Verdict
            The number of surviving drafts and the token after them.
        """
        fixed = Draft(draft.token_ids, None, draft.proposer)
        for i, token in enumerate(draft.token_ids):
            target = law_at(i)
            prob = target.prob(token)
            if prob >= self.single or coins.accept(i) * self.acc < prob:
                continue
            residual = target.residual(draft_law(fixed, i, target.vocab_size))
            return Verdict(i, residual.draw(coins.sample(i)), "recovered")
        return _bonus(draft, law_at, coins)


@dataclass(frozen=True, slots=True)
class TypicalAcceptance:
    """Keep what the target finds typical, as Medusa does (2401.10774, section 2.3.1).

    Parameters
    ----------
    epsilon : float, default 0.3
        Cap of the bar. In (0, 1].
    alpha : float, default 0.09
        Factor of exp(-H), H the entropy of p in nats. In (0, 1].
    """

    epsilon: float = 0.3
    alpha: float = 0.09

    def __post_init__(self) -> None:
        """Refuse values outside (0, 1]."""
        _check_share("typical epsilon", self.epsilon)
        _check_share("typical alpha", self.alpha)

    def bar(self, target: Law) -> float:
        """Return the least probability that is kept, min(epsilon, alpha exp(-H))."""
        probs = target.dense()
        probs = probs[probs > 0]
        entropy = -float((probs * np.log(probs)).sum())
        return min(self.epsilon, self.alpha * math.exp(-entropy))

    def bound(self, vocab_size: int) -> float:
        """Return the largest TV of a token over all laws: H is at most log V."""
        return 1 - min(self.epsilon, self.alpha / vocab_size)

    def bound_at(self, target: Law) -> float:
        """Return the largest TV of a token over all drafts, for one target law."""
        return 1 - self.bar(target)

    def label(self, vocab_size: int) -> str:
        """Return the label of a run."""
        knobs = f"typical_epsilon={self.epsilon:g}, typical_alpha={self.alpha:g}"
        return lossy_label(knobs, self.bound(vocab_size))

    def verify(self, draft: Draft, law_at: Callable[[int], Law], coins: RoundCoins) -> Verdict:
        """Keep drafts while p is at least the bar; then draw from p.

        Parameters
        ----------
        draft : Draft
            K drafts, at least one; their laws are not used.
        law_at : callable of int
            Target law after ``j`` drafts; called for ``0 .. num_accepted`` only.
        coins : RoundCoins
            Only ``sample`` coins are used.

        Returns
        -------
        Verdict
            The number of surviving drafts and the token after them.
        """
        for i, token in enumerate(draft.token_ids):
            target = law_at(i)
            if not target.prob(token) >= self.bar(target):
                return Verdict(i, target.draw(coins.sample(i)), "recovered")
        return _bonus(draft, law_at, coins)
