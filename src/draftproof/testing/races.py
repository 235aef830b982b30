"""How two exponential races over the same noise end together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["joint_race"]


def joint_race(q: Sequence[Any], p: Sequence[Any], x: int, y: int) -> Any:
    """Return the probability that x wins the race of q and y that of p.

    Parameters
    ----------
    q, p : sequence of Fraction or float, length V
        Two laws.
    x, y : int
        The winners, x = argmin E / q and y = argmin E / p over one noise E of
        independent unit-rate exponentials.

    Returns
    -------
    Fraction or float
        The probability, exact for fractions.

    Notes
    -----
    For x = y it is 1 / (sum over z of max(q_z / q_x, p_z / p_x)) (2408.07978). Else
    let s = E_x / q_x, t = E_y / p_y and r = t / s. All other z lie behind both with
    density exp(-s sum of max(q_z, r p_z)), so that r has the density

        q_x p_y / (q_x + r p_y + sum of max(q_z, r p_z))^2

    between q_y / p_y and q_x / p_x: rational between the kinks at q_z / p_z.
    """
    if not (q[x] > 0 and p[y] > 0):
        return 0
    others = [z for z in range(len(p)) if z not in (x, y)]
    if x == y:
        return 1 / (1 + sum(max(q[z] / q[x], p[z] / p[x]) for z in others))
    low = q[y] / p[y]
    high = q[x] / p[x] if p[x] > 0 else None
    if high is not None and not low < high:
        return 0
    kinks = {q[z] / p[z] for z in others if p[z] > 0}
    inner = sorted(r for r in kinks if r > low and (high is None or r < high))
    total: Any = 0
    for a, b in zip([low, *inner], [*inner, high], strict=True):
        base, slope = q[x], p[y]
        for z in others:
            if p[z] > 0 and q[z] / p[z] <= a:
                slope = slope + p[z]
            else:
                base = base + q[z]
        upper = 0 if b is None else 1 / (slope * (base + slope * b))
        total += q[x] * p[y] * (1 / (slope * (base + slope * a)) - upper)
    return total
