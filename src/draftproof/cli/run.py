"""One request, timed from outside while it streams."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftproof.engine import Engine, GenerateResult, Prompt, StepOutput

__all__ = ["Run", "Times", "run_request"]


@dataclass(frozen=True, slots=True)
class Times:
    """Where the seconds of a run went.

    Parameters
    ----------
    total_s : float
        From the request to its last token, on the wall.
    first_token_s : float
        From the request to its first token: the prompt.
    draft_s, target_s, verify_s : float
        Drafting; passes of the target; laws and rules.
    policy_s : float
        Choosing draft lengths; 0 where nothing chooses.
    num_passes, num_pass_tokens : int
        Passes of the target, and tokens in them.
    """

    total_s: float
    first_token_s: float
    draft_s: float
    target_s: float
    verify_s: float
    num_passes: int
    num_pass_tokens: int
    policy_s: float = 0.0

    @property
    def other_s(self) -> float:
        """Everything that is none of the named parts."""
        named = self.draft_s + self.target_s + self.verify_s + self.policy_s
        return max(0.0, self.total_s - named)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished request and its times.

    Parameters
    ----------
    result : GenerateResult
        The request.
    times : Times
        Its times.
    """

    result: GenerateResult
    times: Times

    @property
    def tokens_per_s(self) -> float:
        """Pace of decoding: tokens after the first, by the seconds after the first.

        NaN where there is only one token.
        """
        seconds = self.times.total_s - self.times.first_token_s
        tokens = len(self.result.tokens) - 1
        return tokens / seconds if tokens > 0 and seconds > 0 else math.nan


def run_request(
    engine: Engine,
    prompt: Prompt,
    options: Mapping[str, Any],
    *,
    on_output: Callable[[StepOutput], None] | None = None,
) -> Run:
    """Run one request alone and time it.

    Parameters
    ----------
    engine : Engine
        An engine that does nothing else meanwhile.
    prompt : str, sequence of int or sequence of dict
        Text, token ids or a chat.
    options : mapping
        As for `Engine.request`.
    on_output : callable, optional
        Given each step's output; its time counts.

    Returns
    -------
    Run
        Result and times.

    Raises
    ------
    DraftproofError
        If the request failed.
    """
    before = copy.copy(engine.core.clock)
    begin = perf_counter()
    first_token_s = math.nan
    result = None
    for output in engine.stream(prompt, **options):
        if output.tokens and math.isnan(first_token_s):
            first_token_s = perf_counter() - begin
        if on_output is not None:
            on_output(output)
        if output.result is not None:
            result = output.result
    total_s = perf_counter() - begin
    assert result is not None  # narrows the type: the last output carries the result
    after = engine.core.clock
    times = Times(
        total_s=total_s,
        first_token_s=first_token_s,
        draft_s=after.draft_s - before.draft_s,
        target_s=after.target_s - before.target_s,
        verify_s=after.verify_s - before.verify_s,
        num_passes=after.num_passes - before.num_passes,
        num_pass_tokens=after.num_pass_tokens - before.num_pass_tokens,
        policy_s=after.policy_s - before.policy_s,
    )
    return Run(result, times)
