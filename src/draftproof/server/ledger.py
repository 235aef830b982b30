"""Counters and times of a server. Counters only grow, and rates are left to readers."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from prometheus_client import CollectorRegistry, Histogram

from draftproof.core.stats import SpecDecodeStats
from draftproof.engine import Clock, EngineCore, GenerateRequest, StepOutput
from draftproof.proposers import prediction_usage

__all__ = ["Ledger", "Totals"]

_FIRST_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_WHOLE_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
#: Weight of the newest request in the mean duration.
_NEWEST = 0.2


@dataclass(slots=True)
class Totals:
    """What was counted so far.

    Parameters
    ----------
    spec : SpecDecodeStats
        Rounds, drafts and tokens of all requests.
    clock : Clock
        Seconds per part of a step.
    num_prompt_tokens : int
        Tokens of prompts that were read to their end.
    num_predicted_accepted, num_predicted_rejected : int
        Tokens of callers' predictions.
    num_preemptions : int
        How often a request gave its pages back.
    finished : Counter of str
        Ended completions by finish reason.
    refused : Counter of int
        Refused requests by status.
    num_running : int
        Completions that have emitted a token and have not ended.
    num_waiting : int
        Completions that have not emitted yet: queued, or reading their prompt.
    """

    spec: SpecDecodeStats = field(default_factory=SpecDecodeStats)
    clock: Clock = field(default_factory=Clock)
    num_prompt_tokens: int = 0
    num_predicted_accepted: int = 0
    num_predicted_rejected: int = 0
    num_preemptions: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    refused: Counter[int] = field(default_factory=Counter)
    num_running: int = 0
    num_waiting: int = 0


@dataclass(slots=True)
class _Times:
    """When things happened to one completion, in seconds of the monotonic clock."""

    began: float
    num_prompt_tokens: int
    last: float | None = None


class Ledger:
    """Counts what the engine does.

    Parameters
    ----------
    registry : CollectorRegistry
        Where latency histograms are kept.
    clock : callable
        Seconds that never go back.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._totals = Totals()
        self._running: dict[str, _Times] = {}
        self.mean_duration_s = 1.0

        def histogram(name: str, help_text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"draftproof:{name}", help_text, buckets=buckets, registry=registry)

        self._first_token_s = histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _FIRST_S
        )
        self._inter_token_s = histogram(
            "inter_token_latency_seconds",
            "Time per token after the first chunk: the gap between chunks, shared by its tokens.",
            _TOKEN_S,
        )
        self._chunk_gap_s = histogram(
            "inter_chunk_latency_seconds", "Time between rounds that emitted tokens.", _TOKEN_S
        )
        self._whole_s = histogram(
            "e2e_request_latency_seconds", "From arrival to the end of a completion.", _WHOLE_S
        )

    def accept(self, request: GenerateRequest, began: float) -> None:
        """Note a completion that is handed to the engine, and when its request arrived."""
        with self._lock:
            self._running[request.request_id] = _Times(began, len(request.prompt_ids))

    def drop(self, request_id: str) -> None:
        """Forget a completion that has no more outputs."""
        with self._lock:
            self._running.pop(request_id, None)

    def refuse(self, status: int) -> None:
        """Count a request that got an error status."""
        with self._lock:
            self._totals.refused[status] += 1

    def observe(self, outputs: Sequence[StepOutput], core: EngineCore) -> None:
        """Fold in what a step gave; called by the thread that steps.

        Parameters
        ----------
        outputs : sequence of StepOutput
            The step's outputs.
        core : EngineCore
            Whose clock and preemptions are read.
        """
        now = self._clock()
        with self._lock:
            totals = self._totals
            totals.clock = copy.copy(core.clock)
            totals.num_preemptions = core.num_preemptions
            for output in outputs:
                if output.record is not None:
                    totals.spec.add(output.record)
                    predicted = prediction_usage([output.record])
                    totals.num_predicted_accepted += predicted.accepted_prediction_tokens
                    totals.num_predicted_rejected += predicted.rejected_prediction_tokens
                self._time(output, now)

    def totals(self) -> Totals:
        """Return the counters as they are after a whole step."""
        with self._lock:
            totals = copy.deepcopy(self._totals)
            totals.num_running = sum(times.last is not None for times in self._running.values())
            totals.num_waiting = len(self._running) - totals.num_running
            return totals

    def _time(self, output: StepOutput, now: float) -> None:
        times = self._running.get(output.request_id)
        count = len(output.tokens)
        if times is not None and count:
            if times.last is None:
                self._totals.num_prompt_tokens += times.num_prompt_tokens
                self._first_token_s.observe(now - times.began)
            else:
                gap = now - times.last
                self._chunk_gap_s.observe(gap)
                for _ in range(count):
                    self._inter_token_s.observe(gap / count)
            times.last = now
        if output.finish_reason is not None:
            self._totals.finished[output.finish_reason] += 1
            if times is not None:
                self._whole_s.observe(now - times.began)
                self.mean_duration_s += _NEWEST * (now - times.began - self.mean_duration_s)
