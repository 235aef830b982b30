"""Predicted against measured: the planner's own test on the user's machine.

Acceptance is counted on prompts one at a time with the longest drafts; tokens per second
are predicted for settings that no calibration saw, and then measured on the same prompts.
What other prompts would accept is a question of samples, not of the prediction: a model that
copies one text and leaves the next needs hundreds of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.planner.counts import AcceptanceCounts
from draftproof.planner.estimate import SurvivalEstimate, estimate_survival
from draftproof.planner.rounds import RoundCost
from draftproof.planner.search import RoundTimes

__all__ = ["Validation", "ValidationPoint", "quantile", "validate"]

#: Passes over which the time of a setting is averaged.
_PASSES = 512


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
    def pace(self) -> float | None:
        """Pace of the machine now over that at calibration; None without a plain setting.

        The median over plain settings of measured by predicted. A shared machine may run at
        two thirds of yesterday's pace; what speculation gains depends little on that.
        """
        plain = [point.measured / point.predicted for point in self.points if point.kappa == 0]
        return statistics.median(plain) if plain else None

    @property
    def median_error(self) -> float:
        """Median of the absolute relative errors."""
        return quantile([point.error for point in self.points], 0.5)

    @property
    def median_error_at_pace(self) -> float:
        """The same after every prediction is multiplied by `pace`."""
        return quantile(self.errors_at_pace(), 0.5)

    @property
    def worst(self) -> ValidationPoint:
        """The point with the largest absolute relative error."""
        return max(self.points, key=lambda point: abs(point.error))

    def errors_at_pace(self) -> list[float]:
        """Return the relative errors of the predictions multiplied by `pace`."""
        pace = self.pace or 1.0
        return [point.predicted * pace / point.measured - 1.0 for point in self.points]


def quantile(errors: Sequence[float], share: float) -> float:
    """Return the least absolute error that a share of the errors does not exceed.

    Parameters
    ----------
    errors : sequence of float
        At least one.
    share : float
        In (0, 1]; 0.5 with an even number of errors is the mean of the middle two.

    Returns
    -------
    float
        Not negative.
    """
    sizes = sorted(abs(error) for error in errors)
    if share == 0.5:
        return statistics.median(sizes)
    return sizes[max(0, math.ceil(share * len(sizes)) - 1)]


def validate(
    core: EngineCore,
    proposer: str,
    cost: RoundCost,
    prompts: Sequence[Sequence[int]],
    *,
    batches: Sequence[int] = (1, 3),
    kappas: Sequence[int] = (0, 2, 3, 5),
    max_tokens: int = 48,
    repeats: int = 3,
    params: SamplingParams | None = None,
    progress: Callable[[str], None] | None = None,
) -> Validation:
    """Predict settings and measure them, in turns.

    Parameters
    ----------
    core : EngineCore
        An idle engine that runs what the costs describe.
    proposer : str
        One of its drafters.
    cost : RoundCost
        The costs under test.
    prompts : sequence of sequence of int
        Token ids, all different, at least as many as the largest batch; twice as many are
        better. A setting takes them in turn: where one ends the next begins, as in a server
        under load, until a batch is not full any more.
    batches, kappas : sequence of int
        Settings.
    max_tokens : int, default 48
        Tokens per request.
    repeats : int, default 3
        Measurements of each setting, one per round of all settings; tokens of all over
        seconds of all, which is what is predicted.
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
        If there are too few prompts, or nothing was drafted.
    """
    if len(prompts) < max(batches):
        raise ConfigError(f"{len(prompts)} prompts; expected {max(batches)} or more")
    say = progress or (lambda _line: None)
    policy = params or SamplingParams(temperature=0.0)
    most = max(kappas)
    say(f"counting acceptance on {len(prompts)} prompts with {most} drafts")
    taught = _run(core, proposer, prompts, 1, most, max_tokens, policy)
    offers = np.asarray(taught.offers)
    kept = np.asarray([accepted for _length, accepted in taught.rounds])
    survival = estimate_survival(AcceptanceCounts.from_rounds(taught.rounds))
    settings = [(batch, kappa) for batch in batches for kappa in kappas]
    found: dict[tuple[int, int], list[_Measured]] = {setting: [] for setting in settings}
    for turn in range(repeats):
        say(f"measuring {len(settings)} settings, round {turn + 1} of {repeats}")
        for batch, kappa in settings:
            run = _run(core, proposer, prompts, batch, kappa, max_tokens, policy)
            found[batch, kappa].append(run)
    points = []
    for (batch, kappa), runs in found.items():
        context = statistics.mean(run.context for run in runs)
        seconds = _seconds(cost, batch, kappa, offers, context)
        # A shorter draft is the beginning of the longer one, and a drafter stops where it likes:
        # what was kept of it counts, not what a draft of full length would have kept.
        tokens = 1.0 + float(np.minimum(kept, kappa).mean())
        predicted = batch * tokens / seconds
        pace = sum(run.tokens for run in runs) / sum(run.seconds for run in runs)
        points.append(ValidationPoint(batch, kappa, predicted, pace))
    return Validation(tuple(points), survival)


def _seconds(
    cost: RoundCost, batch: int, kappa: int, offers: NDArray[np.int64], context: float
) -> float:
    """Return the mean seconds of passes whose rows draft as often as the teaching ones did.

    A drafter that looks text up is silent in most rounds of free text, and a pass without
    drafts is a plain one: the time of a full pass in every round would be far too much.
    """
    coins = np.random.default_rng(0)
    drawn = coins.choice(np.minimum(offers, kappa), (_PASSES, batch)).sum(axis=1)
    passes = cost.pass_seconds(batch, (batch + drawn).astype(np.float64), context)
    drafting = RoundTimes(cost, max(kappa, 1), context).drafting_s(batch)[kappa]
    return float(passes.mean() + drafting)


@dataclass(frozen=True, slots=True)
class _Measured:
    rounds: list[tuple[int, int]]
    offers: list[int]
    tokens: int
    seconds: float
    context: float


def _run(
    core: EngineCore,
    proposer: str,
    prompts: Sequence[Sequence[int]],
    batch: int,
    kappa: int,
    max_tokens: int,
    params: SamplingParams,
) -> _Measured:
    """Keep so many requests running; time the steps in which all of them decode."""
    waiting = iter(enumerate(prompts))
    running: dict[str, bool] = {}  # whether it has its first token
    seconds, tokens = 0.0, 0
    rounds: list[tuple[int, int]] = []
    offers: list[int] = []
    while True:
        while len(running) < batch and (following := next(waiting, None)) is not None:
            index, prompt = following
            request = GenerateRequest(
                tuple(prompt),
                params=params,
                max_tokens=max_tokens,
                ignore_eos=True,
                seed=index,
                kappa=kappa,
                proposer=proposer,
            )
            running[core.submit(request)] = False
        if not core.has_work:
            break
        is_full = len(running) == batch and all(running.values())
        begin = perf_counter()
        outputs = core.step()
        if is_full:
            seconds += perf_counter() - begin
            tokens += sum(len(output.tokens) for output in outputs)
        for output in outputs:
            if output.error is not None:
                raise output.error
            is_last = output.finish_reason is not None
            if running[output.request_id] and output.record is not None and not is_last:
                # A silent drafter yields what a draft that is rejected at once does. The
                # last round is left out: the budget cuts its draft.
                offers.append(len(output.record.drafted))
                length = len(output.record.drafted) or kappa
                rounds.append((length, output.record.num_accepted))
            running[output.request_id] = True
            if is_last:
                del running[output.request_id]
    if not tokens:
        raise ConfigError(f"max_tokens {max_tokens}: no step had all rows decoding; expected more")
    context = sum(len(prompt) for prompt in prompts) / len(prompts) + max_tokens / 2
    return _Measured(rounds, offers, tokens, seconds, context)
