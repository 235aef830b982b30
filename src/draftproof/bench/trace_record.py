"""What a trace file holds: values only, no files.

A file is JSON, one object per line, of three kinds: a ``run`` begins each run, a
``round`` describes one round of one request, a ``request`` closes a request. Lines of
other kinds, and unknown fields, are for later versions and are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from draftproof.bench.run_record import Environment
from draftproof.core.trace import RoundTrace

__all__ = ["TRACE_FORMAT", "Trace", "TraceHeader", "TraceRun", "TracedRequest", "TracedRound"]

#: Version of the file format. It rises when a field changes its meaning or goes.
TRACE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """How a run was made.

    Parameters
    ----------
    format : int
        Version of the file format.
    environment : Environment
        Where, with which versions, and by which command. Texts in the command are
        replaced by ``...`` unless the file holds text.
    target : mapping of str to Any
        The model: its name, runtime, precision and sizes.
    settings : mapping of str to Any
        How the engine was set up: drafters, speculative configuration, limits.
    holds_text : bool
        Whether prompts and outputs are in the file as text.
    """

    format: int
    environment: Environment
    target: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    holds_text: bool = False


@dataclass(frozen=True, slots=True)
class TracedRound:
    """One round, and when it was over.

    Parameters
    ----------
    request : str
        Id of its request, unique among the requests that run at one time.
    at_s : float
        Seconds since the run began.
    trace : RoundTrace
        The round.
    """

    request: str
    at_s: float
    trace: RoundTrace


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """A request that has ended.

    Parameters
    ----------
    request : str
        Its id.
    begun_s, at_s : float
        When it was handed in and when it ended, in seconds since the run began.
    policy : mapping of str to Any
        The sampling parameters that differ from plain sampling at temperature 1.
    seed, stream : int
        With them the same text comes again.
    rule, exactness : str
        As in its result.
    num_prompt_tokens, num_tokens : int
        Lengths.
    finish_reason : str
        Why it ended.
    stats : mapping of str to Any
        Counters of its rounds.
    kappa : int or None
        Most drafts per round; None where the engine says.
    notes : tuple of str
        What the user was told.
    error : str
        Why it failed; empty when it did not.
    prompt, text : str or None
        Prompt and output, where the file holds text.
    """

    request: str
    begun_s: float
    at_s: float
    policy: Mapping[str, Any]
    seed: int
    stream: int
    rule: str
    exactness: str
    num_prompt_tokens: int
    num_tokens: int
    finish_reason: str
    stats: Mapping[str, Any]
    kappa: int | None = None
    notes: tuple[str, ...] = ()
    error: str = ""
    prompt: str | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class TraceRun:
    """One run of a file.

    Parameters
    ----------
    header : TraceHeader
        How it was made.
    rounds : tuple of TracedRound
        In the order in which they ended.
    requests : tuple of TracedRequest
        Those that ended; a run that was interrupted has rounds of others too.
    """

    header: TraceHeader
    rounds: tuple[TracedRound, ...] = ()
    requests: tuple[TracedRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file.

    Parameters
    ----------
    runs : tuple of TraceRun
        At least one.
    is_torn : bool
        Whether the last line broke off, as when a process is killed.
    """

    runs: tuple[TraceRun, ...]
    is_torn: bool = False

    def by_request(self) -> Iterator[tuple[str, tuple[RoundTrace, ...]]]:
        """Yield the rounds of each request, in order; ids may repeat between runs."""
        for run in self.runs:
            held: dict[str, list[RoundTrace]] = {}
            for each in run.rounds:
                # An id may be used again once its request has ended.
                if each.trace.round == 0 and each.request in held:
                    yield each.request, tuple(held.pop(each.request))
                held.setdefault(each.request, []).append(each.trace)
            for name, rounds in held.items():
                yield name, tuple(rounds)
