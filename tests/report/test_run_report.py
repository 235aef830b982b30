"""What a report says of a benchmark run."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from report_kit import PLACE, figure_of, simulated, table_of
from typer.testing import CliRunner

from draftproof.bench.estimated import CellSummary, CrossingRecord, Estimate, Verdict
from draftproof.bench.run_file import write_run
from draftproof.bench.run_record import FORMAT, Arm, Condition, RunRecord, Settings, Subject
from draftproof.bench.trace_writer import round_document
from draftproof.cli import app
from draftproof.report import run_report

LOADS = (1, 4, 16)
SPEEDUPS = {"kappa 2": (1.6, 1.2, 0.9), "kappa 4": (1.9, 1.1, 0.7)}
NONE = Estimate(None, None, None, 0)


def around(value, half=0.1, n=9):
    return Estimate(value, value - half, value + half, n)


def cell(condition, arm, speedup, *, drafted=True):
    return CellSummary(
        condition=condition,
        arm=arm,
        tokens_per_s=around(40.0, 2.0),
        tpot_s=around(0.025, 0.001),
        ttft_s=around(0.2, 0.01),
        latency_s=around(2.0, 0.1),
        speedup=NONE if speedup is None else around(speedup),
        speedup_pooled=speedup,
        latency_ratio=NONE,
        acceptance_rate=0.6 if drafted else None,
        mean_acceptance_length=2.2 if drafted else None,
        acceptance_rate_per_pos=(0.7, 0.5) if drafted else (),
        acceptance_rate_per_request=0.55 if drafted else None,
        drafted_per_token=0.9 if drafted else None,
        tokens_per_chunk=1.5,
        gap_p50_s=0.02,
        gap_p99_s=0.05,
        num_requests=20,
        num_failed=0,
        is_settled=True,
    )


@pytest.fixture
def record():
    """Two arms against plain decoding at three loads; 16 in flight lose."""
    conditions = tuple(Condition("chat", 0.0, load) for load in LOADS)
    arms = (Arm("plain", 0, is_plain=True), Arm("kappa 2", 2), Arm("kappa 4", 4))
    settings = Settings(conditions, arms, 64, 4, 9, None, None, 0.9, 1, False, "built-in", True)
    cells = [cell(place, "plain", None, drafted=False) for place in range(3)]
    cells += [
        cell(place, arm, value)
        for arm, values in SPEEDUPS.items()
        for place, value in enumerate(values)
    ]
    crossing = CrossingRecord("chat", 0.0, None, "concurrency", 4.0, 16.0, 9.5, "Pays up to 4.")
    verdicts = (
        Verdict(0, "speculate", "kappa 4", "kappa 4 is 1.9 times as fast."),
        Verdict(1, "speculate", "kappa 2", "kappa 2 is 1.2 times as fast."),
        Verdict(2, "do not speculate", None, "No arm is faster."),
    )
    return RunRecord(
        FORMAT,
        Subject("engine", "smollm2", "openvino", "int8", {"method": "ngram"}),
        settings,
        PLACE,
        cells=tuple(cells),
        crossings=(crossing,),
        verdicts=verdicts,
        is_complete=True,
    )


def test_speedups_and_their_crossing_are_drawn(record):
    report = run_report(record, title="Benchmark")
    figure = figure_of(report, "speedup-1")
    assert figure.level == 1.0
    assert figure.is_log_x
    by_name = {series.name: series for series in figure.series}
    for arm, values in SPEEDUPS.items():
        assert by_name[arm].x == tuple(map(float, LOADS))
        assert by_name[arm].y == values
        assert by_name[arm].low == tuple(value - 0.1 for value in values)
    assert by_name["crossing of the best arm"].x == (9.5,)
    assert "plain" not in by_name


def test_answers_and_warnings_stand_at_the_top(record):
    report = run_report(record, title="Benchmark")
    assert report.answer[2] == "chat, greedy, 16 in flight: No arm is faster."
    assert report.is_good is None
    assert report.warnings == ()
    same = run_report(replace(record, verdicts=record.verdicts[:2]), title="x")
    assert same.is_good is True
    never = run_report(replace(record, verdicts=record.verdicts[2:]), title="x")
    assert never.is_good is False
    partial = run_report(
        replace(record, is_complete=False, warnings=("The load rose.",)), title="x"
    )
    assert partial.warnings[0] == "The load rose."
    assert "ended before" in partial.warnings[1]


def test_every_cell_is_in_the_table_and_plain_has_no_rate(record):
    rows = table_of(run_report(record, title="x"), "cells")
    assert len(rows) == 9
    assert {row["load"] for row in rows} == {1.0, 4.0, 16.0}
    for row in rows:
        is_plain = row["arm"] == "plain"
        assert (row["acceptance, pooled"] is None) == is_plain
        assert (row["speedup"] is None) == is_plain
        assert row["rounds"] == 9
    positions = table_of(run_report(record, title="x"), "positions")
    assert len(positions) == 6
    assert positions[0]["position 2"] == 0.5


def test_workloads_and_temperatures_have_figures_of_their_own(record):
    more = tuple(Condition("code", 1.0, None, rate) for rate in (0.5, 2.0))
    settings = replace(record.settings, conditions=(*record.settings.conditions, *more))
    cells = (*record.cells, cell(3, "kappa 2", 1.3), cell(4, "kappa 2", 1.1))
    report = run_report(replace(record, settings=settings, cells=cells), title="x")
    assert figure_of(report, "speedup-2").x_label == "requests per second"
    assert figure_of(report, "speedup-2").title == "code, temperature 1"
    assert len(figure_of(report, "speedup-1").series) == 3


def test_a_run_without_results_is_still_a_report(record):
    empty = replace(record, cells=(), crossings=(), verdicts=(), is_complete=False)
    report = run_report(empty, title="x")
    assert report.answer == ("The run holds no verdict.",)
    assert [section.title for section in report.sections] == ["Environment"]


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_verb_writes_page_tables_and_figures(record, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    source = tmp_path / "run.json"
    write_run(record, source)
    result = invoke("report", source, "--csv", tmp_path / "t", "--png", tmp_path / "f")
    assert result.exit_code == 0, result.stderr
    written = result.stdout.split()
    assert written[0] == str(tmp_path / "run.html")
    assert str(tmp_path / "t" / "cells.csv") in written
    assert str(tmp_path / "f" / "speedup-1.png") in written
    assert "No arm is faster." in (tmp_path / "run.html").read_text()
    assert "No arm is faster." in result.stderr


def test_the_verb_reads_traces_and_compares_profiles_only_with_them(record, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    run, trace = tmp_path / "run.json", tmp_path / "trace.jsonl"
    write_run(record, run)
    result = invoke("report", run, "--profile", tmp_path / "p.json")
    assert result.exit_code == 2
    assert "is for traces" in result.stderr
    _write_trace(trace)
    result = invoke("report", trace, "-q", "-o", tmp_path / "page.html")
    assert result.exit_code == 0, result.stderr
    assert "rounds" not in result.stderr
    assert "Trace of simulated" in (tmp_path / "page.html").read_text()
    assert "needs --profile" in invoke("report", trace, "--drafter", "x").stderr
    assert "is the source" in invoke("report", trace, "-o", trace).stderr


def _write_trace(path):

    run = simulated([0.6] * 2, rounds=30).runs[0]
    lines = [{"kind": "run", **asdict(run.header)}]
    for each in run.rounds:
        head = {"kind": "round", "request": each.request, "at_s": each.at_s}
        lines.append(head | round_document(each.trace))
    lines += [{"kind": "request", **asdict(each)} for each in run.requests]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
