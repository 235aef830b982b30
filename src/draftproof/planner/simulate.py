"""A deterministic simulation of a server under load, to compare policies.

Requests arrive at random, have their own acceptance, and share passes whose seconds
come from a cost model. What a draft would do is fixed per request and position, so
that two policies that draft the same get the same, and differences are theirs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

from draftproof.core.kappa_policy import KappaPolicy, RowChoice, RowState
from draftproof.core.types import StepRecord
from draftproof.errors import ConfigError
from draftproof.planner.rounds import RoundCost

__all__ = [
    "SchedulePolicy",
    "SimulatedRequest",
    "SimulationResult",
    "StaticPolicy",
    "poisson_requests",
    "simulate",
]

#: Coins per request; drafts at later positions reuse them in a fixed order.
_COINS = 4096


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request of the load.

    Parameters
    ----------
    arrival_s : float
        When it arrives.
    prompt_tokens, output_tokens : int
        Its lengths.
    alpha : float
        Its acceptance rate, the same at every position.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    alpha: float


def poisson_requests(
    count: int,
    rate_per_s: float,
    alphas: Sequence[float],
    weights: Sequence[float],
    *,
    prompt_tokens: int = 512,
    output_tokens: int = 200,
    seed: int = 0,
) -> list[SimulatedRequest]:
    """Return a load with exponential gaps, mixed acceptance and varied lengths.

    Parameters
    ----------
    count : int
        Requests.
    rate_per_s : float
        Mean arrivals per second.
    alphas, weights : sequence of float
        Acceptance rates of the kinds of requests, and their shares.
    prompt_tokens, output_tokens : int
        Mean lengths; each request's are uniform between half and one and a half.
    seed : int
        Seed of the load.

    Returns
    -------
    list of SimulatedRequest
        In order of arrival.
    """
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / rate_per_s, count))
    kinds = rng.choice(len(alphas), size=count, p=np.asarray(weights))
    prompts = rng.integers(prompt_tokens // 2, prompt_tokens * 3 // 2 + 1, count)
    outputs = rng.integers(max(output_tokens // 2, 1), output_tokens * 3 // 2 + 1, count)
    return [
        SimulatedRequest(float(arrivals[i]), int(prompts[i]), int(outputs[i]), alphas[kinds[i]])
        for i in range(count)
    ]


@dataclass(frozen=True, slots=True)
class StaticPolicy:
    """The same number of drafts for every row; 0 is plain decoding.

    Parameters
    ----------
    kappa : int
        Drafts.
    proposer : str
        Who makes them.
    """

    kappa: int
    proposer: str = "draft"

    def choose(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Return the fixed choice, cut to each row's limit."""
        return [_choice(min(self.kappa, row.max_kappa), self.proposer) for row in rows]

    def observe(self, record: StepRecord) -> None:
        """Learn nothing."""

    def release(self, request_id: str) -> None:
        """Forget nothing."""

    def reset(self) -> None:
        """Forget nothing."""


