"""Our own rounds: trace files, step records, and the documents of ``generate``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from draftproof.errors import ConfigError
from draftproof.planner.counts import AcceptanceCounts, AcceptanceData

__all__ = ["from_traces", "is_trace"]

#: Version of trace files, see docs/trace.md.
_TRACE_FORMAT = 1


def is_trace(objects: Sequence[dict[str, Any]]) -> bool:
    """Say whether any object is a round, or a document that holds rounds."""
    return any(
        "num_accepted" in each or "rounds" in each or each.get("kind") in ("run", "round")
        for each in objects
    )


def from_traces(objects: Sequence[dict[str, Any]], source: str) -> AcceptanceData:
    """Count the rounds of step records or documents.

    Parameters
    ----------
    objects : sequence of dict
        Lines of a trace file; or objects with ``drafted`` (token ids, or their number) and
        ``num_accepted``, optionally ``request_id``; or objects that hold a list of such
        ``rounds``. A draft that branches counts as long as its longest path.
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
        length, accepted = _lengths(each)
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


def _lengths(each: dict[str, Any]) -> tuple[Any, Any]:
    """Return how long the draft of a round was, and how much of it was kept."""
    drafted, accepted = each.get("drafted"), each.get("num_accepted")
    if each.get("kind") == "round":
        path = each.get("path")
        drafted = each.get("draft_ids")
        if isinstance(path, list):
            accepted = len(path) + (each.get("token_source") == "accepted")
    parents = each.get("parents")
    if isinstance(parents, list):
        depths: list[int] = []
        for parent in parents:
            depths.append(1 + (depths[parent] if parent >= 0 else 0))
        return max(depths, default=0), accepted
    return len(drafted) if isinstance(drafted, list) else drafted, accepted


def _rounds(objects: Sequence[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    run = 0
    for place, each in enumerate(objects):
        if each.get("kind") == "run":
            run += 1
            if each.get("format") != _TRACE_FORMAT:
                raise ConfigError(f"trace format {each.get('format')!r}; expected {_TRACE_FORMAT}")
        elif each.get("kind") == "round":
            # Ids may be used again in another run of the file.
            yield f"{run}/{each.get('request', '')}", each
        elif isinstance(each.get("rounds"), list):
            name = str(each.get("id", each.get("request_id", place)))
            for inner in each["rounds"]:
                yield name, inner
        elif "num_accepted" in each:
            yield str(each.get("request_id", "")), each
