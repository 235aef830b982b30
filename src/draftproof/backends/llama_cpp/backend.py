"""A model on llama.cpp, behind ``core.protocols.ModelBackend``.

The library keeps numbered sequences over one memory of cells. A rollback drops the last
cells of a sequence, a fork and a shared beginning are cells with two owners, and a row
that branches is a few sequences with a common beginning. What the library cannot take
back, a recurrent state, is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.llama_cpp.calls import score_batch
from draftproof.backends.llama_cpp.cells import CellBooks
from draftproof.backends.llama_cpp.native import LlamaContext
from draftproof.backends.llama_cpp.slots import SlotPool
from draftproof.backends.llama_cpp.texts import PAGE, Text, Texts
from draftproof.backends.paged_batch import check_batch, check_context
from draftproof.cache import Branches, CacheUsage, branches_of
from draftproof.core.types import FlatBatch, ModelInfo
from draftproof.errors import CapacityError, ConfigError, InvariantError

__all__ = ["LlamaCppBackend"]

#: Books of a memory that has no cells: a state takes the same room for any text.
_COUNTED_CELLS: Final = 1 << 20


class LlamaCppBackend:
    """A model on llama.cpp.

    Parameters
    ----------
    context : LlamaContext
        The model and its memory; nothing else may use it.
    name : str
        Name shown to people.
    precision : str
        How the weights are kept.
    context_length : int
        Largest number of tokens of one sequence; cut to what the cells hold.
    kv_bytes_per_token : int
        Bytes of a cell; 0 for a model that keeps a state of fixed size only.
    vocab_size : int, optional
        Number of real token ids; rows of the head past them are padding. All when None.
    prefix_caching : bool, default True
        Whether committed beginnings are found again by later sequences. Recurrent models
        cannot have that.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    def __init__(
        self,
        context: LlamaContext,
        *,
        name: str,
        precision: str,
        context_length: int,
        kv_bytes_per_token: int,
        vocab_size: int | None = None,
        prefix_caching: bool = True,
    ) -> None:
        model = context.model
        if context_length < 1:
            raise ConfigError(f"context_length is {context_length}, expected at least 1")
        if vocab_size is not None and not 1 <= vocab_size <= model.vocab_size:
            raise ConfigError(
                f"the tokenizer has {vocab_size} tokens, the model {model.vocab_size}; "
                "expected no more than the model has"
            )
        self._context = context
        sharing = prefix_caching and not model.recurrent
        slots = SlotPool(context.num_slots, context.num_slots // 2)
        num_cells = context.num_cells if kv_bytes_per_token else _COUNTED_CELLS
        self._texts = Texts(context, CellBooks(num_cells), slots, sharing)
        self._scratch = None if model.recurrent else slots.take_spare()
        self._info = ModelInfo(
            name=name,
            runtime="llamacpp",
            vocab_size=vocab_size or model.vocab_size,
            context_length=min(context_length, num_cells),
            rewindable=True,
            precision=precision,
            kv_bytes_per_token=kv_bytes_per_token,
            page_size=PAGE if sharing else 0,
            trees=self._scratch is not None,
        )

    @property
    def info(self) -> ModelInfo:
        """Facts of the model."""
        return self._info

    @property
    def usage(self) -> CacheUsage:
        """Where the cells are now, in pages of ``info.page_size`` tokens."""
        return self._texts.usage(self._info.kv_bytes_per_token)

    @property
    def num_held(self) -> int:
        """Cells that open sequences hold or have reserved, each counted once."""
        return self._texts.num_held()

    def open(self, token_ids: Sequence[int] = ()) -> int:
        """Start a sequence, with the beginning that another one has of its tokens.

        Parameters
        ----------
        token_ids : sequence of int
            Tokens that will follow.

        Returns
        -------
        int
            The handle, never reused.
        """
        return self._texts.open(token_ids)

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that shares all cached tokens of another."""
        return self._texts.fork(sequence_id)

    def length(self, sequence_id: int) -> int:
        """Return the number of cached tokens of a sequence."""
        return len(self._texts[sequence_id])

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for more tokens; False when there is none."""
        return self._texts.reserve(self._texts[sequence_id], num_tokens)

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
        """
        self._texts.truncate(self._texts[sequence_id], length, keep)

    def commit(self, sequence_id: int) -> None:
        """Declare all cached tokens of a sequence final."""
        self._texts.commit(self._texts[sequence_id])

    def close(self, sequence_id: int) -> None:
        """Free everything the sequence holds alone."""
        self._texts.close(sequence_id)

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        """Append the batch to its sequences and score the wanted positions.

        Parameters
        ----------
        batch : FlatBatch
            Rows that start at the cached length of their sequence; they may branch
            where ``info.trees`` says so.

        Returns
        -------
        ndarray of float32, shape (M, V)
            Raw logits. A read-only view that is valid until the next call.

        Raises
        ------
        ContextOverflowError
            If a token would land past the context length; nothing is appended.
        CapacityError
            If there is no room; nothing is appended.
        InvariantError
            If a row does not start at the cached length of its sequence, is a tree that
            the model cannot score or that has wrong positions, or holds a token that the
            model does not know; nothing is appended.
        BackendError
            If the library fails; nothing is appended.
        """
        rows = [self._texts[sequence_id] for sequence_id in batch.sequence_ids]
        past_lens = np.array([len(text) for text in rows], dtype=np.int32)
        counts = np.diff(batch.row_begins)
        if not len(counts):
            return np.empty((0, self._info.vocab_size), dtype=np.float32)
        if batch.parents is not None and not self._info.trees:
            raise InvariantError("a tree was passed; a recurrent model scores chains only")
        check_batch(batch, past_lens, counts, self._info)
        check_context(batch, self._info)
        lengths = past_lens.tolist()
        self._append(rows, batch, lengths)
        try:
            logits = score_batch(self._context, self._texts, rows, batch, lengths, self._scratch)[
                :, : self._info.vocab_size
            ]
        except BaseException:
            for text, length in zip(rows, lengths, strict=True):
                self._texts.undo(text, length)
            raise
        logits.flags.writeable = False
        return logits

    def _append(self, rows: Sequence[Text], batch: FlatBatch, lengths: Sequence[int]) -> None:
        """Move all lengths forward, or none."""
        spans = [slice(*pair) for pair in pairwise(batch.row_begins.tolist())]
        for text, span, sequence_id in zip(rows, spans, batch.sequence_ids, strict=True):
            if not self._texts.reserve(text, span.stop - span.start):
                usage = self.usage
                raise CapacityError(
                    f"sequence {sequence_id} needs room for {span.stop - span.start} tokens, "
                    f"{usage.held_pages} of {usage.total_pages} pages and "
                    f"{usage.num_sequences} sequences are held"
                )
        for text, span, length in zip(rows, spans, lengths, strict=True):
            branches: Branches | None = None
            if batch.parents is not None:
                parents = [-1, *(batch.parents[span][1:] - span.start).tolist()]
                branches = branches_of(length, parents)
            self._texts.append(text, batch.token_ids[span].tolist(), branches)
