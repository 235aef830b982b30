"""Tables of probabilities: what a table model says next, given what it holds.

A table sees what the model's own cache returned, tokens and positions, and nothing
else. A cache that returns a wrong token therefore changes the law, and a test that
compares laws sees it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.errors import ConfigError

__all__ = [
    "ArrayTable",
    "FunctionTable",
    "MarkovTable",
    "MixedTable",
    "PositionTable",
    "ProbabilityTable",
    "seeded_probs",
]


class ProbabilityTable(Protocol):
    """The conditional law of a table model."""

    @property
    def vocab_size(self) -> int:
        """Number of entries of a row."""
        ...

    @property
    def span(self) -> int | None:
        """How many of the last tokens the law depends on; None for all."""
        ...

    def probs(
        self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the law of the next token.

        Parameters
        ----------
        token_ids : ndarray of int64, shape (L,)
            The tokens held, at most ``span`` of them, oldest first; L >= 1.
        positions : ndarray of int64, shape (L,)
            The position that each was appended with.

        Returns
        -------
        ndarray of float64, shape (V,)
            Probabilities; zeros are allowed.
        """
        ...


def seeded_probs(
    vocab_size: int, key: Sequence[int], *, seed: int, spread: float = 1.0, zeros: float = 0.0
) -> NDArray[np.float64]:
    """Draw an arbitrary law that is a pure function of its arguments.

    Parameters
    ----------
    vocab_size : int
        Number of tokens V.
    key : sequence of int
        What the law is the law of, for example the tokens before it.
    seed : int
        Seed of the whole table.
    spread : float, default 1.0
        0 gives the uniform law; larger values give more peaked ones.
    zeros : float, default 0.0
        Expected share of tokens with probability 0; one token always keeps some.

    Returns
    -------
    ndarray of float64, shape (V,)
        Probabilities that sum to 1.
    """
    text = np.asarray([seed, *key], dtype="<i8").tobytes()
    digest = hashlib.blake2b(text, digest_size=16).digest()
    rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
    weights = rng.exponential(size=vocab_size) ** spread
    dropped = rng.random(vocab_size) < zeros
    dropped[rng.integers(vocab_size)] = False
    weights[dropped] = 0.0
    return np.asarray(weights / weights.sum(), dtype=np.float64)


