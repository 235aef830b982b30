"""Measures what rounds cost beside the target's pass: drafting, laws, bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.optimize import nnls

from draftproof.core.params import SamplingParams
from draftproof.engine import EngineCore, GenerateRequest
from draftproof.errors import ConfigError
from draftproof.planner.rounds import TableDraft

__all__ = ["Overheads", "RoundSample", "draft_table", "fit_overheads", "measure_rounds"]


@dataclass(frozen=True, slots=True)
class RoundSample:
    """The parts of one step with B decoding rows.

    Parameters
    ----------
    batch, kappa : int
        Rows, and drafts asked of each.
    tokens : int
        Tokens of the pass.
    draft_s, target_s, other_s : float
        Drafting; the pass; laws, rules and bookkeeping.
    """

    batch: int
    kappa: int
    tokens: int
    draft_s: float
    target_s: float
    other_s: float


@dataclass(frozen=True, slots=True)
class Overheads:
    """What every step adds to its pass.

    Parameters
    ----------
    step_s, token_s, speculative_s : float
        Seconds per step, per token of the pass, and per step that drafts.
    change_s : float
        Seconds that a pass takes longer behind one of another shape.
    """

    step_s: float
    token_s: float
    speculative_s: float
    change_s: float = 0.0


def measure_rounds(
    core: EngineCore,
    proposer: str,
    prompts: Sequence[Sequence[int]],
    *,
    batches: Sequence[int] = (1, 4, 16),
    kappas: Sequence[int] = (0, 1, 4, 8),
    num_steps: int = 6,
    params: SamplingParams | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[RoundSample]:
    """Run real rounds and read the engine's clock.

    Parameters
    ----------
    core : EngineCore
        An idle engine.
    proposer : str
        One of its drafters.
    prompts : sequence of sequence of int
        Token ids; as many as the largest batch, all different.
    batches, kappas : sequence of int
        Rows and drafts to try.
    num_steps : int, default 6
        Steps that count at each; one more warms up.
    params : SamplingParams, optional
        The policy; greedy when None.
    progress : callable, optional
        Told in one line what is being done.

    Returns
    -------
    list of RoundSample
        Every counted step.

    Raises
    ------
    ConfigError
        If there are fewer prompts than rows.
    """
    if len(prompts) < max(batches):
        raise ConfigError(f"{len(prompts)} prompts; expected {max(batches)}")
    policy = params or SamplingParams(temperature=0.0)
    samples = []
    for batch in batches:
        for kappa in kappas:
            if progress is not None:
                progress(f"rounds of {batch} rows with {kappa} drafts by {proposer}")
            samples += _steps(core, proposer, prompts[:batch], kappa, num_steps, policy)
    return samples


def _steps(
    core: EngineCore,
    proposer: str,
    prompts: Sequence[Sequence[int]],
    kappa: int,
    num_steps: int,
    params: SamplingParams,
) -> list[RoundSample]:
    names = [
        core.submit(
            GenerateRequest(
                tuple(prompt),
                params=params,
                max_tokens=(kappa + 1) * (num_steps + 40),
                ignore_eos=True,
                seed=index,
                kappa=kappa,
                proposer=proposer,
            )
        )
        for index, prompt in enumerate(prompts)
    ]
    samples: list[RoundSample] = []
    started: set[str] = set()
    warm = False
    for _ in range(num_steps + 30):
        before = (core.clock.draft_s, core.clock.target_s, core.clock.total_s)
        tokens = core.clock.num_pass_tokens
        outputs = core.step()
        if len(started) == len(names):
            if warm:
                draft = core.clock.draft_s - before[0]
                target = core.clock.target_s - before[1]
                other = core.clock.total_s - before[2] - draft - target
                seen = core.clock.num_pass_tokens - tokens
                samples.append(RoundSample(len(names), kappa, seen, draft, target, other))
            warm = True
        started |= {output.request_id for output in outputs if output.tokens}
        if len(samples) == num_steps:
            break
    for name in names:
        core.abort(name)
    while core.has_work:
        core.step()
    return samples


def draft_table(samples: Sequence[RoundSample], beside: Overheads | None = None) -> TableDraft:
    """Arrange the drafting times of measured rounds in a table.

    Parameters
    ----------
    samples : sequence of RoundSample
        Rounds of one drafter.
    beside : Overheads, optional
        What steps cost beside pass and drafting. What the rounds took beyond it is the
        drafter's too: a draft head is told hidden states after each pass. Nothing is added
        when None.

    Returns
    -------
    TableDraft
        Medians; kappa 0 is left out, since nothing is drafted there.

    Raises
    ------
    ConfigError
        If no round drafted.
    """
    batches = tuple(sorted({each.batch for each in samples}))
    kappas = tuple(sorted({each.kappa for each in samples if each.kappa}))
    if not kappas:
        raise ConfigError("no measured round drafted; expected drafts to learn their cost")
    seconds = np.asarray(
        [
            [
                median(
                    _drafting(s, beside) for s in samples if s.batch == batch and s.kappa == kappa
                )
                for kappa in kappas
            ]
            for batch in batches
        ]
    )
    return TableDraft(batches, kappas, seconds)


def _drafting(sample: RoundSample, beside: Overheads | None) -> float:
    if beside is None:
        return sample.draft_s
    known = beside.step_s + beside.token_s * sample.tokens + beside.speculative_s
    return sample.draft_s + max(sample.other_s - known, 0.0)


def fit_overheads(samples: Sequence[RoundSample]) -> Overheads:
    """Fit the time outside passes and drafts, with no negative constant.

    Parameters
    ----------
    samples : sequence of RoundSample
        Measured rounds.

    Returns
    -------
    Overheads
        Least squares over the medians of each shape.
    """
    shapes = sorted({(each.batch, each.kappa) for each in samples})
    rows, seconds = [], []
    for batch, kappa in shapes:
        mine = [s for s in samples if (s.batch, s.kappa) == (batch, kappa)]
        rows.append([1.0, median(s.tokens for s in mine), float(kappa > 0)])
        seconds.append(median(s.other_s for s in mine))
    found, _residual = nnls(np.asarray(rows), np.asarray(seconds))
    return Overheads(*(float(value) for value in found))
