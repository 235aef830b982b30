"""Which arm runs when: rounds, orders, early ends, budgets.

Every round of a condition runs all of its open arms on the same prompts in random
order, and conditions take turns, so that a machine that slows down weighs on all alike.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from draftproof.bench.engine_runner import Runner
from draftproof.bench.measured import Measurement
from draftproof.bench.run_record import Arm, Condition, Settings
from draftproof.bench.streams import Ask, Load, Outcome, gaps_of, prompts_digest
from draftproof.bench.summary import is_settled

__all__ = ["Campaign", "Progress", "whole_rounds"]

#: Fillers that stand by, per counted request.
_FILLERS = 3
#: Tokens of a request that warms up.
_WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a campaign has come.

    Parameters
    ----------
    done, total : int
        Measurements; those that an early end saves count as done.
    seconds_left : float or None
        At the pace so far and within the budget; None before the first round.
    doing : str
        What is being done.
    """

    done: int
    total: int
    seconds_left: float | None
    doing: str


@dataclass(slots=True)
class Campaign:
    """Runs a grid.

    Parameters
    ----------
    settings : Settings
        The grid.
    runner : Runner
        Decodes.
    prompt_of : callable
        Turns of a chat by workload and number.
    shares_cache : bool
        Whether all arms meet the same prefix cache, so that prompts are read once before
        the first of them.
    clock : callable
        Seconds, rising.
    on_measured : callable, optional
        Given each measurement at once.
    on_progress : callable, optional
        Told how far it is.
    """

    settings: Settings
    runner: Runner
    prompt_of: Callable[[str, int], tuple[tuple[str, str], ...]]
    shares_cache: bool = True
    clock: Callable[[], float] = time.perf_counter
    on_measured: Callable[[Measurement], None] = lambda _measurement: None
    on_progress: Callable[[Progress], None] = lambda _progress: None
    _begin: float = 0.0
    _measured: list[Measurement] = field(default_factory=list)
    _of: dict[int, list[Measurement]] = field(default_factory=dict)
    _open: dict[int, tuple[Arm, ...]] = field(default_factory=dict)
    _costs: dict[int, list[float]] = field(default_factory=dict)
    _warm: set[int] = field(default_factory=set)

    def run(self, earlier: Sequence[Measurement] = ()) -> tuple[Measurement, ...]:
        """Measure what is not measured yet.

        Parameters
        ----------
        earlier : sequence of Measurement
            Whole rounds of an interrupted run.

        Returns
        -------
        tuple of Measurement
            Those and the new ones.
        """
        self._begin = self.clock()
        for measurement in earlier:
            self._keep(measurement)
        held = {(each.condition, each.round) for each in earlier}
        for number in range(self.settings.rounds):
            order = list(range(len(self.settings.conditions)))
            random.Random(f"{self.settings.seed} conditions {number}").shuffle(order)
            for condition in order:
                if (condition, number) not in held:
                    self._round(condition, number)
        self._tell("done")
        return tuple(self._measured)

    @property
    def is_complete(self) -> bool:
        """Whether every condition has all of its rounds or is settled."""
        return all(
            self._rounds_of(index) >= self.settings.rounds or not self._open_arms(index)
            for index in range(len(self.settings.conditions))
        )

    def _round(self, condition: int, number: int) -> None:
        arms = list(self._open_arms(condition))
        if not arms or self._is_too_late(condition):
            return
        settings = self.settings
        asked = settings.conditions[condition]
        load = self._load(condition, number)
        begin = self.clock()
        if condition not in self._warm:
            self._warm.add(condition)
            self._tell(f"warming up {_name(asked)}")
            self._warm_up(asked, arms, load)
        if self.shares_cache and len(arms) > 1:
            self.runner.prime(asked, load.asks)
        random.Random(f"{settings.seed} arms {condition} {number}").shuffle(arms)
        for place, arm in enumerate(arms):
            self._tell(f"{_name(asked)}, {arm.name}, round {number + 1}")
            begun_s = self.clock() - self._begin
            outcome = self.runner.run(asked, arm, load, settings.max_tokens)
            measurement = _measurement(condition, arm, number, place, begun_s, outcome, load)
            self._keep(measurement)
            self.on_measured(measurement)
        self._costs.setdefault(condition, []).append(self.clock() - begin)

    def _keep(self, measurement: Measurement) -> None:
        self._measured.append(measurement)
        self._of.setdefault(measurement.condition, []).append(measurement)
        self._open.pop(measurement.condition, None)

    def _warm_up(self, condition: Condition, arms: Sequence[Arm], load: Load) -> None:
        """Run the plainest and the widest arm for a few tokens, on prompts that do not count."""
        asks = load.fillers or load.asks
        short = Load(asks[: condition.concurrency or 1], concurrency=condition.concurrency or 1)
        ordered = sorted(arms, key=lambda arm: (arm.kappa is None, arm.kappa or 0))
        for arm in dict.fromkeys((ordered[0], ordered[-1])):
            self.runner.run(condition, arm, short, min(_WARM_TOKENS, self.settings.max_tokens))

    def _open_arms(self, condition: int) -> tuple[Arm, ...]:
        """Return the arms that still need rounds, with the plain one they are divided by."""
        if condition not in self._open:
            held, settings = self._of.get(condition, []), self.settings
            arms = tuple(a for a in settings.arms if not is_settled(settings, held, condition, a))
            is_over = all(arm.is_plain for arm in arms) and len(settings.arms) > 1
            self._open[condition] = () if is_over else arms
        return self._open[condition]

    def _rounds_of(self, condition: int) -> int:
        return len({each.round for each in self._of.get(condition, [])})

    def _is_too_late(self, condition: int) -> bool:
        if self.settings.minutes is None:
            return False
        costs = self._costs.get(condition, [])
        expected = statistics.median(costs) if costs else 0.0
        spent = self.clock() - self._begin
        return spent + expected > 60.0 * self.settings.minutes

    def _load(self, condition: int, number: int) -> Load:
        """Return the prompts of a round: no other round or condition of a run has them."""
        settings = self.settings
        asked = settings.conditions[condition]
        slots = [_slots(settings, each) for each in settings.conditions]
        alike = [
            index
            for index, each in enumerate(settings.conditions)
            if each.workload == asked.workload
        ]
        per_round = sum(slots[index] * (1 + _FILLERS) for index in alike)
        before = sum(slots[index] * (1 + _FILLERS) for index in alike if index < condition)
        first = number * per_round + before
        asks = [
            Ask(
                place,
                self.prompt_of(asked.workload, place),
                _seed(settings.seed, asked.workload, place),
            )
            for place in range(first, first + slots[condition] * (1 + _FILLERS))
        ]
        count = slots[condition]
        if asked.concurrency is not None:
            return Load(tuple(asks[:count]), tuple(asks[count:]), asked.concurrency)
        rng = random.Random(f"{settings.seed} arrivals {condition} {number}")
        at, arrivals = 0.0, []
        for _ in range(count):
            at += rng.expovariate(asked.rate or 1.0)
            arrivals.append(at)
        return Load(tuple(asks[:count]), (), None, tuple(arrivals))

    def _tell(self, doing: str) -> None:
        settings = self.settings
        total = settings.rounds * len(settings.conditions) * len(settings.arms)
        known = [cost for held in self._costs.values() for cost in held]
        usual = statistics.median(known) if known else 0.0
        left, seconds = 0, 0.0
        for index in range(len(settings.conditions)):
            held = [measurement.arm for measurement in self._of.get(index, [])]
            mine = sum(settings.rounds - held.count(a.name) for a in self._open_arms(index))
            left += mine
            costs = self._costs.get(index)
            each = statistics.median(costs) if costs else usual
            seconds += mine * each / len(settings.arms)
        spent = self.clock() - self._begin
        if settings.minutes is not None:
            seconds = min(seconds, max(0.0, 60.0 * settings.minutes - spent))
        remaining = seconds if known else None
        self.on_progress(Progress(max(0, total - left), total, remaining, doing))


