"""What every probability law over the vocabulary can do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from draftproof.core.noise import PositionNoise
from draftproof.errors import InvariantError

__all__ = ["Law"]

#: A factor below this is taken as 0: the mass it could leave is below any coin.
_LEAST_SCALE = 1e-200


class Law(ABC):
    """A probability law over token ids ``0 .. vocab_size - 1``. Immutable."""

    __slots__ = ("_vocab_size",)
    _vocab_size: int

    @property
    def vocab_size(self) -> int:
        """Number of token ids V."""
        return self._vocab_size

    @property
    def is_one_hot(self) -> bool:
        """Whether the law is held as one certain token; its draws need no coin."""
        return False

    @abstractmethod
    def prob(self, token: int) -> float:
        """Return the probability of a token; 0 for an id outside the vocabulary."""

    def prob_range(self, token: int) -> tuple[float, float]:
        """Return bounds of a probability, for less than it costs to know it.

        Parameters
        ----------
        token : int
            A token id; outside the vocabulary both bounds are 0.

        Returns
        -------
        low, high : float
            What `prob` returns lies in between; they are equal where it is known.
            Otherwise ``low`` is above 0. They hold for one more rounding in float64.
        """
        prob = self.prob(token)
        return prob, prob

    @abstractmethod
    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids, all inside the vocabulary."""

    @abstractmethod
    def draw(self, u: float) -> int:
        """Return the token at the point ``u`` of the cumulative law.

        Parameters
        ----------
        u : float
            Uniform in [0, 1). Both ends, and 1.0 itself, give a token of positive
            probability.

        Returns
        -------
        int
            The first token whose cumulative probability exceeds ``u``.
        """

    @abstractmethod
    def race(self, noise: NDArray[np.float64] | PositionNoise) -> int:
        """Return the winner of the exponential race, the argmin of noise / prob.

        Parameters
        ----------
        noise : PositionNoise, or ndarray of float64, shape (V,)
            Unit-rate exponentials. Of a `PositionNoise` only what can win is made.

        Returns
        -------
        int
            A token of positive probability, the lowest id on ties. Over random
            noise it follows this law (2408.07978, section 3).
        """

    def race_beside(
        self,
        noise: NDArray[np.float64] | PositionNoise,
        guess: int,  # noqa: ARG002
    ) -> int:
        """Return what `race` returns, sooner where the guess is right.

        Parameters
        ----------
        noise : PositionNoise, or ndarray of float64, shape (V,)
            Unit-rate exponentials.
        guess : int
            Any token id; it changes no winner.

        Returns
        -------
        int
            See `race`.
        """
        return self.race(noise)

    @abstractmethod
    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, shape (V,), summing to 1."""

    @abstractmethod
    def _excess(self, other: Law, scale: float) -> tuple[float, Law | None]:
        """Return the mass of ``(scale * p - q)+`` and that law, None without mass."""

    def residual_with_mass(self, other: Law, scale: float = 1) -> tuple[float, Law]:
        """Return the mass and the normalised law of ``(scale * p - q)+``.

        Parameters
        ----------
        other : Law
            The law q that is taken away, over the same vocabulary.
        scale : float
            Factor of this law, in [0, 1].

        Returns
        -------
        mass : float
            Sum of the positive part before it is normalised.
        law : Law
            The normalised positive part. This law itself when the mass is 0 or not
            finite: rounding may reject a draft although p equals q, and then the
            target is the only lawful answer.

        Raises
        ------
        InvariantError
            If the vocabularies differ.
        """
        if other.vocab_size != self.vocab_size:
            msg = f"residual of laws over {self.vocab_size} and {other.vocab_size} tokens"
            raise InvariantError(msg)
        if not scale > _LEAST_SCALE:
            return 0, self
        mass, law = self._excess(other, scale)
        if law is None or not 0 < mass < math.inf:
            return 0, self
        return mass, law

    def residual(self, other: Law, scale: float = 1) -> Law:
        """Return the normalised positive part of ``scale * p - q``.

        Parameters
        ----------
        other : Law
            The law q that is taken away.
        scale : float
            Factor of this law, in [0, 1].

        Returns
        -------
        Law
            See `residual_with_mass`, also for the case of no mass.
        """
        return self.residual_with_mass(other, scale)[1]

    def residual_mass(self, other: Law, scale: float = 1) -> float:
        """Return the sum of ``(scale * p - q)+``.

        Parameters
        ----------
        other : Law
            The law q that is taken away.
        scale : float
            Factor of this law, in [0, 1].

        Returns
        -------
        float
            At most ``scale``; with scale 1 it is the total variation distance.
        """
        return self.residual_with_mass(other, scale)[0]
