"""The contract between a table model and its memory.

A store hands back the context of each wanted position as it holds it, never from a
copy kept beside its memory, so that a fault of the memory changes the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table.tree_rows import TreeRow
from draftproof.errors import InvariantError

__all__ = ["Context", "TokenStore", "context_of", "found"]

Held = TypeVar("Held")


class Context(NamedTuple):
    """What a store holds before one position, oldest first.

    Parameters
    ----------
    token_ids : ndarray of int64, shape (L,)
        Tokens, or the hashed state of a recurrent store.
    positions : ndarray of int64, shape (L,)
        The position that each was appended with.
    """

    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]


class TokenStore(Protocol):
    """The memory of a table model; methods as in ``ModelBackend``."""

    @property
    def rewindable(self) -> bool:
        """Whether ``truncate`` can reach a shorter length."""
        ...

    @property
    def trees(self) -> bool:
        """Whether rows may branch; ``append`` gets no tree otherwise."""
        ...

    @property
    def page_size(self) -> int:
        """Tokens per shareable page, 0 when nothing is shared."""
        ...

    @property
    def num_open(self) -> int:
        """How many sequences are open."""
        ...

    @property
    def num_held(self) -> int:
        """How many pages, or sequences where there are no pages, are held now."""
        ...

    def open(self, token_ids: Sequence[int]) -> int:
        """Start a sequence."""
        ...

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that holds the same tokens."""
        ...

    def length(self, sequence_id: int) -> int:
        """Return the number of tokens of a sequence."""
        ...

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room, or change nothing and return False."""
        ...

    def append(
        self,
        sequence_id: int,
        token_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        wanted: Sequence[int],
        span: int | None,
        tree: TreeRow | None = None,
    ) -> list[Context]:
        """Append tokens; return the context up to and with each wanted one.

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
            How many of the last tokens each context needs; None for all.
        tree : TreeRow, optional
            Which tokens of the row each one sees, where the row branches.

        Returns
        -------
        list of Context
            One per wanted index.
        """
        ...

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop the tokens from position ``length`` on, but for one path of the last row."""
        ...

    def commit(self, sequence_id: int) -> None:
        """Declare all tokens of a sequence final."""
        ...

    def close(self, sequence_id: int) -> None:
        """Forget a sequence."""
        ...


def found(sequences: dict[int, Held], sequence_id: int) -> Held:
    """Return what is held of an open sequence, or raise InvariantError."""
    held = sequences.get(sequence_id)
    if held is None:
        raise InvariantError(f"sequence {sequence_id} is not open")
    return held


def context_of(token_ids: Sequence[int], positions: Sequence[int]) -> Context:
    """Make a context from lists."""
    return Context(np.asarray(token_ids, dtype=np.int64), np.asarray(positions, dtype=np.int64))
