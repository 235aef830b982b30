"""One request as it is seen from outside: when it was due, sent, and heard of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from draftproof.bench.measured import Acceptance, Gaps, RequestRecord

__all__ = ["Ask", "Load", "Outcome", "Stream", "gaps_of", "prompts_digest"]


@dataclass(frozen=True, slots=True)
class Ask:
    """A prompt to send.

    Parameters
    ----------
    prompt : int
        Its number within the workload.
    turns : tuple of (str, str)
        Roles and texts of a chat.
    seed : int
        Of the request.
    """

    prompt: int
    turns: tuple[tuple[str, str], ...]
    seed: int

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat as APIs take it."""
        return [{"role": role, "content": text} for role, text in self.turns]

    @property
    def text(self) -> str:
        """The prompt for a model without a chat template."""
        return "\n\n".join(text for _role, text in self.turns) + "\n\n"


@dataclass(frozen=True, slots=True)
class Load:
    """What to send, and when.

    Parameters
    ----------
    asks : tuple of Ask
        The counted requests.
    fillers : tuple of Ask
        Take the place of counted requests that ended, so that as many are in flight
        until the last one has. They are not counted and are aborted then.
    concurrency : int or None
        Requests in flight; None under arrivals.
    arrivals : tuple of float
        Under arrivals, when each counted request is due, in seconds.
    """

    asks: tuple[Ask, ...]
    fillers: tuple[Ask, ...] = ()
    concurrency: int | None = None
    arrivals: tuple[float, ...] = ()


@dataclass(slots=True)
class Stream:
    """Collects what came back for one request.

    Parameters
    ----------
    ask : Ask
        What was sent.
    scheduled_s : float
        When it was due.
    sent_s : float
        When it was sent.
    is_counted : bool
        Whether it is no filler.
    """

    ask: Ask
    scheduled_s: float
    sent_s: float
    is_counted: bool = True
    portions: list[tuple[float, int]] = field(default_factory=list)
    num_prompt_tokens: int | None = None
    finish_reason: str = ""
    acceptance_rate: float | None = None
    error: str = ""

    def add(self, at_s: float, num_tokens: int) -> None:
        """Note tokens that came together; none are no news."""
        if num_tokens > 0:
            self.portions.append((at_s, num_tokens))

    def record(self) -> RequestRecord:
        """Return what is kept of it."""
        portions = self.portions
        return RequestRecord(
            prompt=self.ask.prompt,
            scheduled_s=self.scheduled_s,
            sent_s=self.sent_s,
            first_s=portions[0][0] if portions else None,
            last_s=portions[-1][0] if portions else None,
            num_tokens=sum(count for _at, count in portions),
            num_first_tokens=portions[0][1] if portions else 0,
            num_prompt_tokens=self.num_prompt_tokens,
            num_chunks=len(portions),
            finish_reason=self.finish_reason,
            acceptance_rate=self.acceptance_rate,
            error=self.error,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a load gave.

    Parameters
    ----------
    streams : tuple of Stream
        The counted requests, in order.
    wall_s : float
        Seconds until the last of them ended.
    acceptance : Acceptance or None
        Counters, where they are known.
    token_counts : str
        What tokens were counted by.
    """

    streams: tuple[Stream, ...]
    wall_s: float
    acceptance: Acceptance | None
    token_counts: str


def gaps_of(streams: Sequence[Stream]) -> Gaps:
    """Return the pauses between portions of some streams.

    Parameters
    ----------
    streams : sequence of Stream
        The streams.

    Returns
    -------
    Gaps
        Their number and quantiles: the smallest pause that is not exceeded by the share.
    """
    gaps = sorted(
        later - earlier
        for stream in streams
        for (earlier, _), (later, _) in zip(stream.portions, stream.portions[1:], strict=False)
    )
    if not gaps:
        return Gaps(0)

    def quantile(share: float) -> float:
        return gaps[min(len(gaps) - 1, max(0, -int(-share * len(gaps) // 1) - 1))]

    return Gaps(len(gaps), quantile(0.5), quantile(0.9), quantile(0.99), gaps[-1])


def prompts_digest(asks: Sequence[Ask]) -> str:
    """Return a short name of some prompts: equal texts in equal order give equal names.

    Parameters
    ----------
    asks : sequence of Ask
        The prompts.

    Returns
    -------
    str
        16 hexadecimal digits.
    """
    texts = json.dumps([ask.turns for ask in asks])
    return hashlib.sha256(texts.encode()).hexdigest()[:16]
