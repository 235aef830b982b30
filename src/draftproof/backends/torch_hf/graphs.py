"""Passes that are run again by replaying what an earlier pass of their shape did.

On a GPU a decode pass of a small model is hundreds of kernels whose launches take longer
than their work. A CUDA graph launches all of them at once, but with the shapes and
addresses of the pass that it was captured in. So passes are padded to buckets, and what a
bucket reads lies in one tensor of integers that is filled again before each replay.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import torch
from numpy.typing import NDArray

from draftproof.backends.torch_hf.buckets import Bucket, bucket_of
from draftproof.backends.torch_hf.check import logits_limit
from draftproof.backends.torch_hf.model import PagedModel
from draftproof.backends.torch_hf.padded import PaddedPlan
from draftproof.backends.torch_hf.pages import KvPages
from draftproof.core.types import FlatBatch
from draftproof.errors import BackendError

__all__ = ["Capturer", "GraphCounts", "GraphRunner", "Uncaptured"]

#: Logits (N, V) in float32, and hidden states or None.
Outputs = tuple[Any, Any]
#: A bucket, and the hidden states that are asked for.
Key = tuple[Bucket, tuple[int, ...], tuple[int, ...]]
Table = tuple[NDArray[Any], NDArray[Any]]

#: A capture takes as long as dozens of passes: a bucket has to come back first.
_SIGHTINGS: Final = 4
_MOST_GRAPHS: Final = 64


class Capturer(Protocol):
    """What turns a pass into something that can be run again; the only part that is CUDA's."""

    def capture(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Return what does again all that a call does on its tensors.

        Parameters
        ----------
        call : callable
            Reads and writes tensors that stay where they are. Running it again on the same
            integers changes nothing.

        Returns
        -------
        callable
            Runs once per call of it; its outputs are in the same memory each time.

        Raises
        ------
        Exception
            Of any kind, if the call cannot be captured.
        """
        ...


class Uncaptured:
    """Runs the call itself again: the static path on a device without graphs."""

    def capture(self, call: Callable[[], Outputs]) -> Callable[[], Outputs]:
        """Return the call."""
        return call


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """What a `GraphRunner` has done so far.

    Parameters
    ----------
    num_captured, num_replayed : int
        Graphs that were captured, and passes that were replays.
    num_held, num_dropped : int
        Graphs that are kept, and graphs that were dropped for newer ones.
    failure : str
        Why no further graph is captured; empty while all is well.
    """

    num_captured: int
    num_replayed: int
    num_held: int
    num_dropped: int
    failure: str


@dataclass(slots=True)
class _Graph:
    """A captured bucket."""

    buffer: Any
    call: Callable[[], Outputs]
    replay: Callable[[], Outputs]
    is_checked: bool = False


class GraphRunner:
    """Runs the passes that fit a bucket by replaying its graph.

    A bucket is captured when it comes for the fourth time; until then, and where a pass
    fits no bucket, the caller runs it in the ordinary way. Beyond 64 graphs the one that
    was used longest ago is dropped. The first replay of a graph is compared with the same
    call uncaptured. Where a capture fails no further one is tried, with a warning that
    says why; where a replay differs, all graphs are dropped too.

    Parameters
    ----------
    model : PagedModel
        The model. Hooks of other people on its modules stop the captures: their Python
        would run once, not in every pass.
    pages : KvPages
        Keys and values, with a scratch page.
    capturer : Capturer
        Makes the graphs.
    sightings, most_graphs : int
        Passes of a bucket until it is captured, and how many graphs are kept.
    """

    def __init__(
        self,
        model: PagedModel,
        pages: KvPages,
        capturer: Capturer,
        *,
        sightings: int = _SIGHTINGS,
        most_graphs: int = _MOST_GRAPHS,
    ) -> None:
        self._model = model
        self._pages = pages
        self._capturer = capturer
        self._sightings = sightings
        self._most_graphs = most_graphs
        self._graphs: OrderedDict[Key, _Graph] = OrderedDict()
        self._seen: Counter[Key] = Counter()
        #: Where all graphs leave their logits; each pass takes its own out at once.
        self._logits: Any = None
        self._num_captured = self._num_replayed = self._num_dropped = 0
        self._failure = ""

    @property
    def counts(self) -> GraphCounts:
        """What was done so far."""
        return GraphCounts(
            self._num_captured,
            self._num_replayed,
            len(self._graphs),
            self._num_dropped,
            self._failure,
        )

    def run(
        self,
        batch: FlatBatch,
        past_lens: NDArray[Any],
        table: Table,
        layers: Sequence[int] = (),
        joined: Sequence[int] = (),
    ) -> Outputs | None:
        """Run a pass by a graph, if there is one for it.

        Parameters
        ----------
        batch : FlatBatch
            At least one token.
        past_lens : ndarray of int32, shape (B,)
            Cached tokens of each row before the pass.
        table : tuple of ndarray of int32
            Pages of all rows after the pass, flat, and where each row's begin.
        layers, joined : sequence of int
            Hidden states of all tokens that are wanted, as for `PagedModel.run`.

        Returns
        -------
        tuple or None
            What `PagedModel.run` returns with ``all_rows``, in memory of its own. None
            where the pass has to be run in the ordinary way.

        Raises
        ------
        BackendError
            If torch fails in a replay.
        """
        bucket = bucket_of(batch, past_lens)
        if bucket is None:
            return None
        key = (bucket, tuple(layers), tuple(joined))
        graph = self._graphs.get(key)
        if graph is None:
            self._seen[key] += 1
            if self._seen[key] >= self._sightings and not self._failure:
                self._capture(key, batch, past_lens, table)
            return None
        self._graphs.move_to_end(key)
        try:
            with torch.inference_mode():
                plan = self._plan(batch, past_lens, table, bucket, graph.buffer)
                logits, states = graph.replay()
                found = plan.wanted(logits), None if states is None else plan.real(states)
                if not graph.is_checked and not self._agree(graph, logits):
                    return None
        except RuntimeError as error:
            line = " ".join(str(error).split())[:300]
            raise BackendError(f"torch failed in a graph: {line}") from error
        self._num_replayed += 1
        return found

    def _plan(
        self,
        batch: FlatBatch,
        past_lens: NDArray[Any],
        table: Table,
        bucket: Bucket,
        buffer: Any = None,
    ) -> PaddedPlan:
        """Return the pass, padded, over the memory of the bucket."""
        pages = self._pages
        return PaddedPlan(
            batch,
            past_lens,
            table,
            pages.page_size,
            self._model.device,
            bucket,
            pages.scratch,
            buffer,
        )

    def _capture(self, key: Key, batch: FlatBatch, past_lens: NDArray[Any], table: Table) -> None:
        """Capture a bucket in a pass of it, or never try again."""
        try:
            _refuse_hooks(self._model.model)
            plan = self._plan(batch, past_lens, table, key[0])
            call = partial(self._compute, plan, key, self._room(plan.num_tokens))
            replay = self._capturer.capture(call)
        except Exception as error:  # noqa: BLE001  the ordinary way is there whatever it was
            self._stop(f"a pass could not be captured: {_first_line(error)}")
            return
        self._graphs[key] = _Graph(plan.buffer, call, replay)
        self._num_captured += 1
        if len(self._graphs) > self._most_graphs:
            # A capture begins by waiting for the device: no replay is under way.
            dropped, _ = self._graphs.popitem(last=False)
            self._seen[dropped] = 0
            self._num_dropped += 1

    def _compute(self, plan: PaddedPlan, key: Key, room: Any) -> Outputs:
        """Run the pass on the tensors of its bucket; this is what is captured."""
        _, layers, joined = key
        return self._model.run(
            plan.fresh(), self._pages, layers, all_rows=True, joined=joined, into=room
        )

    def _room(self, num_tokens: int) -> Any:
        """Return where logits go. Graphs keep the memory that they were captured with."""
        if self._logits is None or len(self._logits) < num_tokens:
            size = (1 << (num_tokens - 1).bit_length(), self._model.vocab_size)
            self._logits = torch.empty(size, dtype=torch.float32, device=self._model.device)
        return self._logits[:num_tokens]

    def _agree(self, graph: _Graph, logits: Any) -> bool:
        """Compare the first replay with the same call uncaptured."""
        found = logits.clone()
        expected, _ = graph.call()
        gap = float((found - expected).abs().max())
        limit = logits_limit(self._model.dtype) * max(float(expected.abs().max()), 1e-6)
        graph.is_checked = gap <= limit
        if not graph.is_checked:
            self._graphs.clear()
            self._stop(f"a replay differs from its pass by {gap:.2g}, expected {limit:.2g}")
        return graph.is_checked

    def _stop(self, why: str) -> None:
        """Capture no more, and say why."""
        self._failure = why
        warnings.warn(f"no more CUDA graphs: {why}", RuntimeWarning, stacklevel=2)


def _refuse_hooks(model: Any) -> None:
    """Refuse a model that calls Python of other people's in every pass."""
    for name, module in model.named_modules():
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values()):
            # transformers' own only collect outputs of the pass that they run in.
            if not str(getattr(hook, "__module__", "")).startswith("transformers."):
                raise BackendError(f"{name or 'the model'} has a hook, which a replay skips")


def _first_line(error: BaseException) -> str:
    """Return what went wrong first: a capture that is broken off fails once more."""
    first = error
    while error.__context__ is not None:
        error = error.__context__
        if isinstance(error, RuntimeError | BackendError):
            first = error
    return f"{type(first).__name__}: {' '.join(str(first).split())[:200]}"
