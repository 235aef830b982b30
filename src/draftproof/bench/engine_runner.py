"""Runs loads on an engine in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from draftproof.bench.measured import Acceptance
from draftproof.bench.run_record import Arm, Condition
from draftproof.bench.streams import Ask, Load, Outcome, Stream
from draftproof.core.stats import SpecDecodeStats
from draftproof.engine import Engine, StepOutput
from draftproof.errors import ConfigError

__all__ = ["EngineRunner", "Runner"]


class Runner(Protocol):
    """Whatever can decode a load in one of several ways."""

    def prime(self, condition: Condition, asks: Sequence[Ask]) -> None:
        """Let prompts be read once, where arms share a prefix cache."""
        ...

    def run(self, condition: Condition, arm: Arm, load: Load, max_tokens: int) -> Outcome:
        """Decode a load."""
        ...


@dataclass(slots=True)
class EngineRunner:
    """Drives the steps of an engine that does nothing else.

    Parameters
    ----------
    engine : Engine
        The engine.
    is_chat : bool
        Whether prompts go through the chat template.
    ignore_eos : bool, default False
        Whether texts go on past their end.
    clock : callable
        Seconds, rising.
    sleep : callable
        Waits for the next arrival.
    """

    engine: Engine
    is_chat: bool
    ignore_eos: bool = False
    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep

    def prime(self, condition: Condition, asks: Sequence[Ask]) -> None:
        """Read prompts once, so that every arm finds their pages cached.

        Parameters
        ----------
        condition : Condition
            The condition.
        asks : sequence of Ask
            The prompts.
        """
        plain = Arm("plain", 0, is_plain=True)
        load = Load(tuple(asks), concurrency=condition.concurrency or 1)
        self.run(condition, plain, load, 1)

    def run(self, condition: Condition, arm: Arm, load: Load, max_tokens: int) -> Outcome:
        """Decode a load.

        Parameters
        ----------
        condition : Condition
            The condition.
        arm : Arm
            How to decode.
        load : Load
            What, and when.
        max_tokens : int
            Most tokens per request.

        Returns
        -------
        Outcome
            What came back.
        """
        options = {
            "max_tokens": max_tokens,
            "temperature": condition.temperature,
            "ignore_eos": self.ignore_eos,
            "num_speculative_tokens": arm.kappa,
        }
        turn = _Turn(self, load, options)
        try:
            while turn.is_unfinished:
                turn.submit_due()
                turn.step()
            wall_s = turn.now()
        finally:
            turn.end()
        stats = turn.stats
        counters = Acceptance(
            stats.num_drafts,
            stats.num_draft_tokens,
            stats.num_accepted_tokens,
            tuple(stats.num_accepted_tokens_per_pos),
            tuple(stats.num_drafted_per_pos),
        )
        return Outcome(tuple(turn.counted), wall_s, counters, "engine")


@dataclass(slots=True)
class _Turn:
    """One load on its way through the engine."""

    runner: EngineRunner
    load: Load
    options: dict[str, Any]
    counted: list[Stream] = field(default_factory=list)
    running: dict[str, Stream] = field(default_factory=dict)
    stats: SpecDecodeStats = field(default_factory=SpecDecodeStats)
    num_left: int = 0
    _begin: float = 0.0
    _next_filler: int = 0

    def __post_init__(self) -> None:
        self.num_left = len(self.load.asks)
        self._begin = self.runner.clock()

    @property
    def is_unfinished(self) -> bool:
        return self.num_left > 0

    def now(self) -> float:
        return self.runner.clock() - self._begin

    def submit_due(self) -> None:
        """Send what is due; wait where nothing runs and nothing is due yet."""
        load = self.load
        if load.concurrency is None:
            if not self.running and len(self.counted) < len(load.asks):
                wait = load.arrivals[len(self.counted)] - self.now()
                if wait > 0:
                    self.runner.sleep(wait)
            while (
                len(self.counted) < len(load.asks)
                and load.arrivals[len(self.counted)] <= self.now()
            ):
                self._submit(load.asks[len(self.counted)], load.arrivals[len(self.counted)])
            return
        while len(self.running) < load.concurrency:
            if len(self.counted) < len(load.asks):
                self._submit(load.asks[len(self.counted)], None)
            elif self._next_filler < len(load.fillers):
                self._submit(load.fillers[self._next_filler], None, is_counted=False)
                self._next_filler += 1
            else:
                return

    def step(self) -> None:
        """Run one step and note what came."""
        outputs = self.runner.engine.core.step()
        at_s = self.now()
        for output in outputs:
            self._hear(output, at_s)

    def end(self) -> None:
        """Abort what still runs, so that the engine is idle."""
        core = self.runner.engine.core
        for request_id in self.running:
            core.abort(request_id)
        while core.has_work:
            core.step()

    def _submit(self, ask: Ask, scheduled_s: float | None, *, is_counted: bool = True) -> None:
        engine = self.runner.engine
        prompt = ask.messages if self.runner.is_chat else ask.text
        request = engine.request(prompt, seed=ask.seed, **self.options)
        sent_s = self.now()
        due_s = sent_s if scheduled_s is None else scheduled_s
        stream = Stream(ask, due_s, sent_s, is_counted)
        stream.num_prompt_tokens = len(request.prompt_ids)
        self.running[engine.core.submit(request)] = stream
        if is_counted:
            self.counted.append(stream)

    def _hear(self, output: StepOutput, at_s: float) -> None:
        stream = self.running.get(output.request_id)
        if stream is None:
            raise ConfigError("the engine runs requests of others; expected an idle one")
        stream.add(at_s, len(output.tokens))
        if output.finish_reason is None:
            return
        del self.running[output.request_id]
        stream.finish_reason = output.finish_reason
        stream.error = "" if output.error is None else str(output.error)
        if not stream.is_counted:
            return
        self.num_left -= 1
        if output.result is not None:
            own = output.result.stats
            self.stats = self.stats.merge(own)
            rate = own.acceptance_rate
            stream.acceptance_rate = None if math.isnan(rate) else rate
