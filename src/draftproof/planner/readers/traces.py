"""Our own rounds: step records, and the documents of ``generate``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from draftproof.errors import ConfigError
from draftproof.planner.counts import AcceptanceCounts, AcceptanceData

__all__ = ["from_traces", "is_trace"]


def is_trace(objects: Sequence[dict[str, Any]]) -> bool:
    """Say whether any object is a round, or a document that holds rounds."""
    return any("num_accepted" in each or "rounds" in each for each in objects)


def from_traces(objects: Sequence[dict[str, Any]], source: str) -> AcceptanceData:
    """Count the rounds of step records or documents.

    Parameters
    ----------
    objects : sequence of dict
        Objects with ``drafted`` (token ids, or their number) and ``num_accepted``,
        optionally ``request_id``; or objects that hold a list of such ``rounds``.
    source : str
        Name for people.

    Returns
    -------
    AcceptanceData
        Counters, pooled and by request.

    Raises
    ------
    ConfigError
        If a round is malformed, or none drafted.
    """
    rounds: dict[str, list[tuple[int, int]]] = defaultdict(list)
    num_plain = 0
    for request, each in _rounds(objects):
        drafted, accepted = each.get("drafted"), each.get("num_accepted")
        length = len(drafted) if isinstance(drafted, list) else drafted
        if not isinstance(length, int) or not isinstance(accepted, int):
            raise ConfigError(f"{source}: a round without 'drafted' and 'num_accepted': {each}")
        if length:
            rounds[request].append((length, accepted))
        else:
            num_plain += 1
    if not rounds:
        raise ConfigError(f"{source}: {num_plain} rounds and no drafts, so nothing is known")
    per_request = {name: AcceptanceCounts.from_rounds(held) for name, held in rounds.items()}
    pooled = AcceptanceCounts()
    for counts in per_request.values():
        pooled = pooled.merge(counts)
    notes = (f"{num_plain} rounds drafted nothing and are left out",) if num_plain else ()
    return AcceptanceData(f"{source} (step records)", pooled, None, per_request, notes)


def _rounds(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, each in enumerate(objects):
        if isinstance(each.get("rounds"), list):
            name = str(each.get("id", each.get("request_id", place)))
            for inner in each["rounds"]:
                yield name, inner
        elif "num_accepted" in each:
            yield str(each.get("request_id", "")), each
