"""The values that travel between the rooms.

They are frozen and carry no behaviour beyond their own consistency. They know
nothing about models, sessions or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from draftproof.core.tree import TreeDraft, TreeVerdict
from draftproof.errors import InvariantError

if TYPE_CHECKING:
    from draftproof.core.law import Law

__all__ = [
    "Draft",
    "FlatBatch",
    "ModelInfo",
    "Row",
    "StepRecord",
    "TokenSource",
    "TreeDraft",
    "TreeVerdict",
    "Verdict",
]

#: Where an emitted token came from. ``accepted``: a draft that survived.
#: ``recovered``: drawn from the residual after a rejection. ``bonus``: drawn from
#: the target after all drafts were accepted. ``sampled``: plain decoding, no draft.
TokenSource = Literal["accepted", "recovered", "bonus", "sampled"]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a backend knows about the model it runs.

    Parameters
    ----------
    name : str
        Name shown to people.
    runtime : str
        Name of the backend, for example ``"openvino"``.
    vocab_size : int
        Number of entries of a logits row, padding included.
    context_length : int
        Largest number of tokens of one sequence.
    rewindable : bool
        Whether ``truncate`` to any earlier length is possible.
    precision : str
        How weights are held, for example ``"f32"`` or ``"int8"``.
    kv_bytes_per_token : int
        Bytes of cache that one token of one sequence takes.
    page_size : int
        Tokens per shareable page of the prefix cache; 0 when there is none.
    trees : bool
        Whether rows may branch and ``truncate`` can keep one path of them.
    hidden_size : int
        Width of the hidden states that the backend gives after each pass, see
        `draftproof.core.protocols.HiddenStates`; 0 when it gives none.
    """

    name: str
    runtime: str
    vocab_size: int
    context_length: int
    rewindable: bool = True
    precision: str = "f32"
    kv_bytes_per_token: int = 0
    page_size: int = 0
    trees: bool = False
    hidden_size: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a pass.

    Parameters
    ----------
    sequence_id : int
        The backend's handle of the sequence.
    token_ids : sequence of int
        Tokens to append, in order; at least one.
    start : int
        Position of the first of them, equal to the cached length.
    num_logits : int
        How many of the *last* tokens need a logits row; 0 for a prefill chunk
        that does not reach the end of the prompt.
    parents : sequence of int, optional
        For a row that branches: the index within the row of each token's parent, -1
        for the first token, always smaller than its own. None says that the row is a
        chain.
    """

    sequence_id: int
    token_ids: Sequence[int]
    start: int
    num_logits: int
    parents: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FlatBatch:
    """A ragged batch of B rows, flattened to N tokens: one pass of a model.

    A row holds the pending tokens of one sequence followed by its drafts.
    Prefill chunks, verify blocks and plain rows differ only in length.

    Parameters
    ----------
    sequence_ids : tuple of int, length B
        Handle of each row's sequence; no handle twice.
    row_begins : ndarray of int32, shape (B + 1,)
        Row ``b`` holds the tokens ``row_begins[b]:row_begins[b + 1]``.
    token_ids : ndarray of int32, shape (N,)
        Token ids.
    positions : ndarray of int32, shape (N,)
        Absolute positions. In a tree this is the depth, not the index.
    logits_rows : ndarray of int32, shape (M,)
        Rising flat indices of the tokens whose logits are wanted.
    parents : ndarray of int32, shape (N,), optional
        Flat index of each token's parent, -1 for the first token of a row. None
        says that every row is a chain.
    """

    sequence_ids: tuple[int, ...]
    row_begins: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    logits_rows: NDArray[np.int32]
    parents: NDArray[np.int32] | None = None

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> FlatBatch:
        """Flatten rows into one batch.

        Parameters
        ----------
        rows : sequence of Row
            The rows, in the order in which their logits shall come back.

        Returns
        -------
        FlatBatch
            The same tokens, flat.

        Raises
        ------
        InvariantError
            If a row is empty, starts before 0, wants more logits than it has tokens,
            is no tree, or a sequence appears twice.
        """
        token_ids: list[int] = []
        positions: list[int] = []
        wanted: list[int] = []
        begins = [0]
        branches = any(row.parents is not None for row in rows)
        parents: list[int] = []
        for row in rows:
            count = len(row.token_ids)
            if count == 0 or not 0 <= row.num_logits <= count or row.start < 0:
                msg = (
                    f"row of sequence {row.sequence_id}: {count} tokens from position "
                    f"{row.start}, {row.num_logits} logits"
                )
                raise InvariantError(msg)
            token_ids.extend(row.token_ids)
            if row.parents is None:
                positions.extend(range(row.start, row.start + count))
            else:
                positions.extend(row.start + depth for depth in _depths(row))
            if branches:
                parents.extend(_flat_parents(row, begins[-1]))
            end = begins[-1] + count
            wanted.extend(range(end - row.num_logits, end))
            begins.append(end)
        sequence_ids = tuple(row.sequence_id for row in rows)
        if len(set(sequence_ids)) != len(sequence_ids):
            raise InvariantError(f"a sequence appears twice in one pass: {sequence_ids}")
        return cls(
            sequence_ids,
            np.asarray(begins, dtype=np.int32),
            np.asarray(token_ids, dtype=np.int32),
            np.asarray(positions, dtype=np.int32),
            np.asarray(wanted, dtype=np.int32),
            np.asarray(parents, dtype=np.int32) if branches else None,
        )

    def __len__(self) -> int:
        """Return the number of tokens N."""
        return len(self.token_ids)


def _depths(row: Row) -> list[int]:
    """Return the distance of every token of a branching row from its first."""
    assert row.parents is not None  # narrows the type
    depths: list[int] = []
    for index, parent in enumerate(row.parents):
        if not (0 <= parent < index or (index == 0 and parent == -1)):
            raise InvariantError(
                f"token {index} of the row of sequence {row.sequence_id} has parent {parent}; "
                f"expected -1 for the first and 0 to {index - 1} for others"
            )
        depths.append(depths[parent] + 1 if index else 0)
    if len(depths) != len(row.token_ids):
        raise InvariantError(
            f"{len(row.token_ids)} tokens with {len(depths)} parents in the row of sequence "
            f"{row.sequence_id}"
        )
    return depths


def _flat_parents(row: Row, begin: int) -> Sequence[int]:
    """Return the flat index of every token's parent, -1 for the first of the row."""
    if row.parents is None:
        return (-1, *range(begin, begin + len(row.token_ids) - 1))
    return (-1, *(begin + parent for parent in row.parents[1:]))


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens of one row, and the law they were really drawn from.

    Parameters
    ----------
    token_ids : tuple of int, length K
        The drafts, first to last; empty when nothing was proposed.
    laws : tuple of Law, length K, optional
        ``laws[i]`` is the law that draft ``i`` was drawn from, given the drafts
        before it. None says that the drafts are deterministic, so that each law
        is one-hot. Estimates that nothing was drawn from are scores, and never
        stand here.
    proposer : str
        Name of the drafter that made them.
    note : str
        Why nothing was proposed, when there is a reason worth telling.
    sources : tuple of str, length K, optional
        Which part of a mixed drafter made each draft, for example ``"suffix"`` or
        ``"draft-model"``. None says that ``proposer`` made all of them.
    """

    token_ids: tuple[int, ...] = ()
    laws: tuple[Law, ...] | None = None
    proposer: str = "none"
    note: str = ""
    sources: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a list of laws or sources of another length."""
        for what, held in (("laws", self.laws), ("sources", self.sources)):
            if held is not None and len(held) != len(self.token_ids):
                msg = f"{len(self.token_ids)} drafts with {len(held)} {what} from {self.proposer}"
                raise InvariantError(msg)

    def __len__(self) -> int:
        """Return the number of drafted tokens K."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification decided for one row.

    Parameters
    ----------
    num_accepted : int
        Length of the kept prefix of the draft.
    token_id : int
        The token emitted after that prefix.
    source : {"recovered", "bonus", "sampled"}
        Where that token came from.
    """

    num_accepted: int
    token_id: int
    source: Literal["recovered", "bonus", "sampled"]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One row of one step, as counters, traces and audits read it.

    Parameters
    ----------
    request_id : str
        The request.
    position : int
        Absolute position of the first token this round emitted.
    drafted : tuple of int
        Drafted token ids.
    num_accepted : int
        Drafts the verifier kept.
    emitted : tuple of int
        Token ids committed by this round, after stops cut them.
    sources : tuple of str
        Source of each committed token.
    proposer : str
        Name of the drafter, ``"none"`` when nothing was drafted.
    parents : tuple of int, optional
        For a draft that branches: the number of each node's parent, -1 for the root.
    draft_sources : tuple of str, optional
        Which part of a mixed drafter made each draft; None says ``proposer`` made all.
    path : tuple of int, optional
        For a draft that branches: the numbers of the nodes that the verifier kept, from the
        root's child downwards.
    is_certain : bool
        Whether the draft is a chain that its drafter had no choice about, so that each of its
        laws is one-hot.
    """

    request_id: str
    position: int
    drafted: tuple[int, ...]
    num_accepted: int
    emitted: tuple[int, ...]
    sources: tuple[TokenSource, ...] = ()
    proposer: str = "none"
    parents: tuple[int, ...] | None = None
    draft_sources: tuple[str, ...] | None = None
    path: tuple[int, ...] | None = None
    is_certain: bool = False

    @property
    def kept(self) -> Sequence[int]:
        """Numbers of the drafts that the verifier kept, the first token's first."""
        return range(self.num_accepted) if self.path is None else self.path

    @property
    def depth(self) -> int:
        """Length of the longest drafted path: the most that could have been accepted."""
        if self.parents is None:
            return len(self.drafted)
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0)
