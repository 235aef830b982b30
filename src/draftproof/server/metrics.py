"""Prometheus metrics, under the names that serving engines use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from draftproof.core.protocols import ModelBackend
from draftproof.server.ledger import Ledger, Totals

__all__ = ["CONTENT_TYPE_LATEST", "Metrics", "cache_usage"]

_PREFIX = "draftproof:"


def cache_usage(target: ModelBackend) -> Any:
    """Return where a model's KV pages are, None for models that do not say.

    Parameters
    ----------
    target : ModelBackend
        The model.

    Returns
    -------
    CacheUsage or None
        Counts of pages.
    """
    return getattr(target, "usage", None)


class Metrics:
    """Renders the ledger of a server.

    Parameters
    ----------
    registry : CollectorRegistry
        Of this server alone; it holds the ledger's histograms as well.
    ledger : Ledger
        The counters.
    target : ModelBackend
        Whose cache is reported.
    worker : Worker
        Whose health is reported.
    """

    def __init__(
        self, registry: CollectorRegistry, ledger: Ledger, target: ModelBackend, worker: Any
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._target = target
        self._worker = worker
        registry.register(self)

    def render(self) -> bytes:
        """Return the metrics as text."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Return nothing: names are not checked before the first collection."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics but the histograms."""
        totals = self._ledger.totals()
        yield from _speculation(totals)
        yield from _tokens(totals)
        yield from _time(totals)
        yield from self._load(totals)

    def _load(self, totals: Totals) -> Iterator[Metric]:
        health = self._worker.health()
        yield _counter("step_failures", "Steps that raised.", health.num_failed_steps)
        yield _gauge("healthy", "Whether /health says ok.", float(health.status == "ok"))
        yield _gauge("num_requests_running", "Completions that emit.", totals.num_running)
        yield _gauge(
            "num_requests_waiting",
            "Completions without a token yet: queued, or reading their prompt.",
            totals.num_waiting,
        )
        usage = cache_usage(self._target)
        if usage is None:
            return
        yield _gauge(
            "kv_cache_usage_perc",
            "Share of KV pages that open sequences hold, 0 to 1.",
            usage.held_pages / usage.total_pages,
        )
        pages = GaugeMetricFamily(_PREFIX + "kv_cache_pages", "KV pages.", labels=["state"])
        for state in ("held", "free", "evictable"):
            pages.add_metric([state], getattr(usage, f"{state}_pages"))
        yield pages
        yield _gauge("kv_cache_sequences", "Open sequences.", usage.num_sequences)


def _speculation(totals: Totals) -> Iterator[Metric]:
    spec = totals.spec
    yield _counter("spec_decode_num_drafts", "Rounds that verified drafts.", spec.num_drafts)
    yield _counter("spec_decode_num_draft_tokens", "Drafted tokens.", spec.num_draft_tokens)
    yield _counter(
        "spec_decode_num_accepted_tokens", "Drafts that were kept.", spec.num_accepted_tokens
    )
    for name, help_text, counts in (
        ("accepted", "Kept drafts by offset.", spec.num_accepted_tokens_per_pos),
        ("drafted", "Drafts with a token at the offset.", spec.num_drafted_per_pos),
        ("reached", "Of those, all earlier tokens were kept.", spec.num_reached_per_pos),
    ):
        family = CounterMetricFamily(
            f"{_PREFIX}spec_decode_num_{name}_tokens_per_pos", help_text, labels=["position"]
        )
        for position, count in enumerate(counts):
            family.add_metric([str(position)], count)
        yield family
    for name, help_text, by_drafter in (
        ("draft", "Drafted tokens by who made them.", spec.num_draft_tokens_per_drafter),
        ("accepted", "Drafts that were kept, by who.", spec.num_accepted_tokens_per_drafter),
    ):
        family = CounterMetricFamily(
            f"{_PREFIX}spec_decode_num_{name}_tokens_per_drafter", help_text, labels=["drafter"]
        )
        for drafter, count in sorted(by_drafter.items()):
            family.add_metric([drafter], count)
        yield family
    predicted = CounterMetricFamily(
        _PREFIX + "prediction_tokens", "Tokens of callers' predictions.", labels=["verdict"]
    )
    predicted.add_metric(["accepted"], totals.num_predicted_accepted)
    predicted.add_metric(["rejected"], totals.num_predicted_rejected)
    yield predicted


def _tokens(totals: Totals) -> Iterator[Metric]:
    yield _counter("prompt_tokens", "Tokens of prompts.", totals.num_prompt_tokens)
    yield _counter("generation_tokens", "Committed tokens.", totals.spec.num_emitted_tokens)
    sources = CounterMetricFamily(
        _PREFIX + "generation_tokens_by_source", "Committed tokens by origin.", labels=["source"]
    )
    for source, count in totals.spec.num_emitted_per_source.items():
        sources.add_metric([source], count)
    yield sources
    finished = CounterMetricFamily(
        _PREFIX + "request_success", "Ended completions.", labels=["finished_reason"]
    )
    for reason in ("stop", "length", "abort", "error"):
        finished.add_metric([reason], totals.finished[reason])
    yield finished
    refused = CounterMetricFamily(
        _PREFIX + "requests_refused", "Requests with an error status.", labels=["status"]
    )
    for status, count in sorted(totals.refused.items()):
        refused.add_metric([str(status)], count)
    yield refused


def _time(totals: Totals) -> Iterator[Metric]:
    clock = totals.clock
    parts = CounterMetricFamily(
        _PREFIX + "step_seconds", "Seconds of the engine's steps by part.", labels=["part"]
    )
    for part in ("draft", "target", "verify", "policy", "other"):
        parts.add_metric([part], getattr(clock, f"{part}_s"))
    yield parts
    yield _counter("passes", "Passes of the target.", clock.num_passes)
    yield _counter("pass_tokens", "Tokens in those passes.", clock.num_pass_tokens)
    yield _counter("num_preemptions", "Requests that gave pages back.", totals.num_preemptions)
    yield _counter(
        "drafter_pauses",
        "Times a drafter that stalled or failed was left alone for some rounds.",
        clock.num_drafter_pauses,
    )


def _counter(name: str, help_text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, help_text, value=value)


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, help_text, value=value)
