"""What was measured: one arm in one round, request by request."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Acceptance", "Gaps", "Measurement", "RequestRecord"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, in seconds since its measurement began.

    Parameters
    ----------
    prompt : int
        Number of the prompt within its workload.
    scheduled_s : float
        When it should have been sent; every latency counts from here.
    sent_s : float
        When it was.
    first_s : float or None
        When the first tokens came.
    last_s : float or None
        When the last ones did.
    num_tokens : int
        Generated tokens.
    num_first_tokens : int
        Tokens that came at ``first_s``.
    num_prompt_tokens : int or None
        Tokens of the prompt.
    num_chunks : int
        In how many portions the tokens came.
    finish_reason : str
        Why it ended.
    acceptance_rate : float or None
        Of this request alone; None where nothing was drafted or it is not known.
    error : str
        Why it failed; empty when it did not.
    """

    prompt: int
    scheduled_s: float
    sent_s: float
    first_s: float | None
    last_s: float | None
    num_tokens: int
    num_first_tokens: int
    num_prompt_tokens: int | None
    num_chunks: int
    finish_reason: str = ""
    acceptance_rate: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Counters of one measurement, or rates where an engine tells no counters.

    Parameters
    ----------
    num_drafts : int
        Rounds that verified drafts.
    num_draft_tokens : int
        Drafted tokens.
    num_accepted_tokens : int
        Those that were kept.
    num_accepted_tokens_per_pos : tuple of int
        Kept tokens by offset.
    num_drafted_per_pos : tuple of int
        Drafts that reached so far; empty where an engine does not tell.
    source : str
        Whose counters: ``"engine"``, or the address of a metrics page.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    num_drafted_per_pos: tuple[int, ...] = ()
    source: str = "engine"


@dataclass(frozen=True, slots=True)
class Gaps:
    """Pauses between portions of a stream, in seconds; portions may hold many tokens.

    Parameters
    ----------
    count : int
        Pauses.
    p50_s, p90_s, p99_s, max_s : float or None
        Quantiles over all of them; None without any.
    """

    count: int
    p50_s: float | None = None
    p90_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """One arm in one round of one condition.

    Parameters
    ----------
    condition : int
        Index into ``Settings.conditions``.
    arm : str
        Name of the arm.
    round : int
        Number of the round, from 0.
    order : int
        Place of the arm within the round.
    begun_s : float
        Seconds since the run began.
    wall_s : float
        Seconds that it took, fillers included.
    requests : tuple of RequestRecord
        The counted requests.
    gaps : Gaps
        Pauses of their streams.
    acceptance : Acceptance or None
        None where it is not known. Of the counted requests where the source is the
        engine; of everything that ran meanwhile where it is a metrics page.
    prompts_digest : str
        Of the texts of the counted prompts: equal digests, equal prompts.
    token_counts : str
        What tokens were counted by: ``"engine"``, ``"ids"``, ``"usage"``, or
        ``"text share"`` where the split over portions was estimated from characters.
    """

    condition: int
    arm: str
    round: int
    order: int
    begun_s: float
    wall_s: float
    requests: tuple[RequestRecord, ...]
    gaps: Gaps
    acceptance: Acceptance | None
    prompts_digest: str
    token_counts: str = "engine"
