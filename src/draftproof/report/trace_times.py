"""Where the seconds of a traced run went, step by step."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from draftproof.bench.trace_record import Trace
from draftproof.core.trace import RoundTrace
from draftproof.planner.rounds import RoundCost

__all__ = ["Bin", "Forecast", "Step", "binned", "forecasts", "steps_of"]

#: Points on a time axis; more are not told apart on a page.
_MAX_BINS = 60


@dataclass(slots=True)
class Step:
    """One step of an engine, from the rows of it that were traced.

    Parameters
    ----------
    at_s : float
        When it was over. Runs of one file follow each other on one axis.
    rounds : list of RoundTrace
        Its traced rows; all hold the times of the whole step.
    """

    at_s: float
    rounds: list[RoundTrace] = field(default_factory=list)

    @property
    def batch(self) -> int:
        """Rows of the pass."""
        return self.rounds[0].batch

    @property
    def pass_tokens(self) -> int:
        """Tokens of the pass."""
        return self.rounds[0].pass_tokens

    @property
    def reads_prompts(self) -> bool:
        """Whether tokens of prompts were in it."""
        drafts = sum(1 + len(trace.draft_ids) for trace in self.rounds)
        return any(trace.round == 0 for trace in self.rounds) or self.pass_tokens != drafts


def steps_of(trace: Trace) -> list[Step]:
    """Return the steps of all runs, in order of time.

    Parameters
    ----------
    trace : Trace
        The file.

    Returns
    -------
    list of Step
        Steps that had a traced row.
    """
    found: list[Step] = []
    offset = 0.0
    for run in trace.runs:
        steps: dict[int, Step] = {}
        for each in run.rounds:
            step = steps.setdefault(each.trace.step, Step(offset + each.at_s))
            step.rounds.append(each.trace)
        found += steps.values()
        offset = max((step.at_s for step in steps.values()), default=offset)
    return found


@dataclass(frozen=True, slots=True)
class Bin:
    """Means over the steps of a stretch of time.

    Parameters
    ----------
    at_s : float
        Its middle.
    steps : int
        Steps in it.
    draft_s, target_s, verify_s, other_s : float
        Mean seconds per step.
    batch, pass_tokens, drafted : float
        Mean rows, tokens, and drafts per traced row.
    """

    at_s: float
    steps: int
    draft_s: float
    target_s: float
    verify_s: float
    other_s: float
    batch: float
    pass_tokens: float
    drafted: float


def binned(steps: Sequence[Step], most: int = _MAX_BINS) -> list[Bin]:
    """Return means over stretches of equal time; empty stretches are left out.

    Parameters
    ----------
    steps : sequence of Step
        The steps.
    most : int
        Most stretches.

    Returns
    -------
    list of Bin
        In order of time.
    """
    if not steps:
        return []
    end = max(step.at_s for step in steps)
    width = end / min(most, len(steps)) or 1.0
    held: dict[int, list[Step]] = defaultdict(list)
    for step in steps:
        held[min(int(step.at_s / width), most - 1)].append(step)
    return [_bin((place + 0.5) * width, held[place]) for place in sorted(held)]


def _bin(at_s: float, steps: Sequence[Step]) -> Bin:
    firsts = [step.rounds[0] for step in steps]
    rows = [trace for step in steps for trace in step.rounds]
    means = {
        name: statistics.fmean(getattr(trace, name) for trace in firsts)
        for name in ("draft_s", "target_s", "verify_s", "other_s", "batch", "pass_tokens")
    }
    drafted = statistics.fmean(len(trace.draft_ids) for trace in rows)
    return Bin(at_s=at_s, steps=len(steps), drafted=drafted, **means)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Steps of one shape, measured and predicted.

    Parameters
    ----------
    batch, tokens, steps : int
        Rows, tokens of the pass, and how many such steps there were.
    target_s, total_s : float
        Medians of what was measured: the pass, and the whole step.
    predicted_target_s, predicted_total_s : float
        What the profile says of the same, at the mean length of the texts.
    """

    batch: int
    tokens: int
    steps: int
    target_s: float
    total_s: float
    predicted_target_s: float
    predicted_total_s: float


def forecasts(steps: Sequence[Step], cost: RoundCost) -> list[Forecast]:
    """Compare steps that only decode with what a profile predicts.

    Parameters
    ----------
    steps : sequence of Step
        Steps; those that read prompts are left out.
    cost : RoundCost
        Of the calibrated profile.

    Returns
    -------
    list of Forecast
        By shape, the most frequent first.
    """
    shapes: dict[tuple[int, int], list[Step]] = defaultdict(list)
    for step in steps:
        if not step.reads_prompts and len(step.rounds) == step.batch:
            shapes[step.batch, step.pass_tokens].append(step)
    found = []
    for (batch, tokens), held in sorted(shapes.items(), key=lambda item: -len(item[1])):
        context = statistics.fmean(trace.start for step in held for trace in step.rounds)
        size = np.asarray([float(tokens)])
        drafting = statistics.fmean(_drafting(step, cost, context) for step in held)
        firsts = [step.rounds[0] for step in held]
        found.append(
            Forecast(
                batch,
                tokens,
                len(held),
                statistics.median(trace.target_s for trace in firsts),
                statistics.median(trace.total_s for trace in firsts),
                float(cost.target.many(batch, size, batch * context)[0]),
                float(cost.pass_seconds(batch, size, context)[0]) + drafting,
            )
        )
    return found


def _drafting(step: Step, cost: RoundCost, context: float) -> float:
    """Return what drafting a step should take: rows at each depth, drafted or not."""
    asked = [trace.kappa for trace in step.rounds if trace.kappa]
    return sum(
        float(cost.draft.depth_seconds(depth, np.asarray([float(rows)]), context)[0])
        for depth in range(1, max(asked, default=0) + 1)
        if (rows := sum(kappa >= depth for kappa in asked))
    )
