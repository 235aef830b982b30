"""Readings over time: history, and what is worth a warning."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from draftproof.metrics.snapshot import EngineSnapshot
from draftproof.metrics.window import Window, between

__all__ = ["Monitor", "Sight"]

#: Readings that make up "now", and the fewest that "before" must have.
_RECENT = 5
#: An acceptance rate that fell by this share, and by this many standard errors, is told.
_FALL = 0.2
_STANDARD_ERRORS = 3.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is to be seen after a reading.

    Parameters
    ----------
    window : Window
        Since the reading before.
    acceptance_rates, acceptance_lengths, paces, batches : tuple of float
        Of the last windows, oldest first; NaN where nothing is known.
    warnings : tuple of str
        What is wrong, one sentence each.
    num_restarts : int
        How often the engine was restarted meanwhile.
    """

    window: Window
    acceptance_rates: tuple[float, ...]
    acceptance_lengths: tuple[float, ...]
    paces: tuple[float, ...]
    batches: tuple[float, ...]
    warnings: tuple[str, ...]
    num_restarts: int


@dataclass(slots=True)
class Monitor:
    """Folds readings of one engine.

    Parameters
    ----------
    crossing : float, optional
        The batch from which plain decoding is as fast.
    length : int, default 60
        Windows that are kept.
    """

    crossing: float | None = None
    length: int = 60
    num_restarts: int = 0
    _last: EngineSnapshot | None = None
    _windows: deque[Window] = field(default_factory=deque)

    def add(self, snapshot: EngineSnapshot) -> Sight | None:
        """Take a reading.

        Parameters
        ----------
        snapshot : EngineSnapshot
            The reading.

        Returns
        -------
        Sight or None
            What happened since the one before; None after the first.
        """
        before, self._last = self._last, snapshot
        if before is None:
            return None
        window = between(before, snapshot)
        self.num_restarts += window.has_restarted
        self._windows.append(window)
        if len(self._windows) > self.length:
            self._windows.popleft()
        windows = tuple(self._windows)
        return Sight(
            window,
            tuple(each.acceptance_rate for each in windows),
            tuple(each.acceptance_length for each in windows),
            tuple(each.tokens_per_s for each in windows),
            tuple(_or_nan(each.gauges.num_running) for each in windows),
            tuple(self._warnings(windows)),
            self.num_restarts,
        )

    def _warnings(self, windows: tuple[Window, ...]) -> list[str]:
        warnings = []
        if windows[-1].has_restarted:
            warnings.append("the engine was restarted; counters began anew")
        fallen = _fall(windows)
        if fallen is not None:
            warnings.append(
                f"acceptance fell from {fallen[0]:.2f} to {fallen[1]:.2f} over the last "
                f"{_RECENT} readings"
            )
        batch = windows[-1].gauges.num_running
        recent = [each.gauges.num_running or 0 for each in windows[-_RECENT:]]
        if self.crossing is not None and batch is not None:
            middle = sorted(recent)[len(recent) // 2]
            if middle >= self.crossing:
                warnings.append(
                    f"{middle} requests run; from {self.crossing:g} on plain decoding is as fast"
                )
        return warnings


def _fall(windows: tuple[Window, ...]) -> tuple[float, float] | None:
    """Return the acceptance rate before and now, if it fell beyond chance.

    Drafts of one round live and die together, so a round counts as one trial.
    """
    if len(windows) < 2 * _RECENT:
        return None
    sums = []
    for part in (windows[:-_RECENT], windows[-_RECENT:]):
        held = [each.stats for each in part if each.stats is not None]
        drafts = sum(each.num_drafts for each in held)
        drafted = sum(each.num_draft_tokens for each in held)
        accepted = sum(each.num_accepted_tokens for each in held)
        if not drafts or not drafted:
            return None
        sums.append((accepted / drafted, drafts))
    (before, num_before), (now, num_now) = sums
    error = math.sqrt(before * (1.0 - before) * (1.0 / num_before + 1.0 / num_now))
    if now >= (1.0 - _FALL) * before or before - now < _STANDARD_ERRORS * error:
        return None
    return before, now


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
