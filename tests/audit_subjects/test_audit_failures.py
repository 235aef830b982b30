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
from draftproof.audit.subjects import LawFile, TableRecipe, write_laws
from draftproof.cli import CliContext, app
from draftproof.cli.audit_finish import Outputs, finish
from draftproof.cli.context import Notes
from draftproof.errors import BackendError, InvariantError, ModelFileError
from draftproof.evidence import Counts

LAW = TableRecipe().law(2)
SIZE = ("--draws", "20", "--tv", "0.5", "--calibration-samples", "4000", "--seed", "3", "-q")
NGRAM = ("--speculative-config", '{"method": "ngram"}')


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

    assert_not_made(run("engine", *NGRAM, *SIZE, load=load), str(error.args[-1])[:5])
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
        words = ("--model", "m", "--reference", "none", "--prompt", "p")
        words += ("--off-body", '{"spec": false}')
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


BROKEN = """
import sys
import numpy as np

def boom(prompt_ids, policy, n):
    raise ValueError("boom\\nand more")

def leaves(prompt_ids, policy, n):
    sys.exit(1)

def rounds(prompt_ids, policy, n):
    return {"samples": [[0, 1]] * n, "rounds": [5]}
"""


def test_functions_that_fail_are_one_line(tmp_path, monkeypatch):
    laws = tmp_path / "laws.json"
    write_laws(laws, [LawFile("p", (0,), LAW)])
    (tmp_path / "broken_decoder.py").write_text(BROKEN)
    (tmp_path / "no_python.py").write_text("def f(:\n")
    (tmp_path / "no_module.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for function, message in [
        ("broken_decoder:boom", "the function failed: ValueError('boom"),
        ("broken_decoder:leaves", "the function failed: SystemExit(1)"),
        ("broken_decoder:rounds", "a round 5"),
        ("no_python:f", "no_python.py"),
        ("no_module:f", "ZeroDivisionError"),
    ]:
        found = run("python", function, "--reference", laws, *SIZE)
        assert_not_made(found, message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("engine", "--matrix", "--draws", "-5"), "--draws -5: expected 1 or more"),
        (("engine", "--seed", "-5"), "--seed -5: expected 0 or more"),
        (("python", "json:dumps", "--reference", "m", "--seed", "-5"), "--seed -5"),
        (("engine", *NGRAM, "--prompt-ids", ""), "--prompt-ids ''"),
        (("engine", *NGRAM, "--prompt-ids", "3 -1"), "--prompt-ids '3 -1'"),
        (("--self-test", "--repeats", "0"), "repeats 0"),
        (("--self-test", "--draws", "-1"), "draws -1"),
        (("--self-test", "--draws", "0"), "draws 0"),
    ],
)
def test_numbers_that_are_none_are_refused(words, message):
    class Loaded:
        core = type("Core", (), {"tokenizer": None, "proposers": ("ngram",)})

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    assert_not_made(run(*words, load=lambda *_, **__: Loaded()), message)


@pytest.mark.parametrize(
    "damage",
    [
        {"counts": ["x"] * 9},
        {"counts": 5},
        {"rounds": [[1, 1, 2]]},
        {"rounds": "abc"},
        {"rounds": [[1, 1, 2, False, "x"]]},
        {"impossible": [[[9, 9], -1]]},
        {"impossible": [5]},
        {"outcomes": 5},
        {"horizon": "x"},
        {"model": {"vocab_size": 3, "kappa": "x", "target": [[1]], "draft": []}},
    ],
    ids=repr,
)
def test_damaged_certificates_are_one_line(damage, tmp_path):
    path = certificate(tmp_path, lambda prompt: prompt.update(damage))
    assert_not_made(run("show", path), str(path))


@pytest.mark.parametrize("damage", [{"calibration_samples": 10000.5}, {"alpha": "x"}])
def test_damaged_plans_are_one_line(damage, tmp_path):
    path = certificate(tmp_path, lambda prompt: None)
    stored = json.loads(path.read_text())
    stored["evidence"]["plan"].update(damage)
    path.write_text(json.dumps(stored))
    assert_not_made(run("show", path), str(path))
