"""What a report says of traces whose truth is known."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from report_kit import figure_of, round_of, simulated, table_of

from draftproof.bench.trace_record import Trace, TracedRound
from draftproof.planner.cost import AffineCost
from draftproof.planner.rounds import ParallelDraft, RoundCost
from draftproof.report import trace_report
from draftproof.report.page import csv_text
from draftproof.report.trace_counts import count_sources, wilson

ALPHA = 0.7


@pytest.fixture(scope="module")
def report():
    """Four requests at one rate, drafts of three lengths."""
    return trace_report(simulated([ALPHA] * 4, kappa=(3, 4, 6)), title="Simulated")


@pytest.mark.statistical
def test_the_numbers_recover_the_rate_that_was_simulated(report):
    """Fixed seed. Over fresh seeds each bound of 4.5 errors would be crossed with
    probability below 1e-5, 1e-4 for the whole test; a bias of 0.06 in the rate is seen."""
    rows = table_of(report, "positions")
    assert len(rows) == 6
    before = None
    for place, row in enumerate(rows, start=1):
        error = np.sqrt(ALPHA * (1 - ALPHA) / row["reached"])
        assert abs(row["conditional rate"] - ALPHA) < 4.5 * error
        assert row["conditional rate"] == row["accepted"] / row["reached"]
        assert row["low"] < row["conditional rate"] < row["high"]
        assert row["alpha^i"] == pytest.approx(ALPHA**place, abs=0.05)
        assert row["survival low"] <= row["survival"] <= row["survival high"]
        # Whoever was kept before and drafted further got here.
        assert before is None or row["reached"] <= before
        before = row["accepted"]
    assert rows[0]["drafted"] == rows[0]["reached"] == 4 * 199
    assert rows[5]["drafted"] == 4 * 66
    assert report.warnings == ()


def test_accepted_lengths_are_counted_and_expected(report):
    rows = table_of(report, "lengths")
    assert sum(row["rounds"] for row in rows) == 4 * 199
    assert sum(row["rounds at constant alpha"] for row in rows) == pytest.approx(4 * 199, abs=0.5)
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    for row in rows:
        spread = 4.5 * np.sqrt(row["rounds at constant alpha"])
        assert abs(row["rounds"] - row["rounds at constant alpha"]) < spread + 1


def test_totals_say_how_they_were_pooled(report):
    rows = {row["figure"]: row for row in table_of(report, "summary")}
    trace = simulated([ALPHA] * 4, kappa=(3, 4, 6))
    rounds = [each.trace for each in trace.runs[0].rounds]
    drafted = sum(len(each.draft_ids) for each in rounds)
    accepted = sum(len(each.path) for each in rounds)
    assert rows["acceptance rate"]["value"] == f"{accepted / drafted:.3f}"
    assert rows["acceptance rate"]["how"] == f"pooled: {accepted} of {drafted}"
    assert rows["acceptance rate by request"]["how"] == "mean over 4 requests that drafted"
    assert rows["mean acceptance length"]["value"] == f"{1 + accepted / (4 * 199):.3f}"


def test_a_mixture_is_not_taken_for_an_improving_drafter():
    """Two kinds of requests at constant rates: the pooled conditional rate must rise."""
    report = trace_report(simulated([0.95, 0.2] * 4, kappa=5), title="Mixture")
    assert any("hard requests drop out" in warning for warning in report.warnings)
    assert any("requests differ" in warning for warning in report.warnings)
    rates = [row["conditional rate"] for row in table_of(report, "positions")]
    assert rates[-1] > rates[0] + 0.2


def test_nothing_drafted_is_not_a_rate_of_zero():
    report = trace_report(simulated([0.5], kappa=0), title="Plain")
    rows = {row["figure"]: row["value"] for row in table_of(report, "summary")}
    assert rows["acceptance rate"] == rows["mean acceptance length"] == "n/a"
    assert rows["acceptance rate by request"] == "n/a"
    assert report.answer[0].endswith("nothing was drafted.")
    assert {section.title for section in report.sections} >= {"Where the time goes", "Environment"}
    assert "Acceptance by position" not in {section.title for section in report.sections}
    (request,) = table_of(report, "requests")
    assert request["accepted / drafted"] is None
    (table,) = [table for table in report.tables if table.name == "requests"]
    assert list(csv.reader(io.StringIO(csv_text(table))))[1][5] == "n/a"


def test_drafters_and_their_parts_are_told_apart():
    draws = np.random.default_rng(3)
    mixed = [
        replace(round_of(draws, kappa=3, alpha=0.8, number=1), drafter="hybrid",
                sources=("suffix", "suffix", "draft-model"))
        for _ in range(300)
    ]  # fmt: skip
    found = count_sources([*mixed, round_of(draws, kappa=2, alpha=0.4, number=2)])
    assert list(found) == [("hybrid", "suffix"), ("hybrid", "draft-model"), ("ngram", "ngram")]
    first, second = found["hybrid", "suffix"], found["hybrid", "draft-model"]
    assert (first.rounds, first.drafted, second.drafted) == (300, 600, 300)
    assert second.reached == sum(len(each.path) >= 2 for each in mixed)
    assert second.accepted == sum(len(each.path) == 3 for each in mixed)
    # Drafts are certain, so min(1, p / q) is p, which was the rate.
    assert first.overlap / first.known == pytest.approx(0.8)


def test_siblings_of_a_tree_are_reached_together():
    draws = np.random.default_rng(3)
    tree = replace(
        round_of(draws, kappa=4, alpha=1.0, number=1),
        parents=(-1, -1, 0, 1),
        p=(0.2, 0.5, None, 0.5),
        path=(1, 3),
    )
    (counts,) = count_sources([tree]).values()
    assert (counts.drafted, counts.reached, counts.accepted, counts.known) == (4, 3, 2, 3)
    report = trace_report(_of([tree]), title="Tree")
    assert [row["accepted"] for row in table_of(report, "positions")] == [1, 1]


def test_the_end_of_a_grammar_counts_as_a_kept_draft():
    draws = np.random.default_rng(3)
    last = replace(
        round_of(draws, kappa=3, alpha=1.0, number=1), path=(0, 1), token_id=2,
        token_source="accepted", committed=(0, 1, 2),
    )  # fmt: skip
    (counts,) = count_sources([last]).values()
    assert (counts.reached, counts.accepted) == (3, 3)
    report = trace_report(_of([last]), title="Grammar")
    assert [row["accepted"] for row in table_of(report, "positions")] == [1, 1, 1]


def _of(rounds):
    run = simulated([0.5], rounds=1).runs[0]
    held = tuple(TracedRound("x", 0.1 * i, each) for i, each in enumerate(rounds, start=1))
    return Trace((replace(run, rounds=held, requests=()),))


def test_requests_that_had_not_ended_and_torn_files_are_mentioned():
    trace = replace(simulated([0.5, 0.5]), is_torn=True)
    run = replace(trace.runs[0], requests=trace.runs[0].requests[:1])
    report = trace_report(replace(trace, runs=(run,)), title="Killed")
    assert any("broke off" in warning for warning in report.warnings)
    assert any("had not ended when the trace did: 1;" in warning for warning in report.warnings)
    assert [row["ended by"] for row in table_of(report, "requests")] == ["length", "not ended"]


def test_a_step_counts_once_however_many_rows_it_had():
    draws = np.random.default_rng(0)
    rows = [round_of(draws, kappa=2, alpha=0.5, number=1, step=s, batch=3) for s in (1, 1, 1, 2)]
    parts = {row["part"]: row for row in table_of(trace_report(_of(rows), title="x"), "parts")}
    assert parts["target"]["seconds"] == pytest.approx(2 * 0.02)
    assert parts["target"]["ms per step"] == pytest.approx(0.02)
    assert sum(row["share"] for row in parts.values()) == pytest.approx(1)
    split = figure_of(trace_report(_of(rows), title="x"), "split")
    assert [series.name for series in split.series] == ["draft", "target", "verify", "other"]


COST = RoundCost(
    AffineCost(0.01, 0.002), ParallelDraft(0.0005, per_slot_s=0.0002), overhead_s=0.001
)


def test_steps_are_compared_with_a_profile():
    """Measured seconds are those of the cost model, times 1.5: the report must say so."""
    predicted = 0.01 + 0.002 * 5
    trace = simulated([0.6] * 2, kappa=4, rounds=40, target_s=1.5 * predicted)
    report = trace_report(trace, title="x", cost=COST, profile="p.json")
    (row,) = table_of(report, "forecast")
    assert (row["rows"], row["tokens"], row["steps"]) == (1, 5, 2 * 39)
    assert row["predicted pass, ms"] == pytest.approx(predicted)
    assert row["pass, ms"] == pytest.approx(1.5 * predicted)
    assert row["predicted step, ms"] == pytest.approx(predicted + 0.001 + 0.0005 + 4 * 0.0002)
    assert row["step / predicted"] == pytest.approx(
        (1.5 * predicted + 0.004) / row["predicted step, ms"]
    )
    plain = trace_report(simulated([0.6], rounds=1, kappa=0), title="x", cost=COST, profile="p")
    assert plain.sections[-3].notes == (
        "No step decoded without reading a prompt, so there is nothing to compare.",
    )


def test_several_runs_of_a_file_follow_each_other():
    one = simulated([0.5], rounds=20).runs[0]
    report = trace_report(Trace((one, one)), title="Two")
    assert [row["tokens"] for row in table_of(report, "requests")] == [
        one.requests[0].num_tokens
    ] * 2
    end = one.rounds[-1].at_s
    assert max(figure_of(report, "split").series[0].x) == pytest.approx(2 * end, rel=0.05)
    assert {"environment-1", "environment-2"} <= {table.name for table in report.tables}


def test_wilson_is_wilson():
    low, high = wilson(8, 10)
    z = 1.959964
    centre, half = 0.8 + z * z / 20, z * np.sqrt(0.16 / 10 + z * z / 400)
    assert (low, high) == pytest.approx(
        ((centre - half) / (1 + z * z / 10), (centre + half) / (1 + z * z / 10)), abs=1e-6
    )
    assert wilson(0, 0) == (None, None)


def test_names_of_files_are_unique_and_plain(report):
    names = [each.name for each in (*report.tables, *report.figures)]
    assert len({table.name for table in report.tables}) == len(report.tables)
    assert len({figure.name for figure in report.figures}) == len(report.figures)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
