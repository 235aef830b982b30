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
    a rejected draft leaves no trace here. Tokens are counted when somebody asks for
    counts: without penalties nobody does.
    """

    __slots__ = ("_counts", "_ids", "_prompt_ids", "_slots", "_uncounted", "num_generated")

    def __init__(self, prompt_ids: Sequence[int] = ()) -> None:
        self.num_generated = 0
        self._prompt_ids: tuple[int, ...] | None = tuple(prompt_ids)
        self._uncounted: list[int] = []
        self._slots: dict[int, int] = {}
        self._ids: NDArray[np.intp]
        self._counts: NDArray[np.int64]

    def append(self, token: int) -> None:
        """Add one committed token of the output."""
        self._uncounted.append(token)
        self.num_generated += 1

    def _count(self) -> None:
        """Count what was not counted yet."""
        slots = self._slots
        if self._prompt_ids is not None:
            for token in self._prompt_ids:
                slots.setdefault(token, len(slots))
            self._prompt_ids = None
            room = max(64, 2 * len(slots))
            self._ids = np.zeros(room, dtype=np.intp)
            self._counts = np.zeros(room, dtype=np.int64)
            self._ids[: len(slots)] = list(slots)
        for token in self._uncounted:
            slot = slots.setdefault(token, len(slots))
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token
            self._counts[slot] += 1
        self._uncounted.clear()

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
        self._count()
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
