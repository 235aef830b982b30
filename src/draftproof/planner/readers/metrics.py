"""Metrics pages in the text format of Prometheus."""

from __future__ import annotations

from collections import defaultdict

from draftproof.errors import ConfigError
from draftproof.metrics.page import Samples, parse_metrics
from draftproof.planner.counts import AcceptanceCounts, AcceptanceData, PooledRates

__all__ = ["from_metrics"]


def from_metrics(text: str, source: str) -> AcceptanceData:
    """Read the acceptance counters of a metrics page.

    Parameters
    ----------
    text : str
        The page, of vLLM, of this package's server or a recent one of llama.cpp (same
        names), of SGLang, or of an older llama.cpp.
    source : str
        Name for people.

    Returns
    -------
    AcceptanceData
        Counters since the server started, summed over its labels.

    Raises
    ------
    ConfigError
        If the page has no counters of speculative decoding.
    """
    samples = parse_metrics(text)
    for prefix in ("vllm", "draftproof", "llamacpp"):
        if f"{prefix}:spec_decode_num_drafts_total" in samples:
            return _counters(samples, prefix, source)
    if "sglang:spec_accept_length" in samples:
        return _sglang(samples, source)
    for name in samples:
        if name.startswith("llamacpp:") and "draft" in name and "accept" in name:
            return _llama_cpp(samples, source)
    engine = next(iter(samples), "nothing").split(":")[0]
    raise ConfigError(
        f"{source}: a metrics page of {engine!r} without counters of speculative decoding"
    )


def _total(samples: Samples, name: str) -> int:
    return round(sum(value for _labels, value in samples.get(name, [])))


def _counters(samples: Samples, prefix: str, source: str) -> AcceptanceData:
    stem = f"{prefix}:spec_decode_num"
    drafts = _total(samples, f"{stem}_drafts_total")
    drafted = _total(samples, f"{stem}_draft_tokens_total")
    accepted = _total(samples, f"{stem}_accepted_tokens_total")
    if not drafts:
        raise ConfigError(f"{source}: {prefix} has drafted nothing yet, so nothing is known")
    by_place: dict[int, float] = defaultdict(float)
    for labels, value in samples.get(f"{stem}_accepted_tokens_per_pos_total", []):
        by_place[int(labels.get("position", "0"))] += value
    label = f"{source} (metrics of {prefix})"
    if not by_place:
        pooled = PooledRates(accepted / drafts, round(drafted / drafts), drafts)
        return AcceptanceData(label, None, pooled)
    kept = [min(round(by_place[place]), drafts) for place in range(max(by_place) + 1)]
    notes: tuple[str, ...] = ()
    if drafted != drafts * len(kept):
        notes = (
            f"drafts hold {drafted / drafts:.2f} of {len(kept)} tokens on average; positions "
            "count short drafts as rejected, so later rates are too low",
        )
    return AcceptanceData(label, AcceptanceCounts.from_fixed_kappa(drafts, kept), None, {}, notes)


def _mean(samples: Samples, name: str) -> float:
    values = [value for _labels, value in samples.get(name, [])]
    return sum(values) / len(values) if values else 0.0


def _sglang(samples: Samples, source: str) -> AcceptanceData:
    length = _mean(samples, "sglang:spec_accept_length")
    if length < 1.0:
        raise ConfigError(f"{source}: spec_accept_length is {length}; nothing was verified yet")
    steps = round(_mean(samples, "sglang:spec_num_steps"))
    rate = _mean(samples, "sglang:spec_accept_rate")
    if not steps and rate > 0:
        steps = round((length - 1) / rate) or 1
    pooled = PooledRates(length - 1.0, steps, _total(samples, "sglang:spec_verify_calls_total"))
    notes = ("gauges of the last interval, averaged over the ranks",)
    if len(samples["sglang:spec_accept_length"]) == 1:
        notes = ("a gauge of the last interval",)
    return AcceptanceData(f"{source} (metrics of SGLang)", None, pooled, {}, notes)


def _llama_cpp(samples: Samples, source: str) -> AcceptanceData:
    names = [name for name in samples if name.startswith("llamacpp:") and "draft" in name]
    accepted = sum(_total(samples, name) for name in names if "accept" in name)
    drafted = sum(_total(samples, name) for name in names if "accept" not in name)
    if not drafted:
        raise ConfigError(f"{source}: llama.cpp has drafted nothing yet, so nothing is known")
    raise ConfigError(
        f"{source}: llama.cpp counts {accepted} of {drafted} tokens but not the drafts they came "
        "in; expected its log, whose statistics lines hold '#gen drafts'"
    )
