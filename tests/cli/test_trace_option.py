"""``--trace`` on the command line."""

from __future__ import annotations

import json
import signal
import time

import httpx
import pytest

from draftproof.bench import read_trace
from draftproof.cli.tracing import shown_command

NGRAM = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
BASE = ("generate", "-m", "table", "-q", *NGRAM, "--max-tokens", 20, "--seed", 3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trace.jsonl"


def test_one_prompt(invoke, path):
    plain = invoke(*BASE, "abc abc abc")
    traced = invoke(*BASE, "abc abc abc", "--trace", path)
    assert traced.exit_code == 0
    assert traced.stdout == plain.stdout
    (run,) = read_trace(path).runs
    assert run.header.target["name"] == "table"
    assert run.header.settings["speculative_config"]["num_speculative_tokens"] == 4
    (request,) = run.requests
    assert request.num_tokens == sum(len(each.trace.committed) for each in run.rounds)
    assert any(each.trace.draft_ids for each in run.rounds)
    assert "abc" not in path.read_text()


def test_text_on_request(invoke, path):
    result = invoke(*BASE, "abc abc abc", "--trace", path, "--trace-text")
    (request,) = read_trace(path).runs[0].requests
    assert request.prompt == "abc abc abc"
    assert request.text == result.stdout.rstrip("\n")


def test_several_completions_and_a_file_of_prompts(invoke, path, tmp_path):
    assert invoke(*BASE, "abc abc", "-n", 3, "--trace", path).exit_code == 0
    assert [request.stream for request in read_trace(path).runs[0].requests] == [0, 1, 2]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"line {i} line {i}"}) + "\n" for i in range(5))
    )
    words = (*BASE, "--prompts", prompts, "--output", tmp_path / "out.jsonl", "--trace", path)
    assert invoke(*words).exit_code == 0
    runs = read_trace(path).runs
    assert [len(run.requests) for run in runs] == [3, 5]
    # Nothing is left to do: no engine is loaded and no run begins.
    assert invoke(*words).exit_code == 0
    assert len(read_trace(path).runs) == 2


def test_a_run_that_is_interrupted_leaves_a_readable_trace(start, path):
    words = ("generate", "-m", "table", "abc abc", "--max-tokens", 900, "--trace", path)
    process = start(*words, pass_s=0.02)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and (not path.exists() or path.stat().st_size < 4000):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    (run,) = read_trace(path).runs
    assert len(run.rounds) > 3
    assert run.requests == ()


def test_a_server_traces_what_it_serves(start, path):
    pytest.importorskip("starlette", reason="starlette is not installed")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    process = start("serve", "-m", "table", *NGRAM, "--port", 0, "--trace", path)
    for line in process.stderr:
        if "serving table on" in line:
            break
    address = line.split()[-1]
    body = {"model": "table", "prompt": "abc abc abc", "max_tokens": 12, "n": 2, "seed": 5}
    answer = httpx.post(f"{address}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    (run,) = read_trace(path).runs
    assert [request.stream for request in run.requests] == [0, 1]
    lengths = [request.num_tokens for request in run.requests]
    assert sum(lengths) == answer.json()["usage"]["completion_tokens"]
    assert "abc" not in path.read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--trace-text",), "--trace-text needs --trace"),
        (("--compare", "--trace", "t.jsonl"), "expected no --trace t.jsonl"),
    ],
)
def test_what_would_be_ignored_is_refused(invoke, words, says):
    result = invoke(*BASE, "abc", *words)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_trace_does_not_overwrite_other_files(invoke, path):
    path.write_text("my notes\n")
    result = invoke(*BASE, "abc", "--trace", path)
    assert result.exit_code == 2
    assert "holds something else" in result.stderr
    assert path.read_text() == "my notes\n"


def test_a_trace_is_not_the_file_of_prompts_or_results(invoke, path):
    path.write_text('{"prompt": "abc"}\n')
    for words in (("--prompts", path), ("--prompts", "p.jsonl", "--output", path)):
        result = invoke(*BASE, *words, "--trace", path)
        assert result.exit_code == 2
        assert "is the input or the output" in result.stderr


def test_a_command_is_shown_without_texts():
    words = ["generate", "tell me", "-m", "smollm2", "--system", "-be kind", "--stop=END", "-k4",
             "--seed", "7", "--json", "--choice", "yes", "more"]  # fmt: skip
    assert shown_command(words, holds_text=False) == [
        "draftproof", "generate", "...", "-m", "smollm2", "--system", "...", "--stop=...", "-k4",
        "--seed", "7", "--json", "--choice", "...", "...",
    ]  # fmt: skip
    assert shown_command(words, holds_text=True) == ["draftproof", *words]
    assert shown_command(["serve", "--", "-m", "x"], holds_text=False)[2:] == ["--", "...", "..."]
    for words in (["serve", "--api-key", "hidden"], ["serve", "--api-key=hidden"]):
        for holds_text in (False, True):
            assert "hidden" not in " ".join(shown_command(words, holds_text=holds_text))
