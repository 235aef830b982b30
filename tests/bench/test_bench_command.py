"""The verb on a table model: what it prints, keeps, resumes and refuses."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftproof.bench.run_file import Journal, read_run
from draftproof.cli import CliContext, app

SCRIPT = Path(__file__).parents[1] / "cli" / "table_cli.py"
NGRAM = '{"method": "ngram", "num_speculative_tokens": 4}'
QUICK = ("-m", "table", "--raw", "--max-tokens", "12", "--speculative-config", NGRAM)


@pytest.fixture(scope="module")
def load():
    return runpy.run_path(str(SCRIPT))["load"]


@pytest.fixture
def bench(load, tmp_path):
    def run(*words):
        context = CliContext(load=load, cache_dir=tmp_path / "cache", force_terminal=False)
        return CliRunner().invoke(app, ["bench", *map(str, words)], obj=context)

    return run


def test_a_sweep_prints_tables_and_keeps_a_run(bench, tmp_path):
    path = tmp_path / "run.json"
    done = bench(
        *QUICK, "--sweep", "kappa=0,2,4", "--workload", "chat", "--concurrency", "1,2",
        "--temperature", "0,1", "--rounds", "2", "-o", path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "chat, T=0" in done.stdout
    assert "kappa 4" in done.stdout
    assert "[n/a]" in done.stdout
    assert "too few rounds for an interval: 2" in done.stdout
    record = read_run(path)
    assert record.is_complete
    assert [arm.name for arm in record.settings.arms] == ["plain", "kappa 2", "kappa 4"]
    assert len(record.measurements) == 2 * 2 * 2 * 3
    assert len(record.cells) == 2 * 2 * 3
    assert record.subject.speculation["method"] == "ngram"
    assert record.environment.ended is not None
    assert not Journal(path).path.exists()


def test_json_is_the_run(bench):
    done = bench(*QUICK, "--workload", "story", "--rounds", "1", "--json")
    held = json.loads(done.stdout)
    assert held["format"] == 1
    assert [arm["name"] for arm in held["settings"]["arms"]] == ["plain", "kappa 4"]
    plain = next(cell for cell in held["cells"] if cell["arm"] == "plain")
    assert plain["acceptance_rate"] is None


def test_a_finished_run_goes_on_with_more_rounds_only(bench, tmp_path):
    path = tmp_path / "run.json"
    words = (*QUICK, "--workload", "chat", "-o", path)
    assert bench(*words, "--rounds", "1").exit_code == 0
    first = read_run(path).measurements
    assert bench(*words, "--rounds", "3").exit_code == 2
    done = bench(*words, "--rounds", "3", "--resume")
    assert done.exit_code == 0, done.output
    record = read_run(path)
    assert record.measurements[: len(first)] == first
    assert len(record.measurements) == 3 * len(first)
    assert any("interrupted" in warning for warning in record.warnings)
    other = bench(*words, "--rounds", "3", "--resume", "--seed", "5")
    assert other.exit_code == 2
    assert "another settings" in other.stderr or "another seed" in other.stderr


def test_own_prompts_that_repeat_are_told(bench, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "abc abc"}\n{"prompt": "xyz"}\n{"prompt": "xyz"}\n')
    done = bench(*QUICK, "--prompts", path, "--rounds", "2", "--concurrency", "2")
    assert done.exit_code == 0, done.output
    assert "warning: 2 distinct prompts served" in done.stdout
    path.write_text('{"text": "abc"}\n')
    done = bench(*QUICK, "--prompts", path)
    assert (done.exit_code, "line 1: expected" in done.stderr) == (2, True)


def test_arrivals(bench):
    done = bench(*QUICK, "--workload", "chat", "--rounds", "1", "--rate", "200", "--requests", "3")
    assert done.exit_code == 0, done.output
    assert "200/s" in done.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--sweep", "kappa=1"), "needs a drafter"),
        (("--sweep", "gamma=1"), "expected kappa=0,1,2,3"),
        (("--sweep", "kappa=1,1"), "expected each value once"),
        (("--sweep", "kappa=auto", "--speculative-config", NGRAM), "auto needs -k auto"),
        (("--workload", "poem"), "expected some of copy-edit"),
        (("--temperature", "x"), "expected values by commas"),
        (("--concurrency", "0"), "expected at least 1"),
        (("--rounds", "0"), "expected at least 1"),
        (("--width", "0"), "expected a share"),
        (("--rate", "0"), "expected more than 0"),
        (("--resume",), "--resume needs --output"),
        (("--baseline", "http://x"), "need --endpoint"),
        (("--endpoint", "x"), "expected an address"),
        (("--endpoint", "http://x", "--threads", "2"), "--threads is for an engine"),
    ],
)
def test_refusals(bench, words, complaint):
    done = bench("-m", "table", "--raw", *words)
    assert done.exit_code == 2, done.output
    assert complaint in done.stderr


def test_two_runs_compare_with_themselves(bench, tmp_path):
    path = tmp_path / "run.json"
    done = bench(*QUICK, "--workload", "chat", "--rounds", "6", "--max-tokens", "6", "-o", path)
    assert done.exit_code == 0, done.output
    same = bench("compare", path, path)
    assert same.exit_code == 0, same.output
    assert "1.000 [1.000, 1.000]" in same.stdout
    assert "within rounds" in same.stdout
    assert bench("compare", path, path, "--fail-below", "1.1").exit_code == 1
    assert bench("compare", path, path, "--fail-below", "0.9").exit_code == 0
    held = json.loads(bench("compare", path, path, "--json").stdout)
    assert held["differences"] == []
    path.write_text("{}")
    assert bench("compare", path, path).exit_code == 2
