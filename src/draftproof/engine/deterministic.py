"""The bit-identical mode: passes of a shape for which the kernels round alike.

Kernels sum in another order for another shape, so the logits of a token depend on how
many tokens travel with it. Some runtimes do not have that within limits: short rows,
small passes. Here are the limits, and the test that a runtime on this machine keeps
the promise. Inside them greedy decoding with drafts equals greedy decoding without,
and the rules ``coupled`` and ``sample-match`` give one text per seed, to the bit: for
any drafter, kappa, batch and history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftproof.core.protocols import ModelBackend
from draftproof.core.types import FlatBatch, Row
from draftproof.engine.scheduler import SchedulerConfig
from draftproof.errors import ConfigError

__all__ = ["MAX_PASS_TOKENS", "MAX_ROW_TOKENS", "deterministic_limits", "require_bit_identity"]

#: Widest row past the prompt: the pending token and its drafts.
MAX_ROW_TOKENS = 16
#: Most tokens of a pass. Matrix products of more rows use other kernels: with int8 weights
#: on x86 from somewhere between 81 and 88 rows on.
MAX_PASS_TOKENS = 64
#: Prompt chunk for a runtime without pages.
_CHUNK = 32
#: Row widths that the test tries, with and without company.
_WIDTHS = (1, 2, 3, 5, 8, 16, 4, 1)


def deterministic_limits(config: SchedulerConfig, page_size: int) -> SchedulerConfig:
    """Return the limits of a pass under which kernels round alike.

    Parameters
    ----------
    config : SchedulerConfig
        The engine's limits.
    page_size : int
        Tokens of a shareable page, 0 for none. Prompts are cut at its multiples, so
        that a cached prefix was computed in the very cuts that would compute it now.

    Returns
    -------
    SchedulerConfig
        The same number of rows in narrower passes.
    """
    return replace(
        config,
        prefill_chunk=page_size or _CHUNK,
        prefill_budget=MAX_PASS_TOKENS,
        max_pass_tokens=MAX_PASS_TOKENS,
        max_row_tokens=MAX_ROW_TOKENS,
    )


def require_bit_identity(target: ModelBackend) -> None:
    """Test that the logits of a token do not depend on what travels with it.

    One text is scored token by token, alone, and again in rows of many widths, beside one
    other sequence and in full passes, and all logits are compared to the bit. Takes some
    sixty passes.

    Parameters
    ----------
    target : ModelBackend
        The model; its sequences are closed again.

    Raises
    ------
    ConfigError
        If one bit differs; the message says where and by how much.
    """
    generator = np.random.default_rng(1)
    chunk = target.info.page_size or _CHUNK
    total = chunk + sum(_WIDTHS)
    if total >= target.info.context_length:
        raise ConfigError(
            f"the context of {target.info.name} is {target.info.context_length}; "
            f"the test for the deterministic mode needs {total + 1}"
        )
    text = generator.integers(0, target.info.vocab_size, total).tolist()
    other = generator.integers(0, target.info.vocab_size, total).tolist()
    alone = _score(target, text, chunk, [1] * sum(_WIDTHS), [], lambda *_: [])
    # The next token of another text, its first chunk once, or as much as fits.
    for beside in (
        lambda index, _: [chunk if index == 1 else 1],
        lambda _, width: _filling(chunk, MAX_PASS_TOKENS - width),
    ):
        together = _score(target, text, chunk, _WIDTHS, other, beside)
        _compare(target, alone, together)


def _filling(chunk: int, room: int) -> list[int]:
    """Return widths of rows that fill a pass."""
    return [chunk] * (room // chunk) + [room % chunk] * (room % chunk > 0)


def _compare(
    target: ModelBackend, alone: NDArray[np.float32], together: NDArray[np.float32]
) -> None:
    """Refuse a runtime with a row that differs."""
    begin = 0
    for width in _WIDTHS:
        span = slice(begin, begin + width)
        # Bits, not numbers: NaN and -inf count as equal to themselves.
        if not np.array_equal(alone[span].view(np.uint32), together[span].view(np.uint32)):
            with np.errstate(invalid="ignore"):
                gap = float(np.nanmax(np.abs(alone[span] - together[span])))
            raise ConfigError(
                f"{target.info.name} on {target.info.runtime} cannot run deterministically here: "
                f"a row of {width} tokens beside another sequence differs from plain decoding "
                f"by up to {gap:.3g} in the logits"
            )
        begin += width


def _score(
    target: ModelBackend,
    text: Sequence[int],
    chunk: int,
    widths: Sequence[int],
    other: Sequence[int],
    beside: Callable[[int, int], list[int]],
) -> NDArray[np.float32]:
    """Return the logits of a text past its first chunk, in rows of the given widths.

    ``beside(index, width)`` says how many tokens of another text travel in each further
    row of a pass; they stand before the studied row in every other pass, else after it.
    """
    # Opened without their tokens: a prefix cache must not hide a difference.
    sequence = target.open()
    companions: list[int] = []
    parts: list[NDArray[np.float32]] = []
    try:
        start = 0
        for index, width in enumerate([chunk, *widths]):
            counts = beside(index, width)
            while len(companions) < len(counts):
                companions.append(target.open())
            rows = [
                Row(companion, other[:count], 0, 1)
                for companion, count in zip(companions, counts, strict=False)
            ]
            begin = len(rows) if index % 2 else 0
            rows.insert(begin, Row(sequence, text[start : start + width], start, width))
            logits = target.forward(FlatBatch.from_rows(rows))
            parts.append(logits[begin : begin + width].copy())
            for companion in companions[: len(counts)]:
                target.truncate(companion, 0)
            start += width
    finally:
        for opened in (sequence, *companions):
            target.close(opened)
    return np.concatenate(parts[1:])
