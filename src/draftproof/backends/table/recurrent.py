"""The memory of a table model that keeps one running state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table.stores import Context, context_of, found
from draftproof.backends.table.tree_rows import TreeRow
from draftproof.cache import check_path
from draftproof.errors import BackendError, ConfigError, RollbackError

__all__ = ["RecurrentStore"]


@dataclass(slots=True)
class _State:
    """A running hash, and what is needed to take tokens back."""

    length: int = 0
    state: int = 0
    snapshots: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    replay: list[int] = field(default_factory=list)


class RecurrentStore:
    """One running hash of all tokens, as a recurrent network keeps its state.

    The context is one number, the state, at the position of the last token.

    Parameters
    ----------
    snapshot_every : int or None, default None
        Tokens between snapshots of the state. None keeps no snapshot, and the store
        cannot be rewound. With snapshots, ``truncate`` goes back to the nearest one
        and replays the tokens from there.
    """

    page_size = 0
    #: One state cannot hold two texts.
    trees = False

    def __init__(self, snapshot_every: int | None = None) -> None:
        if snapshot_every is not None and snapshot_every < 1:
            raise ConfigError(f"snapshot_every {snapshot_every}: expected at least 1, or None")
        self._every = snapshot_every
        self._sequences: dict[int, _State] = {}
        self._next_id = 0

    @property
    def rewindable(self) -> bool:
        """Whether snapshots are kept."""
        return self._every is not None

    @property
    def num_open(self) -> int:
        """How many sequences are open."""
        return len(self._sequences)

    @property
    def num_held(self) -> int:
        """How many sequences are open: there are no pages."""
        return len(self._sequences)

    def open(self, token_ids: Sequence[int]) -> int:
        """Start an empty sequence."""
        del token_ids
        return self._register(_State())

    def fork(self, sequence_id: int) -> int:
        """Start a sequence with the same state."""
        held = found(self._sequences, sequence_id)
        return self._register(
            _State(held.length, held.state, list(held.snapshots), list(held.replay))
        )

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens that the state has seen."""
        return found(self._sequences, sequence_id).length

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Return True: a state has a fixed size."""
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
        tree: TreeRow | None = None,
    ) -> list[Context]:
        """Run the state over the tokens and return it at each wanted one.

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
            Not used: the state is all there is.
        tree : TreeRow, optional
            Must be None.

        Returns
        -------
        list of Context
            One per wanted index, with the state in place of tokens.

        Raises
        ------
        BackendError
            If the row branches.
        """
        del span
        if tree is not None:
            raise BackendError("a recurrent state cannot branch, expected a chain")
        held = found(self._sequences, sequence_id)
        chosen = frozenset(wanted)
        contexts = []
        for offset, (token, position) in enumerate(
            zip(token_ids.tolist(), positions.tolist(), strict=True)
        ):
            self._advance(held, token)
            if offset in chosen:
                contexts.append(context_of([held.state], [position]))
        return contexts

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Go back to an earlier state; ``keep`` may only name the tokens that follow it.

        Raises
        ------
        RollbackError
            If no snapshots are kept and the length is not the current one.
        """
        held = found(self._sequences, sequence_id)
        check_path(None, length, held.length, keep)
        length += len(keep)
        if length == held.length:
            return
        if self._every is None:
            msg = f"a recurrent state of {held.length} tokens cannot go back to {length}"
            raise RollbackError(msg)
        while held.snapshots[-1][0] > length:
            held.snapshots.pop()
        held.length, held.state = held.snapshots[-1]
        tail = held.replay[held.length : length]
        del held.replay[held.length :]
        for token in tail:
            self._advance(held, token)

    def commit(self, sequence_id: int) -> None:
        """Do nothing: a state is never shared."""
        found(self._sequences, sequence_id)

    def close(self, sequence_id: int) -> None:
        """Forget a sequence."""
        found(self._sequences, sequence_id)
        del self._sequences[sequence_id]

    def _advance(self, held: _State, token: int) -> None:
        # An odd multiplier modulo a power of two: the order of tokens matters.
        held.state = ((held.state ^ (token + 1)) * 0x5851F42D4C957F2D + 1) % 2**62
        held.length += 1
        if self._every is not None:
            held.replay.append(token)
            if held.length % self._every == 0:
                held.snapshots.append((held.length, held.state))

    def _register(self, state: _State) -> int:
        self._next_id += 1
        self._sequences[self._next_id] = state
        return self._next_id
