"""One model over several processes: rank 0 decides, the others do as they are told.

Every rank holds its share of the weights, and of the keys and values, and the same books
about pages. Rank 0 runs the engine. What the engine asks of its backend is written down
and sent with the next pass: drafts travel in the batch, verdicts in the truncations
before it. Before a pass runs all ranks compare what came of that; where one differs the
pass does not run, and no later one does. What a rank draws, or would draw, does not
matter: nobody but rank 0 samples.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist
from numpy.typing import NDArray

from draftproof.cache import CacheUsage
from draftproof.core.types import FlatBatch, ModelInfo
from draftproof.errors import BackendError, DraftproofError

__all__ = ["Link", "ParallelBackend", "RanksLink", "follow"]

#: A method of the backend and its arguments.
Call = tuple[str, tuple[Any, ...]]

#: A server may be idle for long: waiting for orders never runs out.
_PATIENCE: Final = timedelta(days=365)


class LocalBackend(Protocol):
    """What a rank holds: a backend, as far as this file uses it."""

    @property
    def info(self) -> ModelInfo:
        """Facts of the model."""
        ...

    @property
    def usage(self) -> CacheUsage:
        """Where the pages are now."""
        ...

    def forward(self, batch: FlatBatch) -> Any:
        """Append the batch and score it."""
        ...

    def length(self, sequence_id: int) -> int:
        """Return the number of cached tokens of a sequence."""
        ...


class Link(Protocol):
    """How ranks talk. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        ...

    def share(self, message: Any) -> Any:
        """Return what rank 0 says; the argument of the others is ignored."""
        ...

    def compare(self, number: int) -> list[int]:
        """Return the numbers of all ranks, in order."""
        ...