@dataclass(frozen=True, slots=True)
class SchedulePolicy:
    """Drafts by batch size, as a table.

    Parameters
    ----------
    ranges : tuple of (int, int, int)
        First batch, last batch, drafts; beyond the last range nothing is drafted.
    proposer : str
        Who makes them.
    """

    ranges: tuple[tuple[int, int, int], ...]
    proposer: str = "draft"

    def choose(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Return the choice of this batch size."""
        kappa = next((k for low, high, k in self.ranges if low <= len(rows) <= high), 0)
        return [_choice(min(kappa, row.max_kappa), self.proposer) for row in rows]

    def observe(self, record: StepRecord) -> None:
        """Learn nothing."""

    def release(self, request_id: str) -> None:
        """Forget nothing."""

    def reset(self) -> None:
        """Forget nothing."""


@cache
def _choice(kappa: int, proposer: str) -> RowChoice:
    return RowChoice(kappa, proposer) if kappa else RowChoice(0)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a policy achieved.

    Parameters
    ----------
    tokens_per_s : float
        Committed tokens per second, from the first arrival to the last token.
    latencies_s : tuple of float
        Seconds from arrival to last token, by request.
    token_times_s : tuple of float
        Seconds per output token from admission, by request.
    num_steps : int
        Passes.
    drafted, accepted : int
        Draft tokens and those that survived.
    mean_batch : float
        Rows per pass.
    """

    tokens_per_s: float
    latencies_s: tuple[float, ...]
    token_times_s: tuple[float, ...]
    num_steps: int
    drafted: int
    accepted: int
    mean_batch: float

    def goodput(self, limit_s: float, outputs: Sequence[int], seconds: float) -> float:
        """Return tokens per second of requests that kept a limit per output token.

        Parameters
        ----------
        limit_s : float
            Most seconds per output token.
        outputs : sequence of int
            Output tokens by request.
        seconds : float
            Length of the run.

        Returns
        -------
        float
            Tokens of the requests within the limit, by the seconds.
        """
        pairs = zip(self.token_times_s, outputs, strict=True)
        return sum(tokens for each, tokens in pairs if each <= limit_s) / seconds


@dataclass(slots=True)
class _Running:
    index: int
    name: str
    cached: int
    left: int
    admitted_s: float
    runs: list[int]
    place: int = 0


@dataclass(slots=True)
class _Books:
    steps: int = 0
    rows: int = 0
    drafted: int = 0
    accepted: int = 0
    done: dict[int, tuple[float, float]] = field(default_factory=dict)


def simulate(
    requests: Sequence[SimulatedRequest],
    cost: RoundCost,
    policy: KappaPolicy,
    *,
    max_rows: int = 256,
    max_kappa: int = 8,
    proposers: tuple[str, ...] = ("draft",),
    on_step: Callable[[float, int], None] | None = None,
) -> SimulationResult:
    """Run a load to its end.

    Parameters
    ----------
    requests : sequence of SimulatedRequest
        In order of arrival.
    cost : RoundCost
        Seconds of passes and drafts, the same for all drafters.
    policy : KappaPolicy
        Chooses the drafts.
    max_rows : int
        Most requests that run at once; the others wait.
    max_kappa : int
        Most drafts of a row.
    proposers : tuple of str
        Drafters that rows may use.
    on_step : callable, optional
        Told the time and the rows of each pass.

    Returns
    -------
    SimulationResult
        Totals and times by request.

    Raises
    ------
    ConfigError
        If there are no requests.
    """
    if not requests:
        raise ConfigError("no requests to simulate; expected at least one")
    waiting = [(request.arrival_s, index) for index, request in enumerate(requests)]
    heapq.heapify(waiting)
    running: list[_Running] = []
    books = _Books()
    now = requests[0].arrival_s
    while waiting or running:
        if not running:
            now = max(now, waiting[0][0])
        prompt = 0
        while waiting and waiting[0][0] <= now and len(running) < max_rows:
            _arrival, index = heapq.heappop(waiting)
            running.append(_admit(requests[index], index, now))
            prompt += requests[index].prompt_tokens
        now += _step(running, cost, policy, books, prompt, max_kappa, proposers)
        running = _finish(running, policy, requests, books, now)
        if on_step is not None:
            on_step(now, len(running))
    total = sum(request.output_tokens for request in requests)
    times = [books.done[index] for index in range(len(requests))]
    return SimulationResult(
        tokens_per_s=total / (now - requests[0].arrival_s),
        latencies_s=tuple(latency for latency, _ in times),
        token_times_s=tuple(per_token for _, per_token in times),
        num_steps=books.steps,
        drafted=books.drafted,
        accepted=books.accepted,
        mean_batch=books.rows / books.steps,
    )


def _admit(request: SimulatedRequest, index: int, now: float) -> _Running:
    survives = np.random.default_rng([index, 7]).random(_COINS) < request.alpha
    return _Running(
        index, str(index), request.prompt_tokens, request.output_tokens, now, _run_lengths(survives)
    )


def _run_lengths(survives: NDArray[np.bool_]) -> list[int]:
    """Return how many drafts in a row survive from each position on."""
    places = np.arange(len(survives))
    ends = np.where(survives, len(survives), places)
    next_end = np.minimum.accumulate(ends[::-1])[::-1]
    lengths: list[int] = (next_end - places).tolist()
    return lengths


def _step(
    running: Sequence[_Running],
    cost: RoundCost,
    policy: KappaPolicy,
    books: _Books,
    prompt: int,
    max_kappa: int,
    proposers: tuple[str, ...],
) -> float:
    """Run one pass over all rows and return its seconds; prompts ride along."""
    states = [
        RowState(row.name, row.cached, min(max_kappa, row.left - 1), proposers, remaining=row.left)
        for row in running
    ]
    choices = policy.choose(states)
    kappas = np.asarray([choice.kappa for choice in choices])
    batch = len(running)
    context = sum(row.cached for row in running) / batch
    tokens = np.asarray([float(batch + prompt + kappas.sum())])
    seconds = float(cost.pass_seconds(batch, tokens, context)[0])
    for depth in range(1, int(kappas.max()) + 1):
        rows = np.asarray([float((kappas >= depth).sum())])
        seconds += float(cost.draft.depth_seconds(depth, rows, context)[0])
    books.steps += 1
    books.rows += batch
    for row, choice in zip(running, choices, strict=True):
        accepted = min(choice.kappa, row.runs[row.place % _COINS])
        committed = min(accepted + 1, row.left)
        row.place += committed
        row.cached += committed
        row.left -= committed
        books.drafted += choice.kappa
        books.accepted += accepted
        policy.observe(
            StepRecord(row.name, row.place, (0,) * choice.kappa, accepted, (0,) * committed)
        )
    return seconds


def _finish(
    running: list[_Running],
    policy: KappaPolicy,
    requests: Sequence[SimulatedRequest],
    books: _Books,
    now: float,
) -> list[_Running]:
    left = []
    for row in running:
        if row.left:
            left.append(row)
            continue
        policy.release(row.name)
        request = requests[row.index]
        per_token = (now - row.admitted_s) / request.output_tokens
        books.done[row.index] = (now - request.arrival_s, per_token)
    return left
