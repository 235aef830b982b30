"""A decoder on the CPU through OpenVINO, behind ``core.protocols.ModelBackend``.

The runtime runs one flat batch at a time and remembers nothing. Which page holds which
token is our own bookkeeping, so a rollback is a smaller number in the next pass, and a
fork is a second list of the same pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftproof.backends.openvino.branches import branch_passes
from draftproof.backends.openvino.matrices import read_matrices
from draftproof.backends.openvino.rows import pass_tables
from draftproof.backends.openvino.runner import GraphRunner
from draftproof.backends.paged_batch import append_batch, check_batch, check_context
from draftproof.cache import CacheUsage, PageCopy, PagedCache
from draftproof.core.types import FlatBatch, ModelInfo
from draftproof.errors import ConfigError, InvariantError, ModelFileError

__all__ = ["MakeExit", "OpenVINOBackend"]

#: Makes the runner of the first layers: their number, and bytes for keys and values.
MakeExit = Callable[[int, int], GraphRunner]


class OpenVINOBackend:
    """A model on the OpenVINO CPU runtime with paged keys and values.

    Parameters
    ----------
    runner : GraphRunner
        The compiled graph and its pages.
    name : str
        Name shown to people.
    precision : str
        How the weights are kept.
    context_length : int
        Largest number of tokens of one sequence; cut to what the pages hold.
    prefix_caching : bool
        Whether committed pages are found again by later sequences.
    vocab_size : int, optional
        Number of real token ids. A graph may have more rows in its head, so that it
        divides well; those are cut off and can never be drawn.
    deterministic : bool
        Pad small passes, so that the logits of a token do not depend on how many
        tokens travel with it; see `draftproof.backends.openvino.rows`. Rows that
        branch are scored path by path then, on scratch pages of the runner, so that
        the same holds for them; see `draftproof.backends.openvino.branches`.
    graph : Path, optional
        The file that the graph was read from, for `matrices`.
    make_exit : callable, optional
        Makes the runner of an early exit.
    """

    def __init__(
        self,
        runner: GraphRunner,
        *,
        name: str,
        precision: str,
        context_length: int,
        prefix_caching: bool = True,
        vocab_size: int | None = None,
        deterministic: bool = False,
        graph: Path | None = None,
        make_exit: MakeExit | None = None,
    ) -> None:
        if context_length < 1:
            raise ConfigError(f"context_length is {context_length}, expected at least 1")
        if vocab_size is not None and not 1 <= vocab_size <= runner.vocab_size:
            raise ConfigError(
                f"the tokenizer has {vocab_size} tokens, the model {runner.vocab_size}; "
                "expected no more than the model has"
            )
        self._runner = runner
        self._graph = graph
        self._make_exit = make_exit
        self._cache = PagedCache(
            runner.num_pages, runner.page_size, runner.bytes_per_page, prefix_caching
        )
        self._least_tokens = max(2, runner.num_threads) if deterministic else 0
        self._copies: deque[PageCopy] = deque()
        self._hidden = np.empty((0, runner.hidden_size), dtype=np.float32)
        self._info = ModelInfo(
            name=name,
            runtime="openvino",
            vocab_size=vocab_size or runner.vocab_size,
            context_length=min(context_length, runner.num_pages * runner.page_size),
            rewindable=True,
            precision=precision,
            kv_bytes_per_token=runner.bytes_per_page // runner.page_size,
            page_size=runner.page_size if prefix_caching else 0,
            # On scratch pages the tokens of a tree run in another order, which the hidden
            # states would follow.
            trees=runner.trees
            and (not deterministic or bool(runner.scratch and not runner.hidden_size)),
            hidden_size=runner.hidden_size,
        )

    @property
    def info(self) -> ModelInfo:
        """Facts of the model."""
        return self._info

    @property
    def usage(self) -> CacheUsage:
        """Where the pages are now."""
        return self._cache.usage()

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self._runner.num_layers

    def early_exit(self, num_layers: int, *, kv_cache_bytes: int | None = None) -> OpenVINOBackend:
        """Return a draft model: the first layers, the final norm and the head of this one.

        Parameters
        ----------
        num_layers : int
            Layers that stay.
        kv_cache_bytes : int, optional
            Room for its own keys and values; as many tokens as this model holds when None.

        Returns
        -------
        OpenVINOBackend
            A model with a cache of its own. It reads its weights from the same file; the
            runtime keeps those of the layers that stay a second time, as it packs them.

        Raises
        ------
        ConfigError
            If there are not that many layers.
        ModelFileError
            If this model was not loaded from a folder that `prepare` made.
        """
        count = self.num_layers
        if not 1 <= num_layers <= count:
            raise ConfigError(f"early exit after {num_layers} layers, expected 1 to {count}")
        if self._make_exit is None:
            raise ModelFileError(
                f"{self._info.name} was not prepared from a GGUF file: it has no early exit"
            )
        held = self._runner.num_pages * self._runner.bytes_per_page
        runner = self._make_exit(num_layers, kv_cache_bytes or held * num_layers // count)
        return OpenVINOBackend(
            runner,
            name=f"{self._info.name}, first {num_layers} layers",
            precision=self._info.precision,
            context_length=self._info.context_length,
            prefix_caching=self._info.page_size > 0,
            vocab_size=self._info.vocab_size,
        )

    def open(self, token_ids: Sequence[int] = ()) -> int:
        """Start a sequence, with the longest cached prefix of its tokens.

        Parameters
        ----------
        token_ids : sequence of int
            Tokens that will follow.

        Returns
        -------
        int
            The handle, never reused.
        """
        return self._cache.open(token_ids)

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that shares all cached tokens of another."""
        return self._cache.fork(sequence_id)

    def length(self, sequence_id: int) -> int:
        """Return the number of cached tokens of a sequence."""
        return self._cache.length(sequence_id)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for more tokens; False when there is none."""
        return self._cache.reserve(sequence_id, num_tokens)

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
        self._runner.move_slots(self._cache.truncate(sequence_id, length, keep))

    def commit(self, sequence_id: int) -> None:
        """Declare all cached tokens of a sequence final."""
        self._cache.commit(sequence_id)

    def close(self, sequence_id: int) -> None:
        """Free everything the sequence holds alone."""
        self._cache.close(sequence_id)

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
            the runtime cannot score or that has wrong positions, or holds a token that
            the model does not know; nothing is appended.
        BackendError
            If the runtime fails; nothing is appended.
        """
        past_lens = self._cache.lengths(batch.sequence_ids)
        counts = np.diff(batch.row_begins)
        if not len(counts):
            return np.empty((0, self._info.vocab_size), dtype=np.float32)
        if batch.parents is not None and not self._info.trees:
            raise InvariantError("a tree was passed; this runtime scores chains only")
        check_batch(batch, past_lens, counts, self._info)
        check_context(batch, self._info)
        append_batch(self._cache, batch, counts)
        try:
            self._copy_pages()
            table = self._cache.block_table(batch.sequence_ids)
            wanted = self._run(batch, past_lens, table)[:, : self._info.vocab_size]
            wanted.flags.writeable = False
            if self._info.hidden_size:
                self._hidden = self._runner.hidden(len(batch))
            return wanted
        except BaseException:
            for sequence_id, length in zip(batch.sequence_ids, past_lens.tolist(), strict=True):
                self._cache.truncate(sequence_id, length)
            raise

    def hidden(self) -> NDArray[np.float32]:
        """Return the hidden states of the last pass; see `core.protocols.HiddenStates`.

        Returns
        -------
        ndarray of float32, shape (N, E)
            One row per token of the batch.
        """
        return self._hidden

    def matrices(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return embedding and output layer; see `core.protocols.HiddenStates`.

        Returns
        -------
        embedding, output : ndarray of float32, shape (V, E)
            Read from the graph's file at each call.

        Raises
        ------
        ModelFileError
            If there is no such file, or they are not where decoders have them.
        """
        if self._graph is None:
            raise ModelFileError(f"{self._info.name} has no graph file to read matrices from")
        embedding, output = read_matrices(self._graph)
        size = self._info.vocab_size
        if embedding is output:
            return (embedding[:size],) * 2
        return embedding[:size], output[:size]

    def _run(
        self, batch: FlatBatch, past_lens: NDArray[np.int32], table: tuple[Any, Any]
    ) -> NDArray[np.float32]:
        """Score the wanted tokens in one pass, or in a few where paths have own pages."""
        size, least = self._runner.page_size, self._least_tokens
        count = len(batch.logits_rows)
        if batch.parents is None or not self._runner.scratch:
            return self._runner.run(pass_tables(batch, past_lens, table, size, least))[:count]
        scratch = self._runner.scratch
        logits = np.empty((count, self._runner.vocab_size), dtype=np.float32)
        for part in branch_passes(batch, past_lens, table, size, least, scratch):
            for copy in part.copies:
                self._runner.copy_page(copy)
            found = self._runner.run(part.tables)
            logits[part.places] = found[: len(part.places)]
            self._runner.move_slots(part.moves)
        return logits

    def _copy_pages(self) -> None:
        """Make the copies that the books promise, each one exactly once.

        A copy that was interrupted stays first in line: its page is listed already.
        """
        self._copies.extend(self._cache.drain_copies())
        while self._copies:
            self._runner.copy_page(self._copies[0])
            self._copies.popleft()
