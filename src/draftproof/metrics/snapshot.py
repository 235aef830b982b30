"""One reading of an engine's metrics page, under one set of names."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from draftproof.errors import ConfigError
from draftproof.metrics.page import Samples, parse_metrics

__all__ = ["EngineSnapshot", "engine_of", "read_snapshot"]

#: What begins the names of an engine's metrics, and what people call it.
_ENGINES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "draftproof": "draftproof",
}
#: Where engines differ; what they share is read by one name. The first that is there counts.
_RUNNING = ("num_requests_running", "num_running_reqs", "requests_processing")
_WAITING = ("num_requests_waiting", "num_queue_reqs", "requests_deferred")
_KV_USAGE = (
    "kv_cache_usage_perc",
    "gpu_cache_usage_perc",
    "token_usage",
    "kv_cache_usage_ratio",
)
_GENERATED = ("generation_tokens_total", "tokens_predicted_total")


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Counters since the engine started, and gauges of this moment; None is not told.

    Parameters
    ----------
    engine : str
        ``"vLLM"``, ``"SGLang"``, ``"llama.cpp"`` or ``"draftproof"``.
    at_s : float
        When it was read, on the reader's clock.
    num_drafts, num_draft_tokens, num_accepted_tokens : int or None
        Rounds that verified drafts; drafted tokens; those that were kept.
    num_accepted_tokens_per_pos : tuple of int
        Kept tokens by offset.
    num_drafted_per_pos : tuple of int
        Drafts long enough for each offset; empty where an engine does not tell.
    num_generated, num_prompt : int or None
        Committed tokens and tokens of prompts.
    num_running, num_waiting : int or None
        Requests that decode and that wait.
    kv_usage : float or None
        Share of the KV cache in use, 0 to 1.
    acceptance_length, acceptance_rate : float or None
        Gauges of engines without counters, averaged over their ranks.
    tokens_per_s : float or None
        A gauge of the pace, where there is one.
    started_s : float or None
        When the process started, in seconds since 1970.
    """

    engine: str
    at_s: float
    num_drafts: int | None = None
    num_draft_tokens: int | None = None
    num_accepted_tokens: int | None = None
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    num_drafted_per_pos: tuple[int, ...] = ()
    num_generated: int | None = None
    num_prompt: int | None = None
    num_running: int | None = None
    num_waiting: int | None = None
    kv_usage: float | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    tokens_per_s: float | None = None
    started_s: float | None = None

    @property
    def speculates(self) -> bool:
        """Whether the page tells anything about speculation."""
        return self.num_drafts is not None or self.acceptance_length is not None


def engine_of(samples: Samples) -> str | None:
    """Return the prefix of the engine whose page this is, None where it is unknown.

    Parameters
    ----------
    samples : mapping
        The page.

    Returns
    -------
    str or None
        For example ``"vllm"``.
    """
    prefixes = {name.split(":")[0] for name in samples if ":" in name}
    return next((prefix for prefix in _ENGINES if prefix in prefixes), None)


def read_snapshot(text: str, at_s: float, source: str = "the page") -> EngineSnapshot:
    """Read a metrics page.

    Parameters
    ----------
    text : str
        The page.
    at_s : float
        When it was fetched.
    source : str
        Its name in errors.

    Returns
    -------
    EngineSnapshot
        What it says; counters are summed over labels.

    Raises
    ------
    ConfigError
        If it is the page of no engine that is known.
    """
    samples = parse_metrics(text)
    prefix = engine_of(samples)
    if prefix is None:
        known = ", ".join(_ENGINES.values())
        raise ConfigError(f"{source}: no metrics of a known engine; expected those of {known}")
    page = _Page(samples, prefix)
    stem = "spec_decode_num_"
    return EngineSnapshot(
        engine=_ENGINES[prefix],
        at_s=at_s,
        num_drafts=page.count(f"{stem}drafts_total", "spec_verify_calls_total"),
        num_draft_tokens=page.count(f"{stem}draft_tokens_total"),
        num_accepted_tokens=page.count(f"{stem}accepted_tokens_total"),
        num_accepted_tokens_per_pos=page.by_place(f"{stem}accepted_tokens_per_pos_total"),
        num_drafted_per_pos=page.by_place(f"{stem}drafted_tokens_per_pos_total"),
        num_generated=page.count(*_GENERATED),
        num_prompt=page.count("prompt_tokens_total"),
        num_running=page.count(*_RUNNING),
        num_waiting=page.count(*_WAITING),
        kv_usage=page.mean(*_KV_USAGE),
        acceptance_length=page.mean("spec_accept_length"),
        acceptance_rate=page.mean("spec_accept_rate"),
        tokens_per_s=page.total("gen_throughput"),
        started_s=_only(samples, "process_start_time_seconds"),
    )


@dataclass(frozen=True, slots=True)
class _Page:
    """Looks names up under an engine's prefix."""

    samples: Samples
    prefix: str

    def total(self, *names: str) -> float | None:
        """Sum the first of some metrics that is there, over its labels."""
        values = self._values(names)
        return sum(values) if values else None

    def count(self, *names: str) -> int | None:
        total = self.total(*names)
        return None if total is None else round(total)

    def mean(self, *names: str) -> float | None:
        values = self._values(names)
        return sum(values) / len(values) if values else None

    def by_place(self, name: str) -> tuple[int, ...]:
        counts: dict[int, float] = defaultdict(float)
        for labels, value in self.samples.get(f"{self.prefix}:{name}", []):
            place = labels.get("position", "")
            if place.isdecimal():
                counts[int(place)] += value
        return tuple(round(counts[place]) for place in range(max(counts, default=-1) + 1))

    def _values(self, names: Sequence[str]) -> list[float]:
        for name in names:
            held = self.samples.get(f"{self.prefix}:{name}", [])
            values = [value for _labels, value in held if math.isfinite(value)]
            if values:
                return values
        return []


def _only(samples: Samples, name: str) -> float | None:
    held = samples.get(name, [])
    return held[0][1] if len(held) == 1 else None
