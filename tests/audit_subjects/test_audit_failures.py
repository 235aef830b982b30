"""``draftproof audit`` where no audit can be made: exit code 2 and one line, no verdict."""

from __future__ import annotations

import io
import json
import threading
from contextlib import redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from typer.testing import CliRunner

from draftproof.audit import SCHEMA, Evidence, Plan, PromptEvidence
from draftproof.audit.subjects import TableRecipe
from draftproof.cli import CliContext, app
from draftproof.cli.audit_finish import Outputs, finish
from draftproof.cli.context import Notes
from draftproof.errors import BackendError, InvariantError, ModelFileError
from draftproof.evidence import Counts

LAW = TableRecipe().law(2)
SIZE = ("--draws", "20", "--tv", "0.5", "--calibration-samples", "4000", "--seed", "3", "-q")


def run(*words, load=None):
    context = CliContext() if load is None else CliContext(load)
    return CliRunner().invoke(app, ["audit", *map(str, words)], obj=context)


def assert_not_made(result, *named):
    """No verdict, exit code 2, one line that is no traceback."""
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ")
    assert not any(line.startswith("Traceback") for line in lines)
    for each in named:
        assert each in lines[-1]
    assert not result.stdout


@pytest.mark.parametrize(
    "error",
    [
        ModelFileError("m: no such model"),
        BackendError("the engine is gone"),
        InvariantError("a promise was broken"),
        OSError(28, "No space left on device"),
        MemoryError("too large"),
        KeyError("left"),
        SystemExit(1),
        RuntimeError("first line\nsecond line"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_error_has_the_code_of_a_verdict(error):
    def load(model, **options):
        raise error

    assert_not_made(run("engine", *SIZE, load=load))
    words = ("python", "json:dumps", "--reference", "m")
    assert_not_made(run(*words, *SIZE, load=load))


class _Broken(BaseHTTPRequestHandler):
    """Fails as its path says."""

    def do_POST(self):
        status = 500 if self.path.startswith("/500") else 200
        answer = b'{"choices": []}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_a_server_that_fails_is_not_biased():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Broken) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        words = ("--model", "m", "--reference", "none", "--prompt", "p", "--off-body", "{}")
        failed = run("http", f"{url}/500", *words, *SIZE)
        empty = run("http", f"{url}/200", *words, *SIZE)
        server.shutdown()
    refused = run("http", url, *words, *SIZE)
    assert_not_made(failed, "status 500")
    assert_not_made(empty, "expected a completion")
    assert_not_made(refused, url)


def test_models_and_engines_that_are_missing_are_not_biased(tmp_path):
    assert_not_made(run("transformers", tmp_path, *SIZE), "no config.json")
    assert_not_made(run("llama-cpp", tmp_path / "x.gguf", "--timeout", "60", *SIZE), "llama_cpp")


def certificate(tmp_path, damage):
    """A certificate with something changed in the evidence of its only prompt."""
    probs = LAW.probs / LAW.probs.sum()
    counts = Counts(np.random.default_rng(1).multinomial(400, probs))
    plan = Plan(tv=0.5, calibration_samples=4000)
    evidence = Evidence("test", plan, (PromptEvidence("p", LAW, counts),)).to_json()
    stored = {"schema": SCHEMA, "evidence": evidence, "verdict": {}}
    damage(stored["evidence"]["prompts"][0])
    path = tmp_path / "c.json"
    path.write_text(json.dumps(stored))
    return path


def test_a_damaged_law_is_not_biased(tmp_path):
    path = certificate(tmp_path, lambda prompt: prompt["probs"].__setitem__(0, 0.9))
    assert_not_made(run("show", path))


@pytest.mark.parametrize("option", ["--output", "--html"])
def test_paths_that_cannot_be_written_are_refused_before_a_draw(option, tmp_path):
    def load(model, **options):
        raise AssertionError("loaded")

    (tmp_path / "file").touch()
    for path in (tmp_path / "none" / "x", tmp_path, tmp_path / "file" / "x"):
        refused = run("engine", *SIZE, option, path, load=load)
        assert_not_made(refused, option, str(path))
    both = tmp_path / "both"
    words = ("--output", both, "--html", both)
    assert_not_made(run("engine", *SIZE, *words, load=load), "expected two files")


def test_a_verdict_outlives_a_file_that_cannot_be_written(tmp_path):
    class Full(type(tmp_path)):
        def write_text(self, *_, **__):
            raise OSError(28, "No space left on device", str(self))

    counts = Counts(np.random.default_rng(1).multinomial(400, LAW.probs / LAW.probs.sum()))
    plan = Plan(tv=0.5, calibration_samples=4000)
    evidence = Evidence("test", plan, (PromptEvidence("p", LAW, counts),))
    page = tmp_path / "c.html"
    outputs = Outputs(False, page, Full(tmp_path / "c.json"), Notes(quiet=True))
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(OSError, match="No space left"):
        finish(CliContext(), evidence, outputs)
    assert shown.getvalue().startswith("verdict: ")
    assert 'id="certificate">' in page.read_text()
