"""The law of an engine from its own logits, under its own order of filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.subjects.draws import Policy
from draftproof.core.history import History
from draftproof.core.policy import target_law
from draftproof.errors import BackendError, ConfigError
from draftproof.evidence import JointLaw, Outcome

__all__ = ["law_of_rows"]

#: Texts that are asked for at once.
_TEXTS_PER_CALL = 64

#: Logits after each of some texts, shape (n, V).
Rows = Callable[[list[list[int]]], NDArray[np.float32]]


def law_of_rows(
    rows: Rows, prompt_ids: Sequence[int], policy: Policy, max_outcomes: int = 4096
) -> JointLaw:
    """Enumerate the law of a continuation from raw logits.

    Parameters
    ----------
    rows : callable of list of list of int
        Returns the raw logits after each text, float32, shape (n, V), in plain passes.
    prompt_ids : sequence of int
        The prompt.
    policy : Policy
        Policy, its order of stages included, and length.
    max_outcomes : int, default 4096
        Most continuations.

    Returns
    -------
    JointLaw
        Products of float64 conditional probabilities.

    Raises
    ------
    ConfigError
        If there are more continuations.
    BackendError
        If a row is not finite.
    """
    prompt = list(prompt_ids)
    history = History(prompt)
    done: dict[Outcome, float] = {}
    level: list[tuple[Outcome, float]] = [((), 1.0)]
    for depth in range(1, policy.horizon + 1):
        below: list[tuple[Outcome, float]] = []
        for begin in range(0, len(level), _TEXTS_PER_CALL):
            chunk = level[begin : begin + _TEXTS_PER_CALL]
            found = rows([[*prompt, *text] for text, _ in chunk])
            if np.isnan(found).any() or not np.isfinite(found).any(axis=1).all():
                raise BackendError(f"a row of token {depth} is not finite")
            for (text, mass), row in zip(chunk, found, strict=True):
                probs = np.asarray(target_law(row, policy.params, history, text).dense())
                possible = np.flatnonzero(probs).tolist()
                below += [((*text, t), mass * float(probs[t])) for t in possible]
            if len(done) + len(below) > max_outcomes:
                raise ConfigError(
                    f"more than {max_outcomes} continuations at token {depth} of "
                    f"{policy.horizon}: expected a smaller top_k (2 to 4) or horizon"
                )
        level = []
        for text, mass in below:
            if depth == policy.horizon or text[-1] in policy.eos_token_ids:
                done[text] = mass
            else:
                level.append((text, mass))
    return JointLaw.from_mapping(done, policy.horizon, policy.eos_token_ids)
