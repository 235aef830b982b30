"""Which tokens a request has seen, counted for the penalties."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["History"]


class History:
    """Which tokens a request holds, and how often its output repeated them.

    Parameters
    ----------
    prompt_ids : sequence of int
        Tokens of the prompt.

    Notes
    -----
    Only committed tokens are appended. Drafts reach `target_law` as ``extra``, so
    a rejected draft leaves no trace here.
    """

    __slots__ = ("_counts", "_ids", "_slots", "num_generated")

    def __init__(self, prompt_ids: Sequence[int] = ()) -> None:
        self.num_generated = 0
        self._slots: dict[int, int] = {}
        for token in prompt_ids:
            self._slots.setdefault(token, len(self._slots))
        room = max(64, 2 * len(self._slots))
        self._ids = np.zeros(room, dtype=np.intp)
        self._counts = np.zeros(room, dtype=np.int64)
        self._ids[: len(self._slots)] = list(self._slots)

    def append(self, token: int) -> None:
        """Add one committed token of the output."""
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[slot] = token
        self._counts[slot] += 1
        self.num_generated += 1

    def seen(self, extra: Sequence[int] = ()) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the tokens seen so far and their counts in the output.

        Parameters
        ----------
        extra : sequence of int
            Drafted tokens after the committed ones; counted as output.

        Returns
        -------
        token_ids : ndarray of int, shape (S,)
            Distinct tokens of prompt and output, in order of first appearance.
        counts : ndarray of int64, shape (S,)
            Occurrences in the output; 0 for tokens of the prompt alone.
        """
        used = len(self._slots)
        ids, counts = self._ids[:used], self._counts[:used]
        if not extra:
            return ids.copy(), counts.copy()
        fresh = [token for token in dict.fromkeys(extra) if token not in self._slots]
        slots = {token: used + i for i, token in enumerate(fresh)}
        ids = np.concatenate([ids, np.array(fresh, dtype=np.intp)])
        counts = np.concatenate([counts, np.zeros(len(fresh), dtype=np.int64)])
        for token in extra:
            slot = self._slots.get(token)
            counts[slots[token] if slot is None else slot] += 1
        return ids, counts
