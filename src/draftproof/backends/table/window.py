"""The memory of a table model that sees a sliding window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table.stores import Context, context_of, found
from draftproof.backends.table.tree_rows import KeepFault, TreeRow, moves_with_fault
from draftproof.cache import Branches, branches_of, check_path
from draftproof.errors import ConfigError, InvariantError, RollbackError

__all__ = ["WindowStore"]


@dataclass(slots=True)
class _Window:
    """The newest tokens of one sequence; ``evicted`` older ones are gone."""

    evicted: int = 0
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    branches: Branches | None = None

    def refuse_branches(self) -> None:
        if self.branches is not None:
            raise InvariantError(f"the row at {self.branches.begin} branched: truncate it first")


class WindowStore:
    """The last ``window`` tokens only, as sliding-window attention keeps them.

    Tokens leave when a *committed* length no longer needs them, never because of
    tokens that may still be rolled back: between commits a sequence holds up to
    ``window`` tokens more than it appended since.

    Parameters
    ----------
    window : int
        How many tokens a position sees, itself included; at least 1.
    keep_fault : {"stays-in-place", "reversed"}, optional
        What a rollback to one path of a tree gets wrong: a fault for tests.
    """

    rewindable = True
    trees = True
    page_size = 0

    def __init__(self, window: int, *, keep_fault: KeepFault | None = None) -> None:
        if window < 1:
            raise ConfigError(f"window {window}: expected at least 1")
        self._window = window
        self._keep_fault = keep_fault
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
        source.refuse_branches()
        return self._register(_Window(source.evicted, list(source.tokens), list(source.positions)))

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens of a sequence, the evicted ones included."""
        held = found(self._sequences, sequence_id)
        return held.evicted + len(held.tokens)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Return True: the store grows as needed."""
        del num_tokens
        found(self._sequences, sequence_id).refuse_branches()
        return True

    def append(
        self,
        sequence_id: int,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        wanted: Sequence[int],
        span: int | None,
        tree: TreeRow | None = None,
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
        tree : TreeRow, optional
            Which tokens of the row each one sees, where the row branches.

        Returns
        -------
        list of Context
            One per wanted index.
        """
        held = found(self._sequences, sequence_id)
        held.refuse_branches()
        before = len(held.tokens)
        held.branches = None if tree is None else branches_of(held.evicted + before, tree.parents)
        held.tokens.extend(token_ids.tolist())
        held.positions.extend(positions.tolist())
        width = self._window if span is None else min(span, self._window)
        contexts = []
        for offset in wanted:
            row = range(offset + 1) if tree is None else tree.sees[offset]
            first = max(0, before + len(row) - width)
            seen = [*range(first, before), *(before + index for index in row)][-width:]
            contexts.append(
                context_of([held.tokens[i] for i in seen], [held.positions[i] for i in seen])
            )
        return contexts

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop the tokens from position ``length`` on, but for one path of the last row.

        Raises
        ------
        RollbackError
            If tokens that the shorter sequence needs are gone.
        """
        held = found(self._sequences, sequence_id)
        check_path(held.branches, length, self.length(sequence_id), keep)
        # The next token sees itself and ``window - 1`` tokens before it.
        if held.evicted > max(0, length - self._window + 1):
            msg = f"window rolled back to {length}, {held.evicted} tokens are evicted already"
            raise RollbackError(msg)
        moves = moves_with_fault(
            [(slot, at) for at, slot in enumerate(keep, length)], self._keep_fault
        )
        for column in (held.tokens, held.positions):
            kept = [column[source - held.evicted] for source, _ in moves]
            del column[length - held.evicted :]
            column.extend(kept)
        held.branches = None

    def commit(self, sequence_id: int) -> None:
        """Evict what no later position can see."""
        held = found(self._sequences, sequence_id)
        held.refuse_branches()
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
