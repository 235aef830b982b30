"""What a draft head remembers of each request, and how it catches up.

A head of one layer has a short memory: the key and the value of a position follow from
the token there and the target's feature before it, nothing else. So the state of a
request is the keys and values of its last positions, made of true features only, and
the features that were observed since. What was drafted never enters it: a rejection
needs no rollback, and a stretch without drafts is read at once when drafting goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["HeadState", "Inputs"]

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """What a request feeds before it drafts: n tokens, each with the feature before it.

    Parameters
    ----------
    start : int
        Position of the first token.
    token_ids : list of int, length n
        The tokens.
    features : ndarray of float32, shape (n, E)
        Features before them.
    """

    start: int
    token_ids: list[int]
    features: Floats

    def __len__(self) -> int:
        """Return the number of tokens n."""
        return len(self.token_ids)


@dataclass(slots=True)
class HeadState:
    """One request's memory.

    Parameters
    ----------
    window : int
        Positions that a token sees, its own included.
    base : int
        Position of the first held feature.
    features : list of ndarray of float32, each of shape (n, E)
        Observed features from ``base`` on, without gaps.
    end : int
        Position behind the last observed feature.
    fed : list of int
        Tokens whose keys and values are held, the last ones of ``fed_end`` in all.
    fed_end : int
        Position behind the last of them.
    keys, values : ndarray of float32, shape (K, len(fed), D), optional
        Theirs; None before the first pass.
    """

    window: int
    base: int
    features: list[Floats] = field(default_factory=list)
    end: int = 0
    fed: list[int] = field(default_factory=list)
    fed_end: int = 0
    keys: Floats | None = None
    values: Floats | None = None

    def __post_init__(self) -> None:
        """Start empty at the base."""
        self.end = self.base

    def observe(self, start: int, hidden: Floats) -> None:
        """Add observed features.

        What is held already is kept: a resumed request is computed again, and tells the
        same. After a gap the features before it are of no use, and are dropped.

        Parameters
        ----------
        start : int
            Position of the first one.
        hidden : ndarray of float32, shape (n, E)
            The features.
        """
        if start > self.end:
            self.features, self.base, self.end = [], start, start
        new = hidden[self.end - start :]
        if not len(new):
            return
        self.features.append(new.copy())  # a view would keep the whole pass
        self.end += len(new)
        while (
            len(self.features) > 1 and self.end - self.base - len(self.features[0]) >= self.window
        ):
            self.base += len(self.features.pop(0))

    def inputs(self, token_ids: Sequence[int], first: int) -> Inputs | None:
        """Return what has to be fed before the next draft.

        Parameters
        ----------
        token_ids : sequence of int
            All committed tokens.
        first : int
            No token before this position is read.

        Returns
        -------
        Inputs or None
            Up to the last committed token; None where its feature is not known yet.
        """
        count = len(token_ids)
        if self.end < count - 1 or count <= first:
            return None
        surplus = self.fed_end - (count - 1)
        if surplus > 0:
            self._drop(surplus)  # asked again before anything was committed
        if self.fed != list(token_ids[self.fed_end - len(self.fed) : self.fed_end]):
            self._forget()  # another text under the same name
        start = max(self.fed_end, first, self.base + 1, count - self.window)
        if start > self.fed_end:
            self._forget()
        if start >= count:
            return None
        held = np.concatenate(self.features)
        rows = held[start - 1 - self.base : count - 1 - self.base]
        return Inputs(start, list(token_ids[start:]), rows)

    def _drop(self, count: int) -> None:
        """Drop keys and values of the last tokens."""
        if count >= len(self.fed) or self.keys is None or self.values is None:
            self._forget()
            return
        del self.fed[-count:]
        self.fed_end -= count
        self.keys, self.values = self.keys[:, :-count], self.values[:, :-count]

    def _forget(self) -> None:
        self.fed, self.fed_end, self.keys, self.values = [], 0, None, None

    def store(self, inputs: Inputs, keys: Floats, values: Floats) -> None:
        """Keep keys and values of what was fed, and drop its features but the last.

        Parameters
        ----------
        inputs : Inputs
            What was fed.
        keys, values : ndarray of float32, shape (K, n, D)
            Its keys and values.
        """
        if self.keys is not None and self.values is not None:
            keys = np.concatenate([self.keys, keys], axis=1)
            values = np.concatenate([self.values, values], axis=1)
        # The next token sees window - 1 positions before it.
        kept = self.window - 1
        self.keys, self.values = keys[:, -kept:], values[:, -kept:]
        self.fed = [*self.fed, *inputs.token_ids][-kept:]
        self.fed_end = inputs.start + len(inputs)
        spent = self.fed_end - 2 - self.base
        if spent > 0:
            self.features = [np.concatenate(self.features)[spent:]]
            self.base += spent