class MarkovTable:
    """A law that depends on the last ``order`` tokens, or on the whole prefix.

    Parameters
    ----------
    vocab_size : int
        Number of tokens V.
    order : int or None
        How many of the last tokens count; None for the whole prefix.
    seed : int, default 0
        Seed of the rows that are not given.
    rows : mapping of tuple of int to sequence of float, optional
        Laws of chosen contexts. Near the start of a sequence a context is shorter
        than ``order``.
    spread : float, default 1.0
        Peakedness of the seeded rows, see ``seeded_probs``.
    zeros : float, default 0.0
        Share of zeros in the seeded rows, see ``seeded_probs``.
    """

    def __init__(
        self,
        vocab_size: int,
        order: int | None = None,
        *,
        seed: int = 0,
        rows: Mapping[tuple[int, ...], Sequence[float]] | None = None,
        spread: float = 1.0,
        zeros: float = 0.0,
    ) -> None:
        if order is not None and order < 0:
            raise ConfigError(f"order {order}: expected 0 or more, or None for the whole prefix")
        self._vocab_size = vocab_size
        self._order = order
        self._seed = seed
        self._spread = spread
        self._zeros = zeros
        self._rows = {key: _checked(row, vocab_size) for key, row in (rows or {}).items()}

    @property
    def vocab_size(self) -> int:
        """Number of entries of a row."""
        return self._vocab_size

    @property
    def span(self) -> int | None:
        """How many of the last tokens the law depends on."""
        return self._order

    def probs(
        self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the row of the context.

        Parameters
        ----------
        token_ids : ndarray of int64, shape (L,)
            The tokens held, oldest first.
        positions : ndarray of int64, shape (L,)
            Not used: this law does not depend on positions.

        Returns
        -------
        ndarray of float64, shape (V,)
            Probabilities.
        """
        del positions
        begin = 0 if self._order is None else max(0, len(token_ids) - self._order)
        key = tuple(token_ids[begin:].tolist())
        row = self._rows.get(key)
        if row is None:
            row = seeded_probs(
                self._vocab_size, key, seed=self._seed, spread=self._spread, zeros=self._zeros
            )
            # A table is drawn once: a memo of a pure function, not state.
            self._rows[key] = row
        return row


class ArrayTable:
    """A Markov law of order m from an array of shape ``(V,) * (m + 1)``.

    Parameters
    ----------
    probs : array_like of float, shape (V, ..., V)
        The last axis is the next token; the axes before it are the context, oldest
        first. Tokens before the start of the sequence count as token 0.
    """

    def __init__(self, probs: ArrayLike) -> None:
        array = np.array(probs, dtype=np.float64)
        if array.ndim == 0 or len(set(array.shape)) != 1:
            raise ConfigError(f"table of shape {array.shape}: expected equal axes (V, ..., V)")
        for row in array.reshape(-1, array.shape[-1]):
            _checked(row, array.shape[-1])
        self._probs = array
        self._order = array.ndim - 1

    @property
    def vocab_size(self) -> int:
        """Number of entries of a row."""
        return int(self._probs.shape[-1])

    @property
    def span(self) -> int | None:
        """How many of the last tokens the law depends on."""
        return self._order

    def probs(
        self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the row of the context.

        Parameters
        ----------
        token_ids : ndarray of int64, shape (L,)
            The tokens held, oldest first.
        positions : ndarray of int64, shape (L,)
            Not used: this law does not depend on positions.

        Returns
        -------
        ndarray of float64, shape (V,)
            Probabilities.
        """
        del positions
        context = token_ids.tolist()
        missing = [0] * (self._order - len(context))
        row: NDArray[np.float64] = self._probs[tuple(missing + context)]
        return row


class PositionTable:
    """A law of the absolute position and the last token, for position faults.

    Parameters
    ----------
    vocab_size : int
        Number of tokens V.
    seed : int, default 0
        Seed of the rows.
    spread : float, default 1.0
        Peakedness of the rows, see ``seeded_probs``.
    """

    def __init__(self, vocab_size: int, *, seed: int = 0, spread: float = 1.0) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._spread = spread
        self._rows: dict[tuple[int, ...], NDArray[np.float64]] = {}

    @property
    def vocab_size(self) -> int:
        """Number of entries of a row."""
        return self._vocab_size

    @property
    def span(self) -> int | None:
        """How many of the last tokens the law depends on."""
        return None

    def probs(
        self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the law at the last position.

        Parameters
        ----------
        token_ids : ndarray of int64, shape (L,)
            The tokens held, oldest first.
        positions : ndarray of int64, shape (L,)
            The positions they were appended with. All of them count, as they do in a
            model whose keys are rotated by position: one wrong position in the cache
            changes every later law.

        Returns
        -------
        ndarray of float64, shape (V,)
            Probabilities.
        """
        key = (int(token_ids[-1]), *positions.tolist())
        row = self._rows.get(key)
        if row is None:
            row = seeded_probs(self._vocab_size, key, seed=self._seed, spread=self._spread)
            self._rows[key] = row
        return row


class FunctionTable:
    """A law computed by a function of the tokens held.

    Parameters
    ----------
    vocab_size : int
        Number of tokens V.
    function : callable
        Takes the tuple of tokens held and returns V weights that sum to 1.
    span : int or None, default None
        How many of the last tokens the function sees; None for all.
    """

    def __init__(
        self,
        vocab_size: int,
        function: Callable[[tuple[int, ...]], ArrayLike],
        span: int | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._function = function
        self._span = span

    @property
    def vocab_size(self) -> int:
        """Number of entries of a row."""
        return self._vocab_size

    @property
    def span(self) -> int | None:
        """How many of the last tokens the law depends on."""
        return self._span

    def probs(
        self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the function's law.

        Parameters
        ----------
        token_ids : ndarray of int64, shape (L,)
            The tokens held, oldest first.
        positions : ndarray of int64, shape (L,)
            Not used: this law does not depend on positions.

        Returns
        -------
        ndarray of float64, shape (V,)
            Probabilities.
        """
        del positions
        return _checked(self._function(tuple(token_ids.tolist())), self._vocab_size)


class MixedTable:
    """A mixture of two laws: a drafter that is near its target, by a known amount.

    Parameters
    ----------
    first : ProbabilityTable
        The law that counts ``1 - weight``.
    second : ProbabilityTable
        The law that counts ``weight``; of the same vocabulary.
    weight : float
        Share of the second law, in [0, 1].
    """

    def __init__(self, first: ProbabilityTable, second: ProbabilityTable, weight: float) -> None:
        if first.vocab_size != second.vocab_size or not 0 <= weight <= 1:
            sizes = f"{first.vocab_size} and {second.vocab_size}"
            raise ConfigError(f"vocabularies of {sizes} with weight {weight}: not a mixture")
        self._parts = ((first, 1.0 - weight), (second, weight))

    @property
    def vocab_size(self) -> int:
        """Number of entries of a row."""
        return self._parts[0][0].vocab_size

    @property
    def span(self) -> int | None:
        """How many of the last tokens the law depends on."""
        spans = [table.span for table, _ in self._parts]
        return None if None in spans else max(span for span in spans if span is not None)

    def probs(
        self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the mixture of both laws.

        Parameters
        ----------
        token_ids : ndarray of int64, shape (L,)
            The tokens held, oldest first.
        positions : ndarray of int64, shape (L,)
            The positions they were appended with.

        Returns
        -------
        ndarray of float64, shape (V,)
            Probabilities.
        """
        mixed = np.zeros(self.vocab_size)
        for table, weight in self._parts:
            begin = 0 if table.span is None else max(0, len(token_ids) - table.span)
            mixed += weight * table.probs(token_ids[begin:], positions[begin:])
        return mixed


def _checked(row: ArrayLike, vocab_size: int) -> NDArray[np.float64]:
    """Refuse a row that is no law over the vocabulary."""
    probs = np.asarray(row, dtype=np.float64)
    if probs.shape != (vocab_size,) or not np.all(probs >= 0) or abs(probs.sum() - 1) > 1e-9:
        raise ConfigError(f"row {row!r}: expected {vocab_size} probabilities that sum to 1")
    return probs
