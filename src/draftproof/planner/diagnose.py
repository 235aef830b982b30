"""What an acceptance curve hides: requests that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.stats import chi2, norm

from draftproof.planner.counts import AcceptanceCounts

__all__ = ["differing_requests", "rising_rates"]


def rising_rates(counts: AcceptanceCounts, alarm: float = 0.01) -> tuple[str, ...]:
    """Warn of conditional rates that rise beyond chance.

    Parameters
    ----------
    counts : AcceptanceCounts
        Pooled counters.
    alarm : float, default 0.01
        False-alarm rate where all rounds have the same constant rate.

    Returns
    -------
    tuple of str
        One warning, or none.
    """
    pairs = [
        (reached, accepted)
        for reached, accepted in zip(counts.reached, counts.accepted, strict=True)
        if reached >= 20
    ]
    if len(pairs) < 2:
        return ()
    (n_first, a_first), (n_last, a_last) = pairs[0], pairs[-1]
    first, last = a_first / n_first, a_last / n_last
    pooled = (a_first + a_last) / (n_first + n_last)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n_first + 1 / n_last))
    if error == 0 or (last - first) / error < float(norm.ppf(1 - alarm)):
        return ()
    return (
        f"the conditional rate rises from {first:.3f} to {last:.3f}: hard requests drop out, "
        "so later positions are reached by easy ones. This is not an improving drafter",
    )


def differing_requests(
    requests: Sequence[AcceptanceCounts], alarm: float = 0.01
) -> tuple[str, ...]:
    """Warn of requests that differ more at the first position than chance allows.

    Parameters
    ----------
    requests : sequence of AcceptanceCounts
        Counters by request.
    alarm : float, default 0.01
        Nominal false-alarm rate where all requests have the same rate.

    Returns
    -------
    tuple of str
        One warning, or none.
    """
    held = [(r.drafted[0], r.accepted[0]) for r in requests if r.drafted and r.drafted[0] >= 5]
    if len(held) < 5:
        return ()
    total = sum(drafted for drafted, _ in held)
    rate = sum(accepted for _, accepted in held) / total
    if not 0 < rate < 1:
        return ()
    chi = sum((a - rate * n) ** 2 / (n * rate * (1 - rate)) for n, a in held)
    free = len(held) - 1
    if chi < float(chi2.ppf(1 - alarm, free)):
        return ()
    each = sorted(a / n for n, a in held)
    return (
        f"requests differ: first-position rates from {each[0]:.2f} to {each[-1]:.2f}. One kappa "
        "for all gives speed away; the controller chooses per request",
    )
