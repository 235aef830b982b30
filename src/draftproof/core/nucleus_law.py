"""The law of a top-p policy, which looks for its boundary only when it must.

Where the boundary of the nucleus lies depends on the exponential of a whole row and an
order of its heaviest part. Whether a coin lies below a ratio of probabilities seldom needs
it: bounds of the total answer that, for tokens that are inside whatever the total is. All
else asks the law itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from draftproof.core.base_law import Law
from draftproof.core.noise import PositionNoise
from draftproof.core.softmax import Softmax

__all__ = ["NucleusLaw"]

#: Most tokens that are weighed to find out whether one of them is inside.
_MOST = 2048
#: Room for the roundings of sums and of a share.
_ROOM = 2.0**-20


class NucleusLaw(Law):
    """A law cut to its nucleus, the cut put off.

    Parameters
    ----------
    logits : ndarray of float32, shape (V,)
        The row; it must not change while the law is used.
    softmax : Softmax
        Its weights at the policy's temperature.
    mass : float
        Share of the total that the nucleus reaches, in (0, 1).
    cut : callable
        Makes the law itself, of the same weights.
    """

    __slots__ = ("_cut", "_law", "_logits", "_mass", "_softmax")

    def __init__(
        self,
        logits: NDArray[np.float32],
        softmax: Softmax,
        mass: float,
        cut: Callable[[], Law],
    ) -> None:
        self._vocab_size = len(logits)
        self._logits = logits
        self._softmax = softmax
        self._mass = mass
        self._cut = cut
        self._law: Law | None = None

    def __repr__(self) -> str:
        """Return a short description."""
        return f"NucleusLaw(<{self._mass} of {self._vocab_size} tokens>)"

    def _settled(self) -> Law:
        if self._law is None:
            self._law = self._cut()
        return self._law

    @property
    def is_one_hot(self) -> bool:
        """Whether the nucleus is one token; looks for its boundary."""
        return self._settled().is_one_hot

    def _is_inside(self, token: int) -> bool | None:
        """Tell whether the nucleus holds a token; None where only the boundary can tell.

        It does where what stands before the token, in the order of falling weight, does
        not reach the share of the total.
        """
        totals, weight = self._softmax.totals(), self._softmax.about(token)
        if totals is None or not weight > 0.0:
            return None
        low, high = self._mass * totals[0] * (1.0 - _ROOM), self._mass * totals[1] * (1.0 + _ROOM)
        if totals[1] - weight < low:  # even all the others together would not reach it
            return True
        slots = np.flatnonzero(self._logits >= self._logits[token])
        if len(slots) > _MOST:
            return None
        held = self._softmax.at(slots)
        above = float(held.sum(dtype=np.float64))
        if above - weight * (1.0 - 2.0**-10) < low:
            return True
        ties = int(np.count_nonzero(self._logits[slots] == self._logits[token]))
        return False if above - ties * weight * (1.0 + 2.0**-10) >= high else None

    def prob_range(self, token: int) -> tuple[float, float]:
        """Return bounds of a probability; without the boundary where they can do without."""
        if self._law is None and 0 <= token < self._vocab_size:
            inside = self._is_inside(token)
            if inside is False:
                return 0.0, 0.0
            totals = self._softmax.totals()
            if inside and totals is not None:
                # The last token inside is no heavier than this one.
                weight = self._softmax.about(token)
                most = min(self._mass * totals[1] + weight, totals[1])
                least = max(self._mass * totals[0], weight)
                return weight / (most * (1.0 + _ROOM)), min(weight / least * (1.0 + _ROOM), 1.0)
        prob = self.prob(token)
        return prob, prob

    def race(self, noise: NDArray[np.float64] | PositionNoise) -> int:
        """Return the argmin of noise / prob.

        To let all tokens race and ask whether the winner is inside took a tenth longer.
        """
        return self._settled().race(noise)

    def prob(self, token: int) -> float:
        """Return the probability of a token; 0 for an id outside the vocabulary."""
        return self._settled().prob(token)

    def probs_at(self, token_ids: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the probabilities of several ids."""
        return self._settled().probs_at(token_ids)

    def draw(self, u: float) -> int:
        """Return the first token whose cumulative probability exceeds ``u``."""
        return self._settled().draw(u)

    def dense(self) -> NDArray[np.float64]:
        """Return all probabilities, shape (V,)."""
        return self._settled().dense()

    def residual_with_mass(self, other: Law, scale: float = 1) -> tuple[float, Law]:
        """Return the mass and the law of ``(scale * p - q)+``; see `Law.residual_with_mass`."""
        return self._settled().residual_with_mass(other, scale)

    def _excess(self, other: Law, scale: float) -> tuple[float, Law | None]:
        return self._settled()._excess(other, scale)
