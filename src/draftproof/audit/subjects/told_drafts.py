"""What servers tell of their drafts: in an answer, or on their metrics page.

Read are our own ``metrics.speculative_decoding``, llama.cpp's ``timings.draft_n``,
predictions in OpenAI's ``usage``, and the counters that `draftproof.metrics` knows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from draftproof.audit.draft_totals import DraftTotals
from draftproof.metrics import EngineSnapshot

__all__ = ["ToldDrafts", "told_by", "totals_between", "totals_of"]


@dataclass(frozen=True, slots=True)
class ToldDrafts:
    """The drafts of one answer.

    Parameters
    ----------
    accepted : int
        Drafts that were kept.
    drafted : int
        Drafts that were made.
    """

    accepted: int
    drafted: int


def told_by(answer: Mapping[str, Any]) -> ToldDrafts | None:
    """Read what an answer tells.

    Parameters
    ----------
    answer : mapping
        The JSON of a completion.

    Returns
    -------
    ToldDrafts or None
        None where it tells nothing. llama.cpp leaves ``draft_n`` out where it is 0, and
        OpenAI's predictions are 0 where none were asked for: neither says that a server
        does not speculate.
    """
    ours = _at(answer, "metrics", "speculative_decoding")
    if isinstance(ours, Mapping) and _is_count(ours.get("num_draft_tokens")):
        return _told(ours.get("num_accepted_draft_tokens"), ours["num_draft_tokens"])
    timings = answer.get("timings")
    if isinstance(timings, Mapping) and _is_count(timings.get("draft_n")):
        return _told(timings.get("draft_n_accepted"), timings["draft_n"])
    details = _at(answer, "usage", "completion_tokens_details")
    if isinstance(details, Mapping):
        kept = details.get("accepted_prediction_tokens")
        lost = details.get("rejected_prediction_tokens")
        if _is_count(kept) and _is_count(lost) and kept + lost:
            return ToldDrafts(kept, kept + lost)
    return None


def totals_of(told: Sequence[ToldDrafts | None]) -> DraftTotals | None:
    """Add up what answers tell.

    Parameters
    ----------
    told : sequence of ToldDrafts or None
        One for each answer.

    Returns
    -------
    DraftTotals or None
        None where none tells anything; beside one that does, silence is no draft.
    """
    held = [each for each in told if each is not None]
    if not held:
        return None
    return DraftTotals(
        sum(each.accepted for each in held),
        sum(each.drafted for each in held),
        draws=sum(1 for each in held if each.drafted),
    )


def totals_between(
    before: EngineSnapshot | None, after: EngineSnapshot | None, num: int, horizon: int
) -> DraftTotals | None:
    """Return what counters grew by while texts were drawn.

    Parameters
    ----------
    before, after : EngineSnapshot, optional
        The metrics page before the first request and after the last.
    num : int
        Texts that were drawn.
    horizon : int
        Tokens of a text: as many rounds may be of one text.

    Returns
    -------
    DraftTotals or None
        None where a page is missing, has no such counters, or began anew. Whatever else
        the server did meanwhile is in it.
    """
    if before is None or after is None:
        return None
    drafted = _grown(before.num_draft_tokens, after.num_draft_tokens)
    accepted = _grown(before.num_accepted_tokens, after.num_accepted_tokens)
    rounds = _grown(before.num_drafts, after.num_drafts)
    if drafted is None or accepted is None or accepted > drafted:
        return None
    certain = max(accepted, rounds or 0) if drafted else 0
    return DraftTotals(accepted, drafted, rounds, min(num, math.ceil(certain / horizon)))


def _told(accepted: Any, drafted: int) -> ToldDrafts:
    return ToldDrafts(min(accepted, drafted) if _is_count(accepted) else 0, drafted)


def _grown(before: int | None, after: int | None) -> int | None:
    if before is None and after:
        before = 0  # a counter that appears with its first count
    if before is None or after is None or after < before:
        return None
    return after - before


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _at(answer: Mapping[str, Any], first: str, second: str) -> Any:
    held = answer.get(first)
    return held.get(second) if isinstance(held, Mapping) else None
