"""Rounds, early ends, budgets, interruptions: on a runner that only moves a clock."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from draftproof.bench.measured import Acceptance
from draftproof.bench.run_file import Journal, dump_run, parse_run, read_run
from draftproof.bench.run_record import Condition
from draftproof.bench.running import Bench, run_bench
from draftproof.bench.streams import Outcome, Stream
from draftproof.errors import ConfigError

GRID = [Condition("chat", 0.0, 1), Condition("chat", 0.0, 2), Condition("story", 1.0, 1)]


class PlantedRunner:
    """Every arm takes its planted seconds per token, times a factor of each prompt."""

    def __init__(self, clock, speedups, *, noise=0.1, chunk=1, dies_at=None):
        self.clock, self.speedups = clock, speedups
        self.noise, self.chunk, self.dies_at = noise, chunk, dies_at
        self.num_runs, self.primed, self.ran = 0, [], []

    def prime(self, condition, asks):
        self.primed.append([ask.prompt for ask in asks])

    def run(self, condition, arm, load, max_tokens):
        self.num_runs += 1
        if self.num_runs == self.dies_at:
            raise KeyboardInterrupt
        self.ran.append((condition, arm.name, max_tokens))
        streams = []
        for ask in load.asks:
            factor = random.Random(f"{ask.prompt} {arm.name}").gauss(1.0, self.noise)
            tpot_s = 0.010 * factor / self.speedups.get(arm.name, 1.0)
            stream = Stream(ask, 0.0, 0.0)
            for place in range(max(1, max_tokens // self.chunk)):
                stream.add(0.5 + tpot_s * self.chunk * place, self.chunk)
            streams.append(stream)
        wall_s = max(stream.portions[-1][0] for stream in streams)
        self.clock.sleep(wall_s)
        drafts = 0 if arm.is_plain else 10
        return Outcome(tuple(streams), wall_s, Acceptance(drafts, 3 * drafts, drafts), "engine")


@pytest.fixture
def make(tools):
    def build(speedups=None, *, output=None, resumes=False, runner=None, **changes):
        clock = tools.ManualClock()
        options = {key: changes.pop(key) for key in ("noise", "chunk", "dies_at") if key in changes}
        planted = runner or PlantedRunner(clock, speedups or {"kappa 3": 1.5}, **options)
        planted.clock = clock
        shares = changes.pop("shares_cache", True)
        settings = tools.settings(changes.pop("conditions", GRID), **changes)
        bench = Bench(
            tools.SUBJECT, settings, tools.environment(), tools.NumberedPrompts(), output, resumes,
            shares,
        )  # fmt: skip
        return (lambda: run_bench(bench, planted, clock=clock)), planted

    return build


def keys(record):
    return {
        (each.condition, each.round, each.arm, each.prompts_digest) for each in record.measurements
    }


def speedup_of(record, arm="kappa 3", condition=0):
    return next(
        cell.speedup for cell in record.cells if (cell.arm, cell.condition) == (arm, condition)
    )


def test_every_condition_gets_every_round(make):
    run, runner = make(rounds=4)
    record = run()
    assert len(record.measurements) == 3 * 4 * 2
    assert record.is_complete
    assert len(runner.primed) == 3 * 4
    warm = [each for each in runner.ran if each[2] == 8]
    assert len(warm) == 3 * 2
    assert speedup_of(record).n == 4


def test_progress_counts_measurements_and_ends_at_the_total(tools):
    told = []
    clock = tools.ManualClock()
    settings = tools.settings(GRID[:2], rounds=3)
    bench = Bench(tools.SUBJECT, settings, tools.environment(), tools.NumberedPrompts())
    run_bench(bench, PlantedRunner(clock, {}), clock=clock, on_progress=told.append)
    counts = [each.done for each in told if "round" in each.doing]
    assert counts == list(range(2 * 3 * 2))
    assert (told[-1].done, told[-1].total) == (12, 12)
    assert (told[0].seconds_left, told[-1].seconds_left) == (None, 0.0)


def test_servers_apart_are_not_primed(make):
    run, runner = make(shares_cache=False)
    run()
    assert runner.primed == []


@pytest.mark.parametrize("chunk", [1, 2, 4, 8, 16])
def test_the_planted_speedup_is_recovered_at_any_tokens_per_portion(make, chunk):
    run, _ = make({"kappa 3": 1.5}, chunk=chunk, max_tokens=64, noise=0.0)
    record = run()
    found = speedup_of(record)
    assert found.value == pytest.approx(1.5)
    assert (found.low, found.high) == (pytest.approx(1.5), pytest.approx(1.5))
    cell = next(cell for cell in record.cells if cell.arm == "plain")
    assert cell.tpot_s.value == pytest.approx(0.010)
    assert cell.tokens_per_chunk == chunk
    assert cell.ttft_s.value == pytest.approx(0.5)


@pytest.mark.statistical
def test_planted_speedups_are_covered_at_the_confidence(make):
    """Forty-eight cells of 95 %: fewer than 40 hits have a probability below 1e-3."""
    grid = [Condition(f"kind {n}", 0.0, 1) for n in range(48)]
    run, _ = make({"kappa 3": 1.5}, conditions=grid, rounds=9, width=0.2, noise=0.1)
    record = run()
    # Medians of the ratio of two normal factors around 1 are 1.5.
    cells = [cell.speedup for cell in record.cells if cell.arm == "kappa 3"]
    assert sum(cell.low <= 1.5 <= cell.high for cell in cells) >= 40


def test_an_arm_ends_when_its_interval_is_narrow_and_plain_goes_on_with_the_others(make):
    run, _ = make(
        {"kappa 3": 1.5, "kappa 5": 2.0},
        conditions=GRID[:1],
        kappas=(3, 5),
        rounds=19,
        width=0.02,
        noise=0.0,
    )
    record = run()
    assert {
        len([m for m in record.measurements if m.arm == name]) for name in ("plain", "kappa 3")
    } == {6}
    assert record.is_complete
    assert all(cell.is_settled for cell in record.cells if cell.arm != "plain")
    run, _ = make(conditions=GRID[:1], rounds=9, width=1e-6, noise=0.2)
    record = run()
    assert len(record.measurements) == 18
    assert not any(cell.is_settled for cell in record.cells)


def test_time_ends_a_run_and_says_so(make):
    run, _ = make(rounds=50, minutes=0.5)
    record = run()
    assert not record.is_complete
    assert "the time ran out before all rounds were run" in record.warnings
    last = record.measurements[-1]
    assert last.begun_s + last.wall_s <= 30.0
    rounds = {
        index: len({m.round for m in record.measurements if m.condition == index})
        for index in range(3)
    }
    assert max(rounds.values()) - min(rounds.values()) <= 1


@pytest.mark.parametrize("dies_at", [1, 9, 20])
def test_an_interrupted_run_goes_on_where_it_was(make, tmp_path, dies_at):
    whole, _ = make(rounds=3)
    expected = keys(whole())
    path = tmp_path / "run.json"
    run, _ = make(rounds=3, output=path, dies_at=dies_at)
    with pytest.raises(KeyboardInterrupt):
        run()
    with Journal(path).path.open("ab") as file:
        file.write(b'{"condition": 0, "arm"')
    refused, _ = make(rounds=3, output=path)
    with pytest.raises(ConfigError, match="expected --resume or another --output"):
        refused()
    again, _ = make(rounds=3, output=path, resumes=True)
    record = again()
    assert keys(record) == expected
    assert len(record.measurements) == len(expected)
    assert record.is_complete
    assert not Journal(path).path.exists()
    assert read_run(path) == record


def test_other_options_do_not_go_on(make, tmp_path):
    path = tmp_path / "run.json"
    run, _ = make(output=path)
    run()
    for changes, name in (({"seed": 3}, "seed"), ({"max_tokens": 9}, "max_tokens")):
        other, _ = make(output=path, resumes=True, **changes)
        with pytest.raises(ConfigError, match=f"another {name}"):
            other()


def test_runs_survive_their_file(make):
    run, _ = make()
    record = run()
    assert parse_run(dump_run(record), "it") == record
    for text, complaint in (
        ("{", "not a run"),
        ('{"format": 99}', "format 99"),
        ('{"format": 1}', "damaged at subject"),
        (dump_run(record).replace('"wall_s":', '"wall_t":'), "damaged at measurements"),
    ):
        with pytest.raises(ConfigError, match=complaint):
            parse_run(text, "it")


def test_an_arm_that_never_drafts_is_told(make, tools):
    class Silent(PlantedRunner):
        def run(self, condition, arm, load, max_tokens):
            outcome = super().run(condition, arm, load, max_tokens)
            return replace(outcome, acceptance=Acceptance(0, 0, 0))

    run, _ = make(runner=Silent(None, {}))
    record = run()
    assert "kappa 3: nothing was drafted" in record.warnings
    cell = next(cell for cell in record.cells if cell.arm == "kappa 3")
    assert (cell.acceptance_rate, cell.mean_acceptance_length) == (None, None)


def test_pooled_and_per_request_rates_are_told_apart(make):
    """Seven requests of 1 in 10 and one of 3200 in 4000: .788 pooled, .1875 on average."""

    class Uneven(PlantedRunner):
        def run(self, condition, arm, load, max_tokens):
            outcome = super().run(condition, arm, load, max_tokens)
            for stream in outcome.streams:
                stream.acceptance_rate = 0.1
            outcome.streams[-1].acceptance_rate = 0.8
            return replace(outcome, acceptance=Acceptance(1000, 4070, 3207))

    run, _ = make(conditions=[Condition("chat", 0.0, 8)], runner=Uneven(None, {}))
    cell = next(cell for cell in run().cells if cell.arm == "kappa 3")
    assert cell.acceptance_rate == pytest.approx(0.788, abs=1e-3)
    assert cell.acceptance_rate_per_request == pytest.approx(0.1875)
