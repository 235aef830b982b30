"""The bench on which a backend is tried: feeding, reading, comparing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import ModelBackend
from draftproof.core.types import FlatBatch, Row
from draftproof.testing.report import ConformanceError

__all__ = ["BackendBench", "CountsHeld", "Feed", "Logits"]

Logits = NDArray[np.float32]


@runtime_checkable
class CountsHeld(Protocol):
    """A backend that says how much memory its sequences hold; optional."""

    @property
    def num_held(self) -> int:
        """Pages, or any other unit, that open sequences hold now."""
        ...


@dataclass(frozen=True, slots=True)
class Feed:
    """One row to feed: a sequence, its new tokens, and how many logits are wanted.

    Parameters
    ----------
    sequence_id : int
        The sequence.
    token_ids : sequence of int
        Tokens to append.
    num_logits : int, optional
        Rows wanted for the last tokens; all when not given.
    parents : sequence of int, optional
        Index within the row of each token's parent, -1 for the first; None for a chain.
    """

    sequence_id: int
    token_ids: Sequence[int]
    num_logits: int | None = None
    parents: Sequence[int] | None = None


@dataclass(slots=True)
class BackendBench:
    """Makes backends, feeds them and keeps the largest difference seen.

    Parameters
    ----------
    make_backend : callable
        Returns a fresh backend each time.
    vocab_size : int
        Tokens are drawn from ids 0 to this, exclusive; not more than a logits row has.
    tolerance : float
        Largest difference of two logits that count as equal.
    seed : int
        Seed of the tokens.
    """

    make_backend: Callable[[], ModelBackend]
    vocab_size: int
    tolerance: float
    seed: int = 0
    difference: float = 0.0
    rng: np.random.Generator = field(init=False)
    _reference: ModelBackend | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Start the stream of tokens."""
        self.rng = np.random.default_rng(self.seed)

    def tokens(self, count: int) -> list[int]:
        """Return random tokens."""
        drawn: list[int] = self.rng.integers(0, self.vocab_size, count).tolist()
        return drawn

    def other(self, token_ids: Sequence[int]) -> list[int]:
        """Return tokens that differ from the given ones at every place."""
        steps = self.rng.integers(1, self.vocab_size, len(token_ids)).tolist()
        return [
            (token + step) % self.vocab_size for token, step in zip(token_ids, steps, strict=True)
        ]

    def feed(self, backend: ModelBackend, *feeds: Feed) -> list[Logits]:
        """Run one pass and return a copy of each row's logits.

        Raises
        ------
        ConformanceError
            If the logits have a wrong shape or type or hold NaN, or if a length does
            not grow by the tokens fed.
        """
        before = [backend.length(feed.sequence_id) for feed in feeds]
        counts = [
            len(feed.token_ids) if feed.num_logits is None else feed.num_logits for feed in feeds
        ]
        logits = backend.forward(
            FlatBatch.from_rows(
                [
                    Row(feed.sequence_id, list(feed.token_ids), start, count, feed.parents)
                    for feed, start, count in zip(feeds, before, counts, strict=True)
                ]
            )
        )
        expected = (sum(counts), backend.info.vocab_size)
        if logits.shape != expected or logits.dtype != np.float32:
            raise ConformanceError(
                f"logits {logits.dtype} {logits.shape}, expected float32 {expected}"
            )
        if np.isnan(logits).any() or np.isposinf(logits).any():
            raise ConformanceError("logits hold NaN or +inf")
        for feed, start in zip(feeds, before, strict=True):
            self.expect_length(backend, feed.sequence_id, start + len(feed.token_ids))
        ends = np.cumsum(counts)
        return [logits[end - count : end].copy() for end, count in zip(ends, counts, strict=True)]

    def incremental(self, token_ids: Sequence[int]) -> Logits:
        """Score every position of a text one token at a time, in a fresh backend."""
        backend = self.make_backend()
        sequence = backend.open()
        return np.concatenate(
            [self.feed(backend, Feed(sequence, [token]))[0] for token in token_ids]
        )

    def prefill(self, token_ids: Sequence[int]) -> Logits:
        """Score the last position of a text in one pass of a fresh sequence, (1, V).

        The sequences live one after another in a backend that does nothing else.
        """
        if self._reference is None:
            self._reference = self.make_backend()
        sequence_id = self._reference.open()
        logits = self.feed(self._reference, Feed(sequence_id, token_ids, 1))[0]
        self._reference.close(sequence_id)
        return logits

    def expect_length(self, backend: ModelBackend, sequence_id: int, length: int) -> None:
        """Raise unless a sequence has a length."""
        held = backend.length(sequence_id)
        if held != length:
            raise ConformanceError(f"length is {held}, expected {length}")

    def expect_equal(self, found: Logits, expected: Logits, what: str) -> None:
        """Raise unless logits agree within the tolerance; -inf agrees with -inf only.

        Raises
        ------
        ConformanceError
            Naming the largest difference.
        """
        with np.errstate(invalid="ignore"):
            gaps = np.where(found == expected, 0.0, np.abs(found.astype(np.float64) - expected))
        gap = float(np.max(gaps, initial=0.0))
        self.difference = max(self.difference, gap)
        if not gap <= self.tolerance:
            row = int(np.argmax(gaps.max(axis=1)))
            raise ConformanceError(
                f"{what}: logits differ by {gap:.3g} at row {row}, expected {self.tolerance:.3g}"
            )
