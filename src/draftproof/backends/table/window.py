"""The memory of a table model that sees a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table.stores import Context, check_shorter, context_of, found
from draftproof.errors import ConfigError, RollbackError

__all__ = ["WindowStore"]


@dataclass(slots=True)
class _Window:
    """The newest tokens of one sequence; ``evicted`` older ones are gone."""

    evicted: int = 0
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


class WindowStore:
    """The last ``window`` tokens only, as sliding-window attention keeps them.

    Tokens leave when a *committed* length no longer needs them, never because of
    tokens that may still be rolled back: between commits a sequence holds up to
    ``window`` tokens more than it appended since.

    Parameters
    ----------
    window : int
        How many tokens a position sees, itself included; at least 1.
    """

    rewindable = True
    page_size = 0

    def __init__(self, window: int) -> None:
        if window < 1:
            raise ConfigError(f"window {window}: expected at least 1")
        self._window = window
        self._sequences: dict[int, _Window] = {}
        self._next_id = 0

    @property
    def num_open(self) -> int:
        """How many sequences are open."""
        return len(self._sequences)

    @property
    def num_held(self) -> int:
        """How many sequences are open: there are no pages."""
        return len(self._sequences)

    def num_tokens_held(self, sequence_id: int) -> int:
        """Return how many tokens of a sequence are in memory."""
        return len(found(self._sequences, sequence_id).tokens)

    def open(self, token_ids: Sequence[int]) -> int:
        """Start an empty sequence."""
        del token_ids
        return self._register(_Window())

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that holds the same tokens."""
        source = found(self._sequences, sequence_id)
        return self._register(_Window(source.evicted, list(source.tokens), list(source.positions)))

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens of a sequence, the evicted ones included."""
        held = found(self._sequences, sequence_id)
        return held.evicted + len(held.tokens)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Return True: the store grows as needed."""
        del num_tokens
        found(self._sequences, sequence_id)
        return True

    def append(
        self,
        sequence_id: int,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        wanted: Sequence[int],
        span: int | None,
    ) -> list[Context]:
        """Append tokens and return the window of each wanted one.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        token_ids : ndarray of int32, shape (n,)
            The tokens.
        positions : ndarray of int32, shape (n,)
            Their positions.
        wanted : sequence of int
            Rising indices into ``token_ids``.
        span : int or None
            How many of the last tokens each context needs; None for the window.

        Returns
        -------
        list of Context
            One per wanted index.
        """
        held = found(self._sequences, sequence_id)
        before = len(held.tokens)
        held.tokens.extend(token_ids.tolist())
        held.positions.extend(positions.tolist())
        width = self._window if span is None else min(span, self._window)
        contexts = []
        for offset in wanted:
            end = before + offset + 1
            seen = slice(max(0, end - width), end)
            contexts.append(context_of(held.tokens[seen], held.positions[seen]))
        return contexts

    def truncate(self, sequence_id: int, length: int) -> None:
        """Drop the tokens from position ``length`` on.

        Raises
        ------
        RollbackError
            If tokens that the shorter sequence needs are gone.
        """
        held = found(self._sequences, sequence_id)
        check_shorter(length, self.length(sequence_id))
        # The next token sees itself and ``window - 1`` tokens before it.
        if held.evicted > max(0, length - self._window + 1):
            msg = f"window rolled back to {length}, {held.evicted} tokens are evicted already"
            raise RollbackError(msg)
        del held.tokens[length - held.evicted :]
        del held.positions[length - held.evicted :]

    def commit(self, sequence_id: int) -> None:
        """Evict what no later position can see."""
        held = found(self._sequences, sequence_id)
        surplus = len(held.tokens) - self._window
        if surplus > 0:
            del held.tokens[:surplus]
            del held.positions[:surplus]
            held.evicted += surplus

    def close(self, sequence_id: int) -> None:
        """Forget a sequence."""
        found(self._sequences, sequence_id)
        del self._sequences[sequence_id]

    def _register(self, window: _Window) -> int:
        self._next_id += 1
        self._sequences[self._next_id] = window
        return self._next_id
