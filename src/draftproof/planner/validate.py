"""Predicted against measured: the planner's own test on the user's machine.

Acceptance is counted on some prompts, tokens per second are predicted for settings that
no calibration saw, and then measured on other prompts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.planner.counts import AcceptanceCounts
from draftproof.planner.estimate import SurvivalEstimate, estimate_survival
from draftproof.planner.rounds import RoundCost
from draftproof.planner.search import RoundTimes

__all__ = ["Validation", "ValidationPoint", "validate"]


@dataclass(frozen=True, slots=True)
class ValidationPoint:
    """One setting.

    Parameters
    ----------
    batch, kappa : int
        Rows, and drafts per row.
    predicted, measured : float
        Committed tokens per second of all rows while all of them decode.
    """

    batch: int
    kappa: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the prediction; positive when it promised too much."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class Validation:
    """All settings.

    Parameters
    ----------
    points : tuple of ValidationPoint
        Held-out settings.
    survival : SurvivalEstimate
        The acceptance behind the predictions.
    """

    points: tuple[ValidationPoint, ...]
    survival: SurvivalEstimate

    @property
    def median_error(self) -> float:
        """Median of the absolute relative errors."""
        return statistics.median(abs(point.error) for point in self.points)

    @property
    def worst(self) -> ValidationPoint:
        """The point with the largest absolute relative error."""
        return max(self.points, key=lambda point: abs(point.error))


def validate(
    core: EngineCore,
    proposer: str,
    cost: RoundCost,
    prompts: Sequence[Sequence[int]],
    *,
    batches: Sequence[int] = (1, 3),
    kappas: Sequence[int] = (0, 2, 3, 5),
    max_tokens: int = 48,
    params: SamplingParams | None = None,
    progress: Callable[[str], None] | None = None,
) -> Validation:
    """Predict settings and measure them.

    Parameters
    ----------
    core : EngineCore
        An idle engine that runs what the costs describe.
    proposer : str
        One of its drafters.
    cost : RoundCost
        The costs under test.
    prompts : sequence of sequence of int
        Token ids, all different. Even ones teach acceptance, odd ones are measured;
        as many odd ones as the largest batch.
    batches, kappas : sequence of int
        Settings.
    max_tokens : int, default 48
        Tokens per request.
    params : SamplingParams, optional
        The policy; greedy when None.
    progress : callable, optional
        Told in one line what is being done.

    Returns
    -------
    Validation
        One point per setting.

    Raises
    ------
    ConfigError
        If there are too few prompts, or nothing was drafted on those that teach.
    """
    teaching, measured = prompts[::2], prompts[1::2]
    if not teaching or len(measured) < max(batches):
        raise ConfigError(f"{len(prompts)} prompts; expected {2 * max(batches)}")
    say = progress or (lambda _line: None)
    policy = params or SamplingParams(temperature=0.0)
    most = max(kappas)
    say(f"counting acceptance on {len(teaching)} prompts with {most} drafts")
    rounds = [
        pair
        for prompt in teaching
        for pair in _run(core, proposer, [prompt], most, max_tokens, policy).rounds
    ]
    survival = estimate_survival(AcceptanceCounts.from_rounds(rounds))
    points = []
    for batch in batches:
        for kappa in kappas:
            say(f"measuring {batch} rows with {kappa} drafts")
            found = _run(core, proposer, measured[:batch], kappa, max_tokens, policy)
            times = RoundTimes(cost, most, found.context)
            predicted = batch * survival.curve.tokens(kappa) / float(times.seconds(batch)[kappa])
            points.append(ValidationPoint(batch, kappa, predicted, found.tokens_per_s))
    return Validation(tuple(points), survival)


@dataclass(frozen=True, slots=True)
class _Measured:
    rounds: list[tuple[int, int]]
    tokens_per_s: float
    context: float


def _run(
    core: EngineCore,
    proposer: str,
    prompts: Sequence[Sequence[int]],
    kappa: int,
    max_tokens: int,
    params: SamplingParams,
) -> _Measured:
    """Run requests together; time the steps in which all of them decode."""
    for index, prompt in enumerate(prompts):
        core.submit(
            GenerateRequest(
                tuple(prompt),
                params=params,
                max_tokens=max_tokens,
                ignore_eos=True,
                seed=index,
                kappa=kappa,
                proposer=proposer,
            )
        )
    seconds, tokens = 0.0, 0
    rounds: list[tuple[int, int]] = []
    started: set[str] = set()
    ended = False
    while core.has_work:
        begin = perf_counter()
        outputs = core.step()
        elapsed = perf_counter() - begin
        if len(started) == len(prompts) and not ended:
            seconds += elapsed
            tokens += sum(len(output.tokens) for output in outputs)
        for output in outputs:
            if output.error is not None:
                raise output.error
            is_last = output.finish_reason is not None
            if output.request_id in started and output.record is not None and not is_last:
                # A silent drafter yields what a draft that is rejected at once does. The
                # last round is left out: the budget cuts its draft.
                length = len(output.record.drafted) or kappa
                rounds.append((length, output.record.num_accepted))
            started.add(output.request_id)
            ended |= is_last
    if not tokens:
        raise ConfigError(f"max_tokens {max_tokens}: no step had all rows decoding; expected more")
    context = sum(len(prompt) for prompt in prompts) / len(prompts) + max_tokens / 2
    return _Measured(rounds, tokens / seconds, context)
