"""How many tokens a round commits.

The law of the number of accepted drafts is held as its survival curve
``S_i = Pr(at least i drafts survive)``. A round commits ``1 + sum S_i`` tokens.
A constant acceptance rate is the special case ``S_i = alpha^i`` and has its own name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ConfigError

__all__ = [
    "IidRound",
    "SurvivalCurve",
    "conditional_rates",
    "iid_alpha_for_accepted",
    "iid_break_even",
    "iid_round",
    "iid_survival",
    "mixture_posterior",
    "mixture_survival",
]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SurvivalCurve:
    """Probabilities that the first i drafts all survive, for i = 1 .. K.

    Parameters
    ----------
    rates : tuple of float
        ``S_1 >= S_2 >= ... >= S_K``, each in [0, 1].
    model : str
        Where the curve comes from: ``"measured"``, ``"iid"``, ``"mixture"``, ``"laws"``.

    Raises
    ------
    ConfigError
        If a rate is outside [0, 1] or the curve rises.
    """

    rates: tuple[float, ...]
    model: str = "measured"

    def __post_init__(self) -> None:
        """Refuse what is no survival curve."""
        before = 1.0
        for place, rate in enumerate(self.rates, start=1):
            if not 0.0 <= rate <= before + 1e-12:
                raise ConfigError(
                    f"survival rate {rate} at position {place}: expected 0 to {before}"
                )
            before = rate

    def __len__(self) -> int:
        """Return the longest draft the curve knows."""
        return len(self.rates)

    def accepted(self, kappa: int) -> float:
        """Return the expected number of accepted drafts.

        Parameters
        ----------
        kappa : int
            Drafts per round, up to the length of the curve.

        Returns
        -------
        float
            ``E[A] = sum of S_1 .. S_kappa``.

        Raises
        ------
        ConfigError
            If the curve is shorter: nothing is known there.
        """
        if not 0 <= kappa <= len(self.rates):
            raise ConfigError(
                f"kappa {kappa}: acceptance is known up to {len(self.rates)} drafts only"
            )
        return float(sum(self.rates[:kappa]))

    def tokens(self, kappa: int) -> float:
        """Return the expected tokens per round, ``1 + accepted(kappa)``.

        Parameters
        ----------
        kappa : int
            Drafts per round, up to the length of the curve.

        Returns
        -------
        float
            ``E[N]``; the recovered or bonus token is the 1.
        """
        return 1.0 + self.accepted(kappa)

    def conditional(self) -> tuple[float, ...]:
        """Return the rates given that all earlier drafts survived."""
        return conditional_rates(self.rates)


def conditional_rates(rates: Sequence[float]) -> tuple[float, ...]:
    """Turn unconditional rates into conditional ones.

    Parameters
    ----------
    rates : sequence of float
        ``r_i = Pr(the first i survive)``.

    Returns
    -------
    tuple of float
        ``c_i = r_i / r_{i-1}`` with ``r_0 = 1``, and 0 where ``r_{i-1}`` is 0.
    """
    before = (1.0, *rates[:-1])
    return tuple(
        rate / prior if prior > 0 else 0.0 for rate, prior in zip(rates, before, strict=True)
    )


def iid_survival(alpha: float, kappa: int) -> SurvivalCurve:
    """Return the curve of a constant acceptance rate.

    Parameters
    ----------
    alpha : float
        Rate in [0, 1], the same at every position whatever came before. Real rates
        are not: use it where nothing better is known.
    kappa : int
        Length of the curve.

    Returns
    -------
    SurvivalCurve
        ``S_i = alpha^i``.

    Raises
    ------
    ConfigError
        If the rate is out of range.
    """
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"acceptance rate {alpha}: expected a number in [0, 1]")
    return SurvivalCurve(tuple(alpha**i for i in range(1, kappa + 1)), "iid")


@dataclass(frozen=True, slots=True)
class IidRound:
    """One round under a constant acceptance rate.

    Parameters
    ----------
    accepted, tokens, all_accepted : float
        Expected accepted drafts, expected tokens, probability of full acceptance.
    naive_accepted : float
        ``kappa * alpha``: the common error, which counts positions that are never
        reached. Kept to be shown beside the truth.
    """

    accepted: float
    tokens: float
    all_accepted: float
    naive_accepted: float


def iid_round(alpha: float, kappa: int) -> IidRound:
    """Return what a round yields under a constant acceptance rate.

    Parameters
    ----------
    alpha : float
        Rate in [0, 1].
    kappa : int
        Drafts.

    Returns
    -------
    IidRound
        ``E[N] = (1 - alpha^(kappa+1)) / (1 - alpha)`` (2211.17192, equation 1).
    """
    curve = iid_survival(alpha, kappa)
    return IidRound(curve.accepted(kappa), curve.tokens(kappa), alpha**kappa, kappa * alpha)


def iid_alpha_for_accepted(accepted: float, kappa: int) -> float:
    """Return the constant rate whose expected accepted drafts are as given.

    Parameters
    ----------
    accepted : float
        Accepted drafts per round, in [0, kappa].
    kappa : int
        Drafts per round, at least 1.

    Returns
    -------
    float
        The root of ``sum of alpha^i = accepted``, by bisection.

    Raises
    ------
    ConfigError
        If no rate in [0, 1] gives that number.
    """
    if kappa < 1 or not 0.0 <= accepted <= kappa:
        raise ConfigError(f"{accepted} accepted of {kappa} drafts: expected 0 to {kappa}")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if iid_survival(middle, kappa).accepted(kappa) < accepted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def iid_break_even(tokens_needed: float, kappa: int) -> float | None:
    """Return the constant rate at which a round commits a given number of tokens.

    Parameters
    ----------
    tokens_needed : float
        Round cost over plain step cost: the break-even tokens per round.
    kappa : int
        Drafts per round.

    Returns
    -------
    float or None
        The rate; None where even full acceptance commits too few tokens.
    """
    if tokens_needed <= 1.0:
        return 0.0
    if kappa < 1 or tokens_needed > kappa + 1:
        return None
    return iid_alpha_for_accepted(tokens_needed - 1.0, kappa)


def mixture_survival(
    alphas: Sequence[float], weights: Sequence[float], kappa: int
) -> SurvivalCurve:
    """Return the curve of a mixture of requests, each with a constant rate.

    Parameters
    ----------
    alphas : sequence of float
        The rate of each kind of request.
    weights : sequence of float
        Shares of the kinds; they must add up to 1.
    kappa : int
        Length of the curve.

    Returns
    -------
    SurvivalCurve
        ``S_i = sum of w_j alpha_j^i``. Its conditional rates rise with i although no
        request gets easier: the hard ones have dropped out.

    Raises
    ------
    ConfigError
        If the shares do not add up to 1.
    """
    if len(alphas) != len(weights) or abs(sum(weights) - 1.0) > 1e-9:
        raise ConfigError(f"weights {list(weights)}: expected one per rate, summing to 1")
    curves = [iid_survival(alpha, kappa).rates for alpha in alphas]
    mixed = np.asarray(weights, dtype=np.float64) @ np.asarray(curves).reshape(len(alphas), kappa)
    return SurvivalCurve(tuple(float(rate) for rate in mixed), "mixture")


def mixture_posterior(
    alphas: Sequence[float], weights: Sequence[float], survived: int
) -> tuple[float, ...]:
    """Return the shares of the kinds among rounds whose first drafts survived.

    Parameters
    ----------
    alphas, weights : sequence of float
        Rates and prior shares of the kinds.
    survived : int
        Drafts that survived; 0 gives the prior.

    Returns
    -------
    tuple of float
        By Bayes' rule; NaN where no kind survives that long.
    """
    joint = [weight * alpha**survived for alpha, weight in zip(alphas, weights, strict=True)]
    total = sum(joint)
    return tuple(share / total if total > 0 else float("nan") for share in joint)
