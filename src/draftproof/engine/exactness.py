"""The label that says in which sense a run is exact."""

from __future__ import annotations

from draftproof.core.policy import SamplingParams

__all__ = ["exactness_label"]

#: Rules whose output is a function of the seed and the target's law alone.
SEED_IDENTICAL_RULES = frozenset({"coupled", "sample-match"})


def exactness_label(
    params: SamplingParams, rule: str | None, *, deterministic: bool = False
) -> str:
    """Return the exactness of a request.

    Parameters
    ----------
    params : SamplingParams
        Its policy.
    rule : str, optional
        Its verification rule; None stands for the best exact rule of each draft.

    deterministic : bool, default False
        Whether the engine keeps to passes for which the target's kernels round alike.

    Returns
    -------
    str
        ``"greedy"``: equal to plain greedy decoding, or forked at a gap below the
        numeric noise of the model's kernels. ``"seed-identical"``: the text is a
        function of the seed, with or without drafts, up to the same noise.
        ``"exact-in-law"``: every token has the target's conditional distribution.
        The first two end with ``", to the bit"`` in the deterministic mode, where that
        noise is none.
    """
    bits = ", to the bit" if deterministic else ""
    if params.is_greedy:
        return f"greedy{bits}"
    return f"seed-identical{bits}" if rule in SEED_IDENTICAL_RULES else "exact-in-law"
