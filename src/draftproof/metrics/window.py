"""What happened between two readings, and the rates that follow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.core.stats import SpecDecodeStats
from draftproof.metrics.snapshot import EngineSnapshot

__all__ = ["Window", "between"]


@dataclass(frozen=True, slots=True)
class Window:
    """The change from one reading to the next.

    Rates have the definitions of `SpecDecodeStats`: pooled, and NaN without a
    denominator.

    Parameters
    ----------
    engine : str
        Name of the engine.
    seconds : float
        Length of the window; NaN after a restart, whose moment is not known.
    has_restarted : bool
        Whether counters began anew; the window then counts from the restart on.
    stats : SpecDecodeStats or None
        Counters of the window; None where the engine has none.
    counts_short_as_rejected : bool
        Whether positions have no denominators of their own, so that a draft too short
        for a position counts against it.
    num_generated, num_prompt : int or None
        Tokens of the window.
    gauges : EngineSnapshot
        The later reading, for its gauges.
    """

    engine: str
    seconds: float
    has_restarted: bool
    stats: SpecDecodeStats | None
    counts_short_as_rejected: bool
    num_generated: int | None
    num_prompt: int | None
    gauges: EngineSnapshot

    @property
    def tokens_per_s(self) -> float:
        """Committed tokens per second; the engine's own gauge where it counts none."""
        if self.num_generated is not None:
            return self.num_generated / self.seconds if self.seconds > 0 else math.nan
        gauge = self.gauges.tokens_per_s
        return math.nan if gauge is None else gauge

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; the engine's own gauge where it counts none."""
        if self.stats is not None:
            return self.stats.acceptance_rate
        gauge = self.gauges.acceptance_rate
        return math.nan if gauge is None else gauge

    @property
    def acceptance_length(self) -> float:
        """1 + accepted tokens per draft; the engine's own gauge where it counts none."""
        if self.stats is not None:
            return self.stats.mean_acceptance_length
        gauge = self.gauges.acceptance_length
        return math.nan if gauge is None else gauge

    @property
    def rate_per_pos(self) -> list[float]:
        """Kept over drafted at each offset."""
        return [] if self.stats is None else self.stats.acceptance_rate_per_pos


def between(before: EngineSnapshot, after: EngineSnapshot) -> Window:
    """Return what happened between two readings of one engine.

    A counter that fell, or another start of the process, says that the engine was
    restarted; what the later reading holds has then happened since.

    Parameters
    ----------
    before, after : EngineSnapshot
        The readings, in order.

    Returns
    -------
    Window
        The change.
    """
    restarted = _has_restarted(before, after)
    origin = EngineSnapshot(after.engine, after.at_s) if restarted else before

    def grown(new: int | None, old: int | None) -> int | None:
        return None if new is None else new - (old or 0)

    stats, is_crude = _stats(origin, after)
    return Window(
        after.engine,
        math.nan if restarted else after.at_s - before.at_s,
        restarted,
        stats,
        is_crude,
        grown(after.num_generated, origin.num_generated),
        grown(after.num_prompt, origin.num_prompt),
        after,
    )


def _stats(origin: EngineSnapshot, after: EngineSnapshot) -> tuple[SpecDecodeStats | None, bool]:
    if after.num_draft_tokens is None or after.num_accepted_tokens is None:
        return None, False
    drafts = (after.num_drafts or 0) - (origin.num_drafts or 0)
    kept = _less(after.num_accepted_tokens_per_pos, origin.num_accepted_tokens_per_pos)
    drafted = _less(after.num_drafted_per_pos, origin.num_drafted_per_pos)
    is_crude = bool(kept) and not drafted
    if is_crude:
        drafted = [drafts] * len(kept)
    places = max(len(kept), len(drafted))
    kept += [0] * (places - len(kept))
    drafted += [0] * (places - len(drafted))
    drafted_tokens = after.num_draft_tokens - (origin.num_draft_tokens or 0)
    stats = SpecDecodeStats(
        num_drafts=drafts,
        num_draft_tokens=drafted_tokens,
        num_accepted_tokens=after.num_accepted_tokens - (origin.num_accepted_tokens or 0),
        num_accepted_tokens_per_pos=kept,
        num_drafted_per_pos=drafted,
    )
    return stats, is_crude and drafted_tokens != drafts * len(kept)


def _has_restarted(before: EngineSnapshot, after: EngineSnapshot) -> bool:
    if before.engine != after.engine:
        return True
    starts = [each.started_s for each in (before, after) if each.started_s is not None]
    if len(starts) == 2 and abs(starts[0] - starts[1]) > 1.0:
        # One that moved by less is the same start, told with other digits.
        return True
    pairs = [
        (before.num_drafts, after.num_drafts),
        (before.num_draft_tokens, after.num_draft_tokens),
        (before.num_accepted_tokens, after.num_accepted_tokens),
        (before.num_generated, after.num_generated),
        (before.num_prompt, after.num_prompt),
    ]
    return any((old or 0) > (new or 0) for old, new in pairs)


def _less(new: Sequence[int], old: Sequence[int]) -> list[int]:
    padded = [*old, *[0] * (len(new) - len(old))]
    return [a - b for a, b in zip(new, padded, strict=False)]
