"""Measures passes of a model through its protocol, and the rates of the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

import numpy as np

from draftproof.core.protocols import ModelBackend
from draftproof.core.types import FlatBatch, Row
from draftproof.errors import CapacityError, ConfigError
from draftproof.planner.fit import Cell

__all__ = [
    "CalibrationGrid",
    "MachineRates",
    "machine_rates",
    "measure_change",
    "measure_passes",
]

#: Tokens of one row in one pass while texts are read in.
PREFILL = 96
#: Changes of shape before the first round.
_CHANGES: Final = 60


@dataclass(frozen=True, slots=True)
class CalibrationGrid:
    """Which shapes are measured, and for how long.

    Parameters
    ----------
    batches, widths, contexts : tuple of int
        Rows, tokens per row, cached tokens per row.
    budget_s : float, default 60
        Seconds of measuring, reading in not counted; every shape is measured at least
        once after one warm-up, and a round that began is finished.
    most_rounds : int, default 15
        Most times each shape is measured.
    seed : int, default 0
        Seed of the tokens and of the order.
    """

    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    widths: tuple[int, ...] = (1, 2, 3, 4, 6, 9)
    contexts: tuple[int, ...] = (32, 384)
    budget_s: float = 60.0
    most_rounds: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        for name in ("batches", "widths", "contexts"):
            axis = getattr(self, name)
            if not axis or list(axis) != sorted(set(axis)) or axis[0] < 1:
                raise ConfigError(f"{name} {axis}: expected rising numbers from 1")
        if not self.budget_s > 0 or self.most_rounds < 1:
            raise ConfigError(
                f"a budget of {self.budget_s} s and {self.most_rounds} rounds; expected more"
            )


@dataclass(slots=True)
class _Bench:
    """Sequences of each context, rolled back after every pass."""

    backend: ModelBackend
    vocab_size: int
    rng: np.random.Generator
    sequences: dict[int, list[int]] = field(default_factory=dict)
    clock: Callable[[], float] = perf_counter

    def prepare(self, context: int, count: int) -> int:
        """Read in up to ``count`` texts; return how many there was room for."""
        held = self.sequences.setdefault(context, [])
        while len(held) < count:
            sequence = self.backend.open()
            try:
                if not self.backend.reserve(sequence, context + 64):
                    raise CapacityError("no room")
                self._read(sequence, context)
            except CapacityError:
                self.backend.close(sequence)
                break
            held.append(sequence)
        return len(held)

    def _read(self, sequence: int, context: int) -> None:
        for start in range(0, context, PREFILL):
            tokens = self._tokens(min(PREFILL, context - start))
            self.backend.forward(FlatBatch.from_rows([Row(sequence, tokens, start, 0)]))
        self.backend.truncate(sequence, context)

    def _tokens(self, count: int) -> list[int]:
        drawn: list[int] = self.rng.integers(0, self.vocab_size, count).tolist()
        return drawn

    def time(self, batch: int, width: int, context: int) -> float:
        """Time one pass that wants all its logits, and take it back.

        The pass runs once before. A runtime may need longer for a pass of another shape than
        the one before, which is so for every pass here and for few of a generation.
        """
        return self.times(batch, width, context)[1]

    def times(self, batch: int, width: int, context: int) -> tuple[float, float]:
        """Time the pass before too."""
        chosen = self.sequences[context][:batch]
        rows = [Row(sequence, self._tokens(width), context, width) for sequence in chosen]
        flat = FlatBatch.from_rows(rows)
        elapsed = []
        for _ in range(2):
            begin = self.clock()
            self.backend.forward(flat)
            elapsed.append(self.clock() - begin)
            for sequence in chosen:
                self.backend.truncate(sequence, context)
        return elapsed[0], elapsed[1]

    def close(self) -> None:
        """Close all sequences."""
        for held in self.sequences.values():
            for sequence in held:
                self.backend.close(sequence)
        self.sequences.clear()


def measure_passes(
    backend: ModelBackend,
    grid: CalibrationGrid,
    *,
    vocab_size: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[Cell]:
    """Measure passes of every shape of a grid, interleaved.

    Parameters
    ----------
    backend : ModelBackend
        The model; it must be able to rewind.
    grid : CalibrationGrid
        Shapes and budget.
    vocab_size : int, optional
        Tokens are drawn below it; the backend's when None.
    progress : callable, optional
        Told in one line what is being done.

    Returns
    -------
    list of Cell
        One per shape that fits into context and cache.

    Raises
    ------
    ConfigError
        If nothing fits, or the model cannot rewind.
    """
    if not backend.info.rewindable:
        raise ConfigError(f"{backend.info.name} cannot rewind, so its passes cannot be repeated")
    say = progress or (lambda _line: None)
    limit = backend.info.context_length
    contexts = [each for each in grid.contexts if each + grid.widths[-1] <= limit]
    rng = np.random.default_rng(grid.seed)
    bench = _Bench(backend, vocab_size or backend.info.vocab_size, rng)
    try:
        shapes = []
        for context in sorted(contexts, reverse=True):
            say(f"reading in {grid.batches[-1]} texts of {context} tokens")
            room = bench.prepare(context, grid.batches[-1])
            shapes += [
                (batch, width, context)
                for batch in grid.batches
                if batch <= room
                for width in grid.widths
            ]
        if not shapes:
            raise ConfigError(f"no shape fits into {limit} tokens of context and the cache")
        return _rounds(bench, shapes, grid, say)
    finally:
        bench.close()


def _rounds(
    bench: _Bench,
    shapes: Sequence[tuple[int, int, int]],
    grid: CalibrationGrid,
    say: Callable[[str], None],
) -> list[Cell]:
    times: dict[tuple[int, int, int], list[float]] = {shape: [] for shape in shapes}
    # A runtime may get ready for changes of shape beside its passes; not while they are timed.
    for turn in range(_CHANGES):
        bench.time(*shapes[turn % min(len(shapes), 2)])
    begin, rounds = perf_counter(), 0
    while rounds < 2 or (rounds <= grid.most_rounds and perf_counter() - begin < grid.budget_s):
        for index in bench.rng.permutation(len(shapes)):
            elapsed = bench.time(*shapes[index])
            if rounds:  # the first round makes kernels and packs weights
                times[shapes[index]].append(elapsed)
        rounds += 1
    say(f"measured {len(shapes)} shapes {rounds - 1} times in {perf_counter() - begin:.0f} s")
    return [Cell(*shape, tuple(values)) for shape, values in times.items()]


def measure_change(
    backend: ModelBackend,
    *,
    widths: tuple[int, int] = (1, 4),
    repeats: int = 8,
    seed: int = 0,
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Measure how much longer a pass takes behind one of another shape.

    Asked of a model that was just loaded: a runtime may get ready for changes after many, and
    most texts end before.

    Parameters
    ----------
    backend : ModelBackend
        The model; it must be able to rewind.
    widths : tuple of int
        Tokens of two passes of one row, in turns; each pass runs twice.
    repeats : int, default 8
        Turns of both that count, after one that warms up.
    seed : int, default 0
        Seed of the tokens.
    clock : callable
        Returns seconds.

    Returns
    -------
    float
        Seconds, the median of both widths; 0 where none is seen or there is no room.
    """
    rng = np.random.default_rng(seed)
    bench = _Bench(backend, backend.info.vocab_size, rng, clock=clock)
    context = min(32, backend.info.context_length - max(widths))
    try:
        if context < 1 or not bench.prepare(context, 1):
            return 0.0
        seen: list[float] = []
        for turn in range(repeats + 1):
            for width in widths:
                changed, same = bench.times(1, width, context)
                if turn:
                    seen.append(changed - same)
        return max(float(np.median(seen)), 0.0)
    finally:
        bench.close()


