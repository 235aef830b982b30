"""Where an executor leaves what it learned about the drafts it judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from draftproof.core.law import Law
from draftproof.core.tree import TreeDraft, TreeVerdict
from draftproof.core.types import Draft

__all__ = ["Reached"]


@dataclass(slots=True)
class Reached:
    """The target's probabilities at the places that a rule got to.

    A row that shall be traced carries one, empty; whoever judges the row fills it.
    An executor that does not leaves it empty, and the trace says that nothing is known.

    Parameters
    ----------
    probs : dict of int to float
        Probability of each draft whose place was reached, by its number.
    token_prob : float
        Probability of the token after the kept path, before anything was taken from the
        law; NaN where it is not known.
    """

    probs: dict[int, float] = field(default_factory=dict)
    token_prob: float = math.nan

    def read(self, draft: Draft | TreeDraft, verdict: TreeVerdict, laws: Mapping[int, Law]) -> None:
        """Ask the laws that decided.

        Parameters
        ----------
        draft : Draft or TreeDraft
            The drafts.
        verdict : TreeVerdict
            What was decided.
        laws : mapping of int to Law
            The target's law after each draft that was reached, -1 for the committed text.
        """
        tokens = draft.token_ids
        if isinstance(draft, TreeDraft):
            children = draft.children()
            for node, law in laws.items():
                below = children[node + 1]
                if below:
                    ids = np.array([tokens[child] for child in below], dtype=np.intp)
                    self.probs.update(zip(below, law.probs_at(ids).tolist(), strict=True))
        else:
            for node, law in laws.items():
                if node + 1 < len(tokens):
                    self.probs[node + 1] = law.prob(tokens[node + 1])
        last = laws.get(verdict.path[-1] if verdict.path else -1)
        if last is not None:
            self.token_prob = last.prob(verdict.token_id)
