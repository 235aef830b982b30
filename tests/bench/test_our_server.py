"""The verb against our own server on a port: kappas per request, ids, its metrics."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftproof.bench.run_file import read_run
from draftproof.cli import CliContext, app

CONFTEST = Path(__file__).parents[1] / "server" / "conftest.py"


@pytest.fixture(scope="module")
def url():
    kit = runpy.run_path(str(CONFTEST))["Kit"](kappa=3)
    with kit.listening() as address:
        yield address


def invoke(*words):
    context = CliContext(force_terminal=False)
    return CliRunner().invoke(app, [str(word) for word in words], obj=context)


def test_a_sweep_per_request(url, tmp_path):
    path, prompts = tmp_path / "run.json", tmp_path / "mine.jsonl"
    lines = [json.dumps({"prompt": f"copy this: {'abc ' * (n % 5)}{n}"}) for n in range(200)]
    prompts.write_text("\n".join(lines))
    done = invoke(
        "bench", "--endpoint", url + "/v1", "--sweep", "kappa=0,3", "--prompts", prompts,
        "--concurrency", "1,2", "--rounds", "1", "--max-tokens", "24", "-o", path,
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    record = read_run(path)
    assert (record.subject.runtime, record.subject.url) == ("draftproof", url)
    assert {run.token_counts for run in record.measurements} == {"ids"}
    cells = {(cell.condition, cell.arm): cell for cell in record.cells}
    for condition in (0, 1):
        plain, drafted = cells[condition, "plain"], cells[condition, "kappa 3"]
        assert (plain.num_failed, drafted.num_failed) == (0, 0)
        assert (plain.acceptance_rate, plain.drafted_per_token) == (None, 0.0)
        assert plain.tokens_per_chunk >= 1.0  # what a slow reader finds at once is one portion
        assert drafted.drafted_per_token > 0.0
        assert 0.0 <= drafted.acceptance_rate <= 1.0


def test_watching_it(url):
    done = invoke("watch", url, "--once", "--json", "--interval", "0.01")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["engine"] == "draftproof"