def whole_rounds(
    settings: Settings, measurements: Sequence[Measurement]
) -> tuple[Measurement, ...]:
    """Return the measurements of rounds that ended: those of a torn one are of no use.

    Parameters
    ----------
    settings : Settings
        Of the run.
    measurements : sequence of Measurement
        In the order in which they were made.

    Returns
    -------
    tuple of Measurement
        All but those of the last round, where it lacks an arm.
    """
    if not measurements:
        return ()
    last = (measurements[-1].condition, measurements[-1].round)
    before = [each for each in measurements if (each.condition, each.round) != last]
    names = {each.arm for each in measurements if (each.condition, each.round) == last}
    expected = {arm.name for arm in settings.arms if not is_settled(settings, before, last[0], arm)}
    return tuple(measurements) if expected <= names else tuple(before)


def _slots(settings: Settings, condition: Condition) -> int:
    return settings.requests_per_slot * (condition.concurrency or 1)


def _name(condition: Condition) -> str:
    load = (
        f"{condition.rate:g}/s"
        if condition.concurrency is None
        else f"{condition.concurrency} in flight"
    )
    return f"{condition.workload}, T={condition.temperature:g}, {load}"


def _seed(seed: int, workload: str, place: int) -> int:
    """Return the seed of a request, which all arms share; 31 bits, as every server takes them."""
    digest = hashlib.sha256(f"{seed}\n{workload}\n{place}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def _measurement(
    condition: int, arm: Arm, number: int, place: int, begun_s: float, outcome: Outcome, load: Load
) -> Measurement:
    return Measurement(
        condition=condition,
        arm=arm.name,
        round=number,
        order=place,
        begun_s=begun_s,
        wall_s=outcome.wall_s,
        requests=tuple(stream.record() for stream in outcome.streams),
        gaps=gaps_of(outcome.streams),
        acceptance=outcome.acceptance,
        prompts_digest=prompts_digest(load.asks),
        token_counts=outcome.token_counts,
    )
