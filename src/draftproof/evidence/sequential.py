"""Monitoring: an alarm that may be looked at after every draw.

The evidence against a law is a mixture of likelihood ratios: one half over Dirichlet
laws around the reference at several distances (2011.03567), one half over the laws of
known faults. Where the reference holds, its mean is 1 at every time, and by Ville's
inequality it ever reaches 1/alpha with a probability of at most alpha, however often
and whenever somebody looks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from draftproof.errors import ConfigError, InvariantError
from draftproof.evidence.fixed_budget import check_alpha
from draftproof.evidence.joint_law import Counts, JointLaw

__all__ = ["DISTANCES", "SequentialAudit", "combine_log_e", "log_e_value"]

#: Biases that the Dirichlet half is spread over, as total variation distances.
DISTANCES = (0.003, 0.01, 0.03, 0.1, 0.3)


def log_e_value(
    law: JointLaw,
    counts: Counts,
    alternatives: NDArray[np.float64] | None = None,
    distances: Sequence[float] = DISTANCES,
) -> float:
    """Return the logarithm of the evidence against a law.

    Parameters
    ----------
    law : JointLaw
        The reference.
    counts : Counts
        All draws so far.
    alternatives : ndarray of float64, shape (M, K), optional
        Laws of known faults over the outcomes of ``law``; a row may sum to less than
        1 where a fault emits impossible outcomes.
    distances : sequence of float
        Sizes of the unknown biases.

    Returns
    -------
    float
        ``inf`` after an impossible outcome; 0 without draws. A function of the counts
        alone, so workers may be merged in any order.

    Notes
    -----
    A Dirichlet of concentration ``(K - 1) / (4 e**2)`` around p has laws at a total
    variation of about ``e``.
    """
    if counts.num_impossible:
        return math.inf
    cells, probs = counts.cells, law.probs
    n = counts.num_possible
    if n == 0 or len(law) == 1:
        return 0.0
    seen = cells > 0
    null = float(cells[seen] @ np.log(probs[seen]))
    unknown = []
    for distance in distances:
        kappa = (len(law) - 1) / (4 * distance**2)
        base = kappa * probs[seen]
        value = float((gammaln(base + cells[seen]) - gammaln(base)).sum())
        unknown.append(value + gammaln(kappa) - gammaln(kappa + n) - null)
    mixed = float(logsumexp(unknown)) - math.log(len(unknown))
    if alternatives is None or not len(alternatives):
        return mixed
    with np.errstate(divide="ignore"):
        known = np.log(alternatives[:, seen]) @ cells[seen] - null
    return float(np.logaddexp(mixed, logsumexp(known) - math.log(len(known)))) - math.log(2)


def combine_log_e(values: Sequence[float]) -> float:
    """Return the logarithm of the joint evidence of independent prompts.

    Parameters
    ----------
    values : sequence of float
        Logarithms of one e-value each, ``inf`` allowed.

    Returns
    -------
    float
        Of the average of their product, for a bias that all share, and their mean,
        for one bad prompt.
    """
    if not values:
        raise ConfigError("no e-values: expected at least one")
    if math.inf in values:
        return math.inf
    product = math.fsum(values)
    mean = float(logsumexp(values)) - math.log(len(values))
    return float(np.logaddexp(product, mean)) - math.log(2)


class SequentialAudit:
    """Counts of several prompts, and the highest evidence they ever gave.

    Parameters
    ----------
    laws : sequence of JointLaw
        The reference of each prompt.
    alpha : float, default 0.001
        False-alarm rate over the whole life of the audit.
    alternatives : sequence of ndarray, optional
        Laws of known faults for each prompt, shape (M, K) each.
    """

    def __init__(
        self,
        laws: Sequence[JointLaw],
        alpha: float = 1e-3,
        alternatives: Sequence[NDArray[np.float64] | None] | None = None,
    ) -> None:
        check_alpha(alpha)
        if not laws:
            raise ConfigError("no reference law: expected at least one prompt")
        self.alpha = alpha
        self._laws = tuple(laws)
        self._alternatives = tuple(alternatives or [None] * len(laws))
        if len(self._alternatives) != len(laws):
            msg = f"{len(laws)} prompts with the faults of {len(self._alternatives)}"
            raise InvariantError(msg)
        self._counts = [Counts(np.zeros(len(law), dtype=np.int64)) for law in laws]
        self._values = [0.0] * len(laws)
        #: Logarithm of the highest evidence so far.
        self.log_peak = 0.0

    @property
    def counts(self) -> tuple[Counts, ...]:
        """Draws of each prompt so far."""
        return tuple(self._counts)

    @property
    def num_draws(self) -> int:
        """Draws so far."""
        return sum(counts.num_draws for counts in self._counts)

    @property
    def log_e(self) -> float:
        """Logarithm of the evidence now."""
        return combine_log_e(self._values)

    @property
    def p_value(self) -> float:
        """Anytime-valid p-value: the inverse of the highest evidence."""
        return math.exp(-self.log_peak)

    @property
    def is_alarmed(self) -> bool:
        """Whether the evidence ever reached 1/alpha."""
        return self.log_peak >= -math.log(self.alpha)

    def add(self, prompt: int, counts: Counts) -> bool:
        """Add new draws of a prompt.

        Parameters
        ----------
        prompt : int
            Index of the prompt.
        counts : Counts
            The draws that are new.

        Returns
        -------
        bool
            Whether the alarm is on; it stays on.
        """
        held = self._counts[prompt] = self._counts[prompt].merge(counts)
        self._values[prompt] = log_e_value(self._laws[prompt], held, self._alternatives[prompt])
        self.log_peak = max(self.log_peak, self.log_e)
        return self.is_alarmed
