"""A transformers model behind ``core.protocols.ModelBackend``, with our own pages.

Which slot holds which token is bookkeeping on the host, so a rollback is a smaller
number in the next pass and a fork is a second list of the same pages. A row may branch:
its tokens take a slot each, and ``truncate`` moves the path that stays together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.backends.paged_batch import append_batch, check_batch, check_context
from draftproof.backends.torch_hf.graphs import GraphCounts, GraphRunner
from draftproof.backends.torch_hf.model import PagedModel
from draftproof.backends.torch_hf.pages import KvPages
from draftproof.backends.torch_hf.plan import PassPlan
from draftproof.backends.torch_hf.taps import check_layers
from draftproof.cache import CacheUsage, PageCopy, PagedCache
from draftproof.core.types import FlatBatch, ModelInfo
from draftproof.errors import ConfigError

__all__ = ["TorchBackend"]


class TorchBackend:
    """A Hugging Face causal language model on PyTorch.

    Parameters
    ----------
    model : PagedModel
        The model with our attention.
    name : str
        Name shown to people.
    precision : str
        How the weights are held.
    context_length : int
        Largest number of tokens of one sequence; cut to what the pages hold.
    kv_cache_bytes : int
        Room for keys and values.
    page_size : int
        Token slots of a page.
    prefix_caching : bool
        Whether committed pages are found again by later sequences.
    vocab_size : int, optional
        Number of real token ids; rows of the head past them are cut off.
    host_logits : bool
        Return logits as numpy arrays; otherwise as tensors on the model's device.
    with_hidden : bool
        Keep the hidden states of each pass for a drafter that reads them.
    hidden_layers : sequence of int
        Keep these instead, joined: rising numbers of states between the layers, as
        `draftproof.backends.torch_hf.taps` counts them.
    window : int, optional
        How many tokens a token of any layer sees, itself included. Pages that committed
        tokens have left that far behind are given up, so that a rollback goes back a page
        behind the last commit and no farther. None where some layer sees all.
    make_graphs : callable, optional
        Takes a model and its pages and returns the `GraphRunner` that replays passes; an
        early exit makes its own. Without, every pass runs as it is.
    """

    def __init__(
        self,
        model: PagedModel,
        *,
        name: str,
        precision: str,
        context_length: int,
        kv_cache_bytes: int,
        page_size: int = 16,
        prefix_caching: bool = True,
        vocab_size: int | None = None,
        host_logits: bool = True,
        with_hidden: bool = False,
        hidden_layers: Sequence[int] = (),
        window: int | None = None,
        make_graphs: Callable[[PagedModel, KvPages], GraphRunner] | None = None,
    ) -> None:
        if context_length < 1:
            raise ConfigError(f"context_length is {context_length}, expected at least 1")
        if vocab_size is not None and not 1 <= vocab_size <= model.vocab_size:
            raise ConfigError(
                f"the tokenizer has {vocab_size} tokens, the model {model.vocab_size}; "
                "expected no more than the model has"
            )
        if hidden_layers:
            hidden_layers = check_layers(hidden_layers, model.num_layers)
        self._joined = tuple(hidden_layers)
        self._model = model
        self._host_logits = host_logits
        self._window = window
        pages = KvPages(
            model.shapes,
            kv_cache_bytes,
            page_size,
            model.dtype,
            model.device,
            with_scratch=make_graphs is not None,
        )
        self._pages = pages
        self._make_graphs = make_graphs
        self._graphs = None if make_graphs is None else make_graphs(model, pages)
        self._cache = PagedCache(pages.num_pages, page_size, pages.bytes_per_page, prefix_caching)
        self._copies: deque[PageCopy] = deque()
        self._info = ModelInfo(
            name=name,
            runtime="torch",
            vocab_size=vocab_size or model.vocab_size,
            context_length=min(context_length, pages.num_pages * page_size),
            rewindable=True,
            precision=precision,
            kv_bytes_per_token=pages.bytes_per_page // page_size,
            page_size=page_size if prefix_caching else 0,
            trees=True,
            hidden_size=model.hidden_size * (len(self._joined) or int(with_hidden)),
        )
        self._hidden = np.empty((0, self._info.hidden_size), dtype=np.float32)
        self._states: Any = None

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
        """Number of layers; hidden states are counted from 0, the embedding, to this."""
        return self._model.num_layers

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Numbers of the states that are kept, joined; empty for those of the output layer."""
        return self._joined

    @property
    def graphs(self) -> GraphCounts | None:
        """What was captured and replayed so far; None where passes run as they are."""
        return None if self._graphs is None else self._graphs.counts

    @property
    def gives_up_pages(self) -> bool:
        """Whether every layer has a window, so that pages behind it are given up."""
        return self._window is not None

    @property
    def model(self) -> PagedModel:
        """The model, from which a draft head on the same device borrows."""
        return self._model

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

    def commit(self, sequence_id: int) -> None:
        """Declare all cached tokens of a sequence final; a window may leave pages behind."""
        self._cache.commit(sequence_id)
        if self._window is not None:
            self._cache.evict(sequence_id, self._window, spare=self._pages.page_size)

    def close(self, sequence_id: int) -> None:
        """Free everything the sequence holds alone."""
        self._cache.close(sequence_id)

    def truncate(self, sequence_id: int, length: int, keep: Sequence[int] = ()) -> None:
        """Drop the cached tokens from position ``length`` on, but for one path.

        Parameters
        ----------
        sequence_id : int
            The sequence.
        length : int
            How many tokens stay.
        keep : sequence of int
            Rising slots of the rest of one path of a row that branched.

        Raises
        ------
        InvariantError
            If what stays is not one path.
        RollbackError
            If a text of that length would see pages that the window had left behind.
        """
        self._pages.move_slots(self._cache.truncate(sequence_id, length, keep))

    def forward(self, batch: FlatBatch) -> NDArray[np.float32]:
        """Append the batch to its sequences and score the wanted positions.

        Parameters
        ----------
        batch : FlatBatch
            Rows, each starting at the cached length of its sequence; they may branch.

        Returns
        -------
        ndarray of float32, shape (M, V)
            Raw logits, a view that is valid until the next call; a tensor on the
            model's device when ``host_logits`` is off.

        Raises
        ------
        ContextOverflowError
            If a token would land past the context length; nothing is appended.
        CapacityError
            If there is no room; nothing is appended.
        InvariantError
            If a row does not start at the cached length of its sequence, or holds a
            token that the model does not know; nothing is appended.
        BackendError
            If torch fails; nothing is appended.
        """
        if not self._info.hidden_size:
            logits, _ = self._score(batch, ())
            return self._returned(logits)
        if self._joined:
            logits, states = self._score(batch, (), joined=self._joined)
        else:
            logits, states = self._score(batch, (self.num_layers,), all_rows=True)
            states = None if states is None else states[0]
        if states is not None:
            self._states = states
        return self._returned(logits)

    def hidden(self) -> NDArray[np.float32]:
        """Return the hidden states of the last pass; see `core.protocols.HiddenStates`.

        Returns
        -------
        ndarray of float32, shape (N, E)
            One row per token of the batch; with ``hidden_layers`` their states one after
            the other.
        """
        if self._states is not None:  # they leave the device when somebody asks
            self._hidden, self._states = self._states.float().cpu().numpy(), None
        return self._hidden

    def matrices(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return embedding and output layer; see `core.protocols.HiddenStates`.

        Returns
        -------
        embedding, output : ndarray of float32, shape (V, E)
            Copies on the host.
        """
        embedding, output = self._model.matrices()
        size = self._info.vocab_size
        return embedding.numpy()[:size], output.numpy()[:size]

    def forward_with_hidden(
        self, batch: FlatBatch, layers: Sequence[int] = (-1,)
    ) -> tuple[NDArray[np.float32], Any]:
        """Do what `forward` does, and return hidden states of the wanted rows too.

        Parameters
        ----------
        batch : FlatBatch
            The rows.
        layers : sequence of int
            0 is the embedding, ``i`` the output of layer ``i``, ``num_layers`` or -1
            what the head reads (after the final norm).

        Returns
        -------
        logits : ndarray of float32, shape (M, V)
            As `forward` returns them.
        hidden : torch.Tensor, shape (len(layers), M, E)
            On the model's device, in the model's dtype.

        Raises
        ------
        ConfigError
            If there is no such layer.
        """
        count = self.num_layers + 1
        for layer in layers:
            if not -count <= layer < count:
                raise ConfigError(f"hidden states of layer {layer}, expected 0 to {count - 1}")
        logits, hidden = self._score(batch, tuple(layer % count for layer in layers))
        return self._returned(logits), hidden

    def early_exit(self, num_layers: int, *, kv_cache_bytes: int | None = None) -> TorchBackend:
        """Return a draft model: the first layers, the final norm and the head of this one.

        Parameters
        ----------
        num_layers : int
            Layers that stay.
        kv_cache_bytes : int, optional
            Room for its own keys and values; as many tokens as this model holds when None.

        Returns
        -------
        TorchBackend
            A model with the same weights and a cache of its own.
        """
        view = self._model.first_layers(num_layers)
        elements = sum(shape.num_elements for shape in view.shapes)
        pages = self._pages.num_pages + int(self._make_graphs is not None)
        slots = pages * self._pages.page_size
        return TorchBackend(
            view,
            name=f"{self._info.name}, first {num_layers} layers",
            precision=self._info.precision,
            context_length=self._info.context_length,
            kv_cache_bytes=kv_cache_bytes or slots * elements * view.dtype.itemsize,
            page_size=self._pages.page_size,
            prefix_caching=self._info.page_size > 0,
            vocab_size=self._info.vocab_size,
            host_logits=self._host_logits,
            window=self._window,
            make_graphs=self._make_graphs,
        )

    def _returned(self, logits: Any) -> NDArray[np.float32]:
        if not self._host_logits:
            return logits  # type: ignore[no-any-return]
        found: NDArray[np.float32] = logits.cpu().numpy()
        found.flags.writeable = False
        return found

    def _score(
        self,
        batch: FlatBatch,
        layers: Sequence[int],
        *,
        all_rows: bool = False,
        joined: Sequence[int] = (),
    ) -> tuple[Any, Any]:
        """Append a batch, or nothing when that fails."""
        past_lens = self._cache.lengths(batch.sequence_ids)
        if not len(batch):
            width = self._info.vocab_size
            return torch.empty((0, width), dtype=torch.float32, device=self._model.device), None
        counts = np.diff(batch.row_begins)
        check_context(batch, self._info)
        check_batch(batch, past_lens, counts, self._info)
        try:
            append_batch(self._cache, batch, counts)
            self._copy_pages()
            table = self._cache.block_table(batch.sequence_ids)
            found = None
            if self._graphs is not None and (all_rows or not layers):
                found = self._graphs.run(batch, past_lens, table, layers, joined)
            if found is None:
                plan = PassPlan(batch, past_lens, table, self._pages.page_size, self._model.device)
                found = self._model.run(plan, self._pages, layers, all_rows=all_rows, joined=joined)
            logits, hidden = found
        except BaseException:
            for sequence_id, length in zip(batch.sequence_ids, past_lens.tolist(), strict=True):
                self._cache.truncate(sequence_id, length)
            raise
        return logits[:, : self._info.vocab_size], hidden

    def _copy_pages(self) -> None:
        """Make the copies that the books promise, each one exactly once.

        A copy that was interrupted stays first in line: its page is listed already.
        """
        self._copies.extend(self._cache.drain_copies())
        while self._copies:
            self._pages.copy_page(self._copies[0])
            self._copies.popleft()
