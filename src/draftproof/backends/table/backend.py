"""A model that is a table of probabilities: what makes exact tests possible."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.table.laws import ProbabilityTable
from draftproof.backends.table.paged import PagedStore
from draftproof.backends.table.stores import TokenStore
from draftproof.backends.table.tree_rows import TreeFault, TreeRow
from draftproof.core.types import FlatBatch, ModelInfo
from draftproof.errors import BackendError, CapacityError, ContextOverflowError, InvariantError

__all__ = ["PassRecord", "TableBackend"]


@dataclass(frozen=True, slots=True)
class PassRecord:
    """What one row of one pass brought.

    Parameters
    ----------
    call : int
        Number of the pass, from 1.
    sequence_id : int
        The row's sequence.
    token_ids : tuple of int
        Its tokens.
    positions : tuple of int
        The positions they were passed with.
    parents : tuple of int, optional
        Index within the row of each token's parent, -1 for the first, in a pass in
        which a row branches; None in other passes.
    """

    call: int
    sequence_id: int
    token_ids: tuple[int, ...]
    positions: tuple[int, ...]
    parents: tuple[int, ...] | None = None


class TableBackend:
    """A causal model whose law is a table; implements ``ModelBackend``.

    Logits are the logarithms of the table's probabilities as float32, -inf for zero.
    A returned array is read-only and is overwritten with NaN by the next pass, so
    that a caller that keeps it too long finds out.

    Parameters
    ----------
    table : ProbabilityTable
        The law.
    store : TokenStore, optional
        Where tokens are remembered; a ``PagedStore`` when not given. A
        ``WindowStore`` and a ``RecurrentStore`` make the other kinds of model.
    context_length : int, default 1024
        Largest number of tokens of one sequence.
    name : str, default "table"
        Name shown to people.
    nan_after : collection of int, default ()
        The row that follows one of these tokens is NaN: a fault for tests.
    fail_calls : mapping of int to Exception, optional
        Passes, numbered from 1, that raise instead: a fault for tests.
    fail_late : bool, default False
        Whether a failing pass appends its tokens before it raises, as a runtime that
        dies in the middle does.
    tree_fault : {"index-positions", "sees-siblings"}, optional
        What a pass gets wrong about rows that branch: a fault for tests. The stores
        have a ``keep_fault`` for what a rollback gets wrong.
    """

    def __init__(
        self,
        table: ProbabilityTable,
        store: TokenStore | None = None,
        *,
        context_length: int = 1024,
        name: str = "table",
        nan_after: Collection[int] = (),
        fail_calls: Mapping[int, Exception] | None = None,
        fail_late: bool = False,
        tree_fault: TreeFault | None = None,
    ) -> None:
        self.table = table
        self.store: TokenStore = PagedStore() if store is None else store
        self._info = ModelInfo(
            name=name,
            runtime="table",
            vocab_size=table.vocab_size,
            context_length=context_length,
            rewindable=self.store.rewindable,
            precision="f64",
            kv_bytes_per_token=16,
            page_size=self.store.page_size,
            trees=self.store.trees,
        )
        self._nan_after = frozenset(nan_after)
        self._fail_calls = dict(fail_calls or {})
        self._fail_late = fail_late
        self._tree_fault: TreeFault | None = tree_fault
        self._last: NDArray[np.float32] | None = None
        #: Passes so far, failed ones included.
        self.num_calls = 0
        #: Tokens of all passes that did not fail.
        self.num_tokens = 0
        #: Rows of all passes that did not fail, in order.
        self.passes: list[PassRecord] = []

    @property
    def info(self) -> ModelInfo:
        """Facts of the model."""
        return self._info

    @property
    def num_open(self) -> int:
        """How many sequences are open."""
        return self.store.num_open

    @property
    def num_held(self) -> int:
        """How many pages, or sequences without pages, are held now."""
        return self.store.num_held

    def open(self, token_ids: Sequence[int] = ()) -> int:
        """Start a sequence, with a cached prefix where the store has one.

        Parameters
        ----------
        token_ids : sequence of int
            Tokens that will follow.

        Returns
        -------
        int
            The handle.
        """
        return self.store.open(token_ids)

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that shares all cached tokens of another.

        Parameters
        ----------
        sequence_id : int
            The sequence to share.

        Returns
        -------
        int
            The new handle.
        """
        return self.store.fork(sequence_id)

    def length(self, sequence_id: int) -> int:
        """Return the number of cached tokens of a sequence.

        Parameters
        ----------
        sequence_id : int
            The sequence.

        Returns
        -------
        int
            Its cached length.
        """
        return self.store.length(sequence_id)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for more tokens, or change nothing and return False.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        num_tokens : int
            Tokens counted from its length.

        Returns
        -------
        bool
            Whether there is room.
        """
        return self.store.reserve(sequence_id, num_tokens)

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        """Append the batch and return the logits of the wanted positions.

        Parameters
        ----------
        batch : FlatBatch
            Rows that start at the cached length of their sequence; they may branch
            where ``info.trees`` says so.

        Returns
        -------
        ndarray of float32, shape (M, V)
            Log probabilities; read-only, NaN after the next pass.

        Raises
        ------
        BackendError
            If a row branches and the memory of this model cannot.
        CapacityError
            If a row has no room; nothing is appended.
        ContextOverflowError
            If a row passes the context length; nothing is appended.
        InvariantError
            If a row starts elsewhere than at its cached length, or a token id is out
            of range.
        """
        if self._last is not None:
            self._last.flags.writeable = True
            self._last.fill(np.nan)
            self._last = None
        self.num_calls += 1
        failure = self._fail_calls.get(self.num_calls)
        if failure is not None and not self._fail_late:
            raise failure
        self._check(batch)
        logits = self._append(batch)
        if failure is not None:
            raise failure
        self.num_tokens += len(batch)
        logits.flags.writeable = False
        self._last = logits
        return logits.view()

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop the cached tokens from position ``length`` on.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        length : int
            How many slots stay in place.
        keep : sequence of int
            Rising slots of the rest of one path of a row that branched.

        Raises
        ------
        InvariantError
            If what stays is not one path.
        RollbackError
            If the memory cannot be rewound so far.
        """
        self.store.truncate(sequence_id, length, keep)

    def commit(self, sequence_id: int) -> None:
        """Declare all cached tokens of a sequence final.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        """
        self.store.commit(sequence_id)

    def close(self, sequence_id: int) -> None:
        """Free what the sequence holds alone.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        """
        self.store.close(sequence_id)

    def _check(self, batch: FlatBatch) -> None:
        """Refuse a pass before anything of it is appended."""
        if batch.parents is not None and not self._info.trees:
            raise BackendError("this memory holds chains only, expected parents=None")
        if (
            len(batch)
            and not 0 <= batch.token_ids.min() <= batch.token_ids.max() < self.table.vocab_size
        ):
            msg = f"token ids {batch.token_ids.tolist()}, expected 0 to {self.table.vocab_size - 1}"
            raise InvariantError(msg)
        limit = self._info.context_length
        for row, sequence_id in enumerate(batch.sequence_ids):
            begin, end = int(batch.row_begins[row]), int(batch.row_begins[row + 1])
            held = self.store.length(sequence_id)
            if begin < end and batch.positions[begin] != held:
                msg = (
                    f"row of sequence {sequence_id} starts at {batch.positions[begin]}, not {held}"
                )
                raise InvariantError(msg)
            # In a tree fewer positions than tokens.
            if begin < end and (last := int(batch.positions[begin:end].max())) >= limit:
                msg = f"{held} tokens and more up to position {last}, expected at most {limit}"
                raise ContextOverflowError(msg)
        for row, sequence_id in enumerate(batch.sequence_ids):
            count = int(batch.row_begins[row + 1] - batch.row_begins[row])
            if not self.store.reserve(sequence_id, count):
                raise CapacityError(f"no room for {count} tokens of sequence {sequence_id}")

    def _append(self, batch: FlatBatch) -> NDArray[np.float32]:
        logits = np.empty((len(batch.logits_rows), self.table.vocab_size), dtype=np.float32)
        filled = 0
        for row, sequence_id in enumerate(batch.sequence_ids):
            begin, end = int(batch.row_begins[row]), int(batch.row_begins[row + 1])
            wanted = [int(at) - begin for at in batch.logits_rows if begin <= at < end]
            tokens, positions = batch.token_ids[begin:end], batch.positions[begin:end]
            tree = None if batch.parents is None else self._tree(batch, begin, end)
            if tree is None:
                contexts = self.store.append(
                    sequence_id, tokens, positions, wanted, self.table.span
                )
            else:
                if self._tree_fault == "index-positions":
                    positions = positions[0] + np.arange(end - begin, dtype=np.int32)
                contexts = self.store.append(
                    sequence_id, tokens, positions, wanted, self.table.span, tree
                )
            self.passes.append(
                PassRecord(
                    self.num_calls,
                    sequence_id,
                    tuple(tokens.tolist()),
                    tuple(positions.tolist()),
                    None if tree is None else tree.parents,
                )
            )
            for offset, context in zip(wanted, contexts, strict=True):
                probs = self.table.probs(context.token_ids, context.positions)
                with np.errstate(divide="ignore"):
                    logits[filled] = np.log(probs)
                if int(tokens[offset]) in self._nan_after:
                    logits[filled] = np.nan
                filled += 1
        return logits

    def _tree(self, batch: FlatBatch, begin: int, end: int) -> TreeRow:
        """Return the shape of one row of a batch in which some row branches."""
        assert batch.parents is not None  # narrows the type
        parents = [-1, *(batch.parents[begin + 1 : end] - begin).tolist()]
        return TreeRow.of(parents, self._tree_fault)
