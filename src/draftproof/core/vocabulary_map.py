"""Which tokens of a target a drafter of another vocabulary has too, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["VocabularyMap"]


@dataclass(frozen=True, slots=True, eq=False)
class VocabularyMap:
    """The tokens that two vocabularies share.

    Parameters
    ----------
    draft_of : ndarray of int32, shape (V,)
        For each id of the target the drafter's id of the same token, -1 where it has none.
        V is the length of the target's logits row. No drafter id twice.
    """

    draft_of: NDArray[np.int32]
    _target_ids: NDArray[np.intp] = field(init=False, repr=False)
    _draft_ids: NDArray[np.intp] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Keep the shared ids of both sides."""
        shared = np.flatnonzero(self.draft_of >= 0)
        object.__setattr__(self, "_target_ids", shared)
        object.__setattr__(self, "_draft_ids", self.draft_of[shared].astype(np.intp))

    @property
    def vocab_size(self) -> int:
        """Length V of the target's logits row."""
        return len(self.draft_of)

    @property
    def num_shared(self) -> int:
        """How many tokens both have."""
        return len(self._target_ids)

    def scores(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a drafter's logits row in the order of the target's ids.

        Parameters
        ----------
        logits : ndarray of float32, shape (D,)
            The drafter's row.

        Returns
        -------
        ndarray of float32, shape (V,)
            Minus infinity for tokens that the drafter lacks. A softmax over it is the
            drafter's law, given that the token is shared (Timor et al., 2502.05202): the
            mask acts before anything is drawn, so that the law is the
            one that was drawn from.
        """
        scores = np.full(self.vocab_size, -np.inf, dtype=np.float32)
        scores[self._target_ids] = logits[self._draft_ids]
        return scores