class RanksLink:
    """The ranks of the default process group, over a group of CPU messages of their own.

    Raises
    ------
    RuntimeError
        If no default process group was made.
    """

    def __init__(self) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=_PATIENCE)

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return int(dist.get_rank())

    def share(self, message: Any) -> Any:
        """Return what rank 0 says."""
        held = [message]
        dist.broadcast_object_list(held, src=0, group=self._group)
        return held[0]

    def compare(self, number: int) -> list[int]:
        """Return the numbers of all ranks."""
        own = torch.tensor([number], dtype=torch.int64)
        found = [torch.empty_like(own) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(found, own, group=self._group)
        return [int(each) for each in found]


class _Mirror:
    """What every rank does with the calls of a pass, and what it has to show for it."""

    def __init__(self, local: LocalBackend, link: Link) -> None:
        self.local = local
        self.link = link
        self.num_passes = 0
        self._outcome = ""

    def agree(self, batch: FlatBatch, outcomes: Sequence[str]) -> None:
        """Compare what calls gave and where the rows of a pass stand.

        Raises
        ------
        BackendError
            On every rank, if one differs.
        """
        lengths = []
        for sequence_id in batch.sequence_ids:
            _result, outcome = attempt(partial(self.local.length, sequence_id))
            lengths.append(outcome)
        state = (self.num_passes, self._outcome, list(outcomes), lengths)
        numbers = self.link.compare(zlib.crc32(repr(state).encode()))
        others = [rank for rank, number in enumerate(numbers) if number != numbers[0]]
        if others:
            raise BackendError(
                f"rank {others[0]} differs from rank 0 before pass {self.num_passes}: its books or "
                "its last tokens are others; the ranks are stopped"
            )

    def run(self, batch: FlatBatch) -> Any:
        """Run a pass, and keep the best token of each row for the next comparison."""
        logits, outcome = attempt(partial(self.local.forward, batch))
        if not isinstance(logits, Exception):
            outcome = str(logits.argmax(-1).tolist())
        self._outcome = outcome
        self.num_passes += 1
        return logits


def attempt(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return what a call gave, or its error, and a text that is equal where that is."""
    try:
        result = call()
    except Exception as error:  # noqa: BLE001  the error is an outcome like any other
        return error, f"{type(error).__name__}: {error}"
    return result, repr(result)


class ParallelBackend:
    """Rank 0 of a model over several ranks; implements `core.protocols.ModelBackend`.

    Parameters
    ----------
    local : LocalBackend
        The share of rank 0.
    link : Link
        The way to the other ranks, which run `follow`.
    stop : callable, optional
        Called once by `shut_down`, after the other ranks were told to end.

    Notes
    -----
    One message and one comparison per pass; nothing but integers crosses.
    """

    def __init__(
        self, local: LocalBackend, link: Link, stop: Callable[[], None] | None = None
    ) -> None:
        self._mirror = _Mirror(local, link)
        self._local: Any = local
        self._link = link
        self._stop = stop
        self._calls: list[Call] = []
        self._outcomes: list[str] = []
        self._broken: BackendError | None = None
        self._is_over = False

    @property
    def info(self) -> ModelInfo:
        """Facts of the model; bytes of the cache are those of one rank."""
        return self._mirror.local.info

    @property
    def usage(self) -> CacheUsage:
        """Where the pages are now."""
        return self._mirror.local.usage

    def open(self, token_ids: Sequence[int] = ()) -> int:
        """Start a sequence, with the longest cached prefix of its tokens.

        Parameters
        ----------
        token_ids : sequence of int
            Tokens that will follow.

        Returns
        -------
        int
            The handle.
        """
        return int(self._do("open", tuple(token_ids)))

    def fork(self, sequence_id: int) -> int:
        """Start a sequence that shares all cached tokens of another."""
        return int(self._do("fork", sequence_id))

    def length(self, sequence_id: int) -> int:
        """Return the number of cached tokens of a sequence."""
        return self._mirror.local.length(sequence_id)

    def reserve(self, sequence_id: int, num_tokens: int) -> bool:
        """Make room for more tokens; False when there is none."""
        return bool(self._do("reserve", sequence_id, num_tokens))

    def commit(self, sequence_id: int) -> None:
        """Declare all cached tokens of a sequence final."""
        self._do("commit", sequence_id)

    def close(self, sequence_id: int) -> None:
        """Free everything the sequence holds alone."""
        self._do("close", sequence_id)

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
        """
        self._do("truncate", sequence_id, length, tuple(keep))

    def forward(self, batch: FlatBatch) -> NDArray[Any]:
        """Append the batch on all ranks and score the wanted positions.

        Parameters
        ----------
        batch : FlatBatch
            Rows, each starting at the cached length of its sequence.

        Returns
        -------
        array of float32, shape (M, V)
            Raw logits, as the share of rank 0 returns them.

        Raises
        ------
        BackendError
            If a rank is lost or differs; every later pass fails alike.
        """
        if self._broken is not None:
            raise self._broken
        calls, outcomes = self._calls, self._outcomes
        self._calls, self._outcomes = [], []
        try:
            self._link.share((calls, batch))
            self._mirror.agree(batch, outcomes)
        except BackendError as error:
            self._broken = error
            raise
        except RuntimeError as error:
            line = " ".join(str(error).split())[:200]
            self._broken = BackendError(f"a rank of the model is lost: {line}")
            raise self._broken from error
        logits = self._mirror.run(batch)
        if isinstance(logits, Exception):
            raise logits
        return logits  # type: ignore[no-any-return]

    def shut_down(self) -> None:
        """Let the other ranks end; again has no effect."""
        if self._is_over:
            return
        self._is_over = True
        if self._broken is None:
            self._broken = BackendError("the ranks of the model have ended")
            with contextlib.suppress(RuntimeError):  # a rank that is lost needs no telling
                self._link.share((self._calls, None))
        if self._stop is not None:
            self._stop()

    def _do(self, name: str, *arguments: Any) -> Any:
        """Do a call here, and write down what came of it for the others."""
        result, outcome = attempt(partial(getattr(self._local, name), *arguments))
        self._calls.append((name, arguments))
        self._outcomes.append(outcome)
        if isinstance(result, Exception):
            raise result
        return result


def follow(local: LocalBackend, link: Link) -> int:
    """Do what rank 0 does, until it ends.

    Parameters
    ----------
    local : LocalBackend
        The share of this rank.
    link : Link
        The way to rank 0.

    Returns
    -------
    int
        Passes that were run.

    Raises
    ------
    BackendError
        If this rank, or another one, differs from rank 0.
    """
    mirror = _Mirror(local, link)
    while True:
        calls, batch = link.share(None)
        outcomes = [
            attempt(partial(getattr(local, name), *arguments))[1] for name, arguments in calls
        ]
        if batch is None:
            return mirror.num_passes
        mirror.agree(batch, outcomes)
        failed = mirror.run(batch)
        if isinstance(failed, Exception) and not isinstance(failed, DraftproofError):
            raise failed
