"""Whether a prompt that is sent again is decoded faster: a drafter that remembers."""

from __future__ import annotations

from collections.abc import Callable

from draftproof.bench.engine_runner import Runner
from draftproof.bench.run_record import Arm, Condition
from draftproof.bench.streams import Ask, Load, Outcome
from draftproof.errors import DraftproofError

__all__ = ["memory_warnings", "replay_ratio"]

#: Prompts of the check; their numbers are none that a run uses.
_COUNT = 5
_FIRST = 10**9
#: A second time that is faster by this factor is no chance.
_REMEMBERS = 1.2


def replay_ratio(
    runner: Runner,
    arm: Arm,
    prompt_of: Callable[[str, int], tuple[tuple[str, str], ...]],
    *,
    max_tokens: int = 64,
) -> float | None:
    """Decode five prompts one after another, and then the same five again.

    Parameters
    ----------
    runner : Runner
        Decodes, greedily.
    arm : Arm
        How.
    prompt_of : callable
        Turns of a chat by workload and number.
    max_tokens : int, default 64
        Most tokens per request.

    Returns
    -------
    float or None
        Pooled seconds per token of the first time by those of the second; None where
        texts were too short to tell.
    """
    condition = Condition("chat", 0.0, 1)
    asks = tuple(Ask(n, prompt_of("chat", n), n) for n in range(_FIRST, _FIRST + _COUNT))
    paces = [
        _pace(runner.run(condition, arm, Load(asks, concurrency=1), max_tokens)) for _ in range(2)
    ]
    return paces[0] / paces[1] if paces[0] and paces[1] else None


def memory_warnings(
    runner: Runner, arm: Arm, prompt_of: Callable[[str, int], tuple[tuple[str, str], ...]]
) -> tuple[str, ...]:
    """Say what repeating prompts would have done to a run.

    Parameters
    ----------
    runner : Runner
        Decodes.
    arm : Arm
        How.
    prompt_of : callable
        Turns of a chat by workload and number.

    Returns
    -------
    tuple of str
        One sentence where a second time is a fifth faster, or where the check failed.
    """
    try:
        ratio = replay_ratio(runner, arm, prompt_of)
    except DraftproofError as error:
        return (f"whether the server remembers prompts could not be checked: {error}",)
    if ratio is None or ratio < _REMEMBERS:
        return ()
    return (
        f"prompts sent a second time were decoded {ratio:.2f} times as fast: something remembers "
        "outputs, and traffic that repeats itself is not what was measured",
    )


def _pace(outcome: Outcome) -> float | None:
    seconds, tokens = 0.0, 0
    for stream in outcome.streams:
        if len(stream.portions) > 1 and not stream.error:
            seconds += stream.portions[-1][0] - stream.portions[0][0]
            tokens += sum(count for _at, count in stream.portions[1:])
    return seconds / tokens if tokens else None
