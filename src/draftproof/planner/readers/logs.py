"""Log lines of vLLM, SGLang and llama.cpp."""

from __future__ import annotations

import re
from typing import Final

from draftproof.errors import ConfigError
from draftproof.planner.counts import AcceptanceCounts, AcceptanceData, PooledRates

__all__ = ["from_log"]

_VLLM: Final = re.compile(
    r"Mean acceptance length: (?P<length>[\d.]+).*?Accepted: (?P<accepted>\d+) tokens, "
    r"Drafted: (?P<drafted>\d+) tokens, Per-position acceptance rate: (?P<rates>[\d., ]+\d)"
)
_SGLANG: Final = re.compile(
    r"Decode batch.*?#running-req: (?P<rows>\d+).*?accept len: (?P<length>[\d.]+)"
    r"(?:.*?accept rate: (?P<rate>[\d.]+))?"
)
_LLAMA_STATISTICS: Final = re.compile(
    r"statistics (?P<kind>[\w-]+):.*?#gen drafts = (?P<drafts>\d+).*?"
    r"#gen tokens = (?P<drafted>\d+), #acc tokens = (?P<accepted>\d+)"
)
_LLAMA_RATE: Final = re.compile(
    r"draft acceptance rate = [\d.]+ \(\s*(?P<accepted>\d+) accepted /\s*(?P<drafted>\d+)"
)


def from_log(text: str, source: str) -> AcceptanceData:
    """Read the acceptance figures of an engine's log.

    Parameters
    ----------
    text : str
        The log.
    source : str
        Name for people.

    Returns
    -------
    AcceptanceData
        Pooled over all lines.

    Raises
    ------
    ConfigError
        If no line is known.
    """
    if found := list(_VLLM.finditer(text)):
        return _vllm(found, source)
    if found := list(_SGLANG.finditer(text)):
        return _sglang(found, source)
    if found := list(_LLAMA_STATISTICS.finditer(text)):
        return _llama(found, source)
    if _LLAMA_RATE.search(text):
        raise ConfigError(
            f"{source}: llama.cpp's acceptance rate alone does not say how long drafts were; "
            "expected its statistics lines too ('#gen drafts')"
        )
    raise ConfigError(
        f"{source}: no acceptance found; expected our traces, records of aiperf, or metrics or "
        "logs of vLLM, SGLang or llama.cpp"
    )


def _vllm(lines: list[re.Match[str]], source: str) -> AcceptanceData:
    """Pool interval lines: rates of an interval weigh by its drafts."""
    counts = AcceptanceCounts()
    uneven = False
    for line in lines:
        rates = [float(rate) for rate in line["rates"].replace(" ", "").split(",") if rate]
        drafted = int(line["drafted"])
        drafts = round(drafted / len(rates))
        uneven |= drafts * len(rates) != drafted
        if drafts:
            kept = [min(round(rate * drafts), drafts) for rate in rates]
            kept = [min(kept[: place + 1]) for place in range(len(kept))]
            counts = counts.merge(AcceptanceCounts.from_fixed_kappa(drafts, kept))
    notes = ["counts were rebuilt from rates that the log rounds to three digits"]
    if uneven:
        notes.append("some drafts were shorter than the longest; later rates are too low")
    return AcceptanceData(f"{source} (log of vLLM)", counts, None, {}, tuple(notes))


def _sglang(lines: list[re.Match[str]], source: str) -> AcceptanceData:
    weights = [int(line["rows"]) for line in lines]
    total = sum(weights) or 1
    length = sum(float(line["length"]) * w for line, w in zip(lines, weights, strict=True)) / total
    rates = [(float(line["rate"]), float(line["length"])) for line in lines if line["rate"]]
    kappa = 0
    if rates:
        # Some versions divide by the verified tokens, which are one more than the drafts.
        guesses = sorted((each - 1) / rate for rate, each in rates if rate > 0)
        kappa = round(guesses[len(guesses) // 2]) if guesses else 0
    notes = ("lines of the log weigh by their running requests; their counts are not known",)
    pooled = PooledRates(max(length - 1.0, 0.0), kappa)
    return AcceptanceData(f"{source} (log of SGLang)", None, pooled, {}, notes)


def _llama(lines: list[re.Match[str]], source: str) -> AcceptanceData:
    """Take the last line of each drafter: they count since the start."""
    last = {line["kind"]: line for line in lines}
    drafts = sum(int(line["drafts"]) for line in last.values())
    drafted = sum(int(line["drafted"]) for line in last.values())
    accepted = sum(int(line["accepted"]) for line in last.values())
    if not drafts:
        raise ConfigError(f"{source}: llama.cpp drafted nothing, so nothing is known")
    notes: tuple[str, ...] = ()
    if drafted % drafts:
        notes = (f"drafts had {drafted / drafts:.2f} tokens on average, taken as a whole number",)
    pooled = PooledRates(accepted / drafts, max(1, round(drafted / drafts)), drafts)
    return AcceptanceData(f"{source} (log of llama.cpp)", None, pooled, {}, notes)
