"""The label that says in which sense a run is exact."""

from __future__ import annotations

from draftproof.core.policy import SamplingParams
from draftproof.core.rng import seed_beside
from draftproof.engine.request import GenerateRequest
from draftproof.verify import AllowLossy

__all__ = ["exactness_label", "rule_name", "seed_of_coins"]

#: Rules whose output is a function of the seed and the target's law alone.
SEED_IDENTICAL_RULES = frozenset({"coupled", "sample-match"})


def exactness_label(
    params: SamplingParams,
    rule: str | AllowLossy | None,
    vocab_size: int,
    *,
    deterministic: bool = False,
) -> str:
    """Return the exactness of a request.

    Parameters
    ----------
    params : SamplingParams
        Its policy.
    rule : str or AllowLossy, optional
        Its verification rule; None stands for the best exact rule of each draft.
    vocab_size : int
        Number of token ids of the target.
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
        noise is none. A rule that changes the law has a label of its own, which names
        its knobs and the most it changes the law of a token.
    """
    if isinstance(rule, AllowLossy):
        return rule.label(vocab_size)
    bits = ", to the bit" if deterministic else ""
    if params.is_greedy:
        return f"greedy{bits}"
    return f"seed-identical{bits}" if rule in SEED_IDENTICAL_RULES else "exact-in-law"


def rule_name(rule: str | AllowLossy | None) -> str:
    """Return the name of a rule; ``"none"`` where none was asked for."""
    if rule is None:
        return "none"
    return rule if isinstance(rule, str) else rule.name


def seed_of_coins(request: GenerateRequest, seed: int, kappa: int) -> int:
    """Return the seed of a request's coins.

    What the caller predicts may be what this very seed wrote before. Rules that divide
    by the draft's law need coins that the draft does not know; the seed-identical ones
    emit the target's own draw whatever is drafted, and keep theirs.

    Parameters
    ----------
    request : GenerateRequest
        The request.
    seed : int
        Its seed.
    kappa : int
        Most drafts per round.

    Returns
    -------
    int
        The same, or one that is independent of it.
    """
    if not (kappa and request.prediction) or request.rule in SEED_IDENTICAL_RULES:
        return seed
    return seed_beside(seed, request.prediction)