@dataclass(frozen=True, slots=True)
class MachineRates:
    """What this machine streams and computes, through numpy and its BLAS.

    Parameters
    ----------
    bytes_per_s : float
        Reading memory much larger than the caches: a sum over float32.
    flops_per_s : float
        A float32 product of square matrices, 2 per multiply-add.
    """

    bytes_per_s: float
    flops_per_s: float


def machine_rates(*, megabytes: int = 256, size: int = 1024, repeats: int = 5) -> MachineRates:
    """Measure bandwidth and arithmetic rate; the best of several repeats.

    Parameters
    ----------
    megabytes : int, default 256
        Memory that is read.
    size : int, default 1024
        Rows of the matrices.
    repeats : int, default 5
        Repeats of each.

    Returns
    -------
    MachineRates
        Rates of this process. Reading is done by one thread, which most machines
        do not saturate: it is a lower bound.
    """
    memory = np.ones(megabytes * 250_000, dtype=np.float32)
    left = np.ones((size, size), dtype=np.float32)
    reading, computing = [], []
    for _ in range(repeats):
        begin = perf_counter()
        memory.sum()
        reading.append(perf_counter() - begin)
        begin = perf_counter()
        left @ left
        computing.append(perf_counter() - begin)
    return MachineRates(memory.nbytes / min(reading), 2.0 * size**3 / min(computing))
