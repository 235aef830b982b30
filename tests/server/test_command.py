"""``draftproof serve`` as a process: its options, SIGTERM, and kill -9."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from draftproof.cli import CliContext, app
from draftproof.errors import ConfigError

SCRIPT = Path(__file__).parents[1] / "cli" / "table_cli.py"
BODY = {"model": "table", "prompt": "abc", "max_tokens": 60, "seed": 1, "ignore_eos": True}


class Process:
    """A server of its own, and the port it says it listens on."""

    def __init__(self, *words, pass_s=0.0, env=None):
        environment = {**os.environ, "TABLE_CLI_PASS_S": str(pass_s), **(env or {})}
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "serve", "-m", "table", "--port", "0", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lines = []
        self.url = None
        while self.url is None:
            line = self.process.stderr.readline()
            assert line, "the server ended: " + "".join(self.lines)
            self.lines.append(line)
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                self.url = found[0]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        self.lines += self.process.stderr

    def events(self):
        return [json.loads(line) for line in self.lines if line.startswith("{")]


@pytest.fixture
def start():
    running = []

    def run(*words, **options):
        running.append(Process(*words, **options))
        return running[-1]

    yield run
    for one in running:
        one.process.kill()
        one.process.communicate()


def in_thread(function):
    """Run something beside the test; call the result to join and get its value."""
    values = []
    thread = threading.Thread(target=lambda: values.append(function()))
    thread.start()

    def result():
        thread.join(30)
        return values[0]

    return result


def test_sigterm_lets_requests_end(start, tools):
    server = start("--speculative-config", '{"method": "ngram"}', pass_s=0.02)
    asked = in_thread(lambda: httpx.post(server.url + "/v1/completions", json=BODY, timeout=30))
    with httpx.Client(base_url=server.url, timeout=30) as client:
        tools.wait_for(lambda: client.get("/health").json()["num_in_flight"] == 1)
        server.process.send_signal(signal.SIGTERM)
        tools.wait_for(lambda: client.get("/health").json()["status"] == "draining")
        refused = client.post("/v1/completions", json=BODY)
    assert refused.status_code == 503
    answer = asked()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 60
    assert server.process.wait(20) == 0
    tools.wait_for(lambda: any(event["event"] == "stopped" for event in server.events()))
    assert server.events()[-1]["engine_thread_ended"]


def test_a_drain_has_an_end_and_clients_are_told(start, tools):
    server = start("--drain", "0.3", pass_s=0.05)
    body = BODY | {"max_tokens": 900, "stream": True}
    asked = in_thread(lambda: httpx.post(server.url + "/v1/completions", json=body, timeout=30))
    tools.wait_for(lambda: httpx.get(server.url + "/health").json()["num_in_flight"] == 1)
    server.process.send_signal(signal.SIGTERM)
    answer = asked()
    assert '"code":"aborted"' in answer.text
    assert "[DONE]" not in answer.text
    assert server.process.wait(20) == 0


def test_the_key_comes_from_the_environment_and_a_kill_is_seen(start, tools):
    server = start(env={"DRAFTPROOF_API_KEY": "k3y"}, pass_s=0.02)
    headers = {"authorization": "Bearer k3y"}
    assert httpx.get(server.url + "/v1/models").status_code == 401
    assert httpx.get(server.url + "/v1/models", headers=headers).status_code == 200
    # Drafters that need no model can be chosen by requests from the start.
    spec = {"temperature": 0, "max_tokens": 5, "speculative_config": {"method": "ngram"}}
    url = server.url + "/v1/completions"
    answer = httpx.post(url, json=BODY | spec, headers=headers).json()
    assert answer["metrics"]["speculative_decoding"]["num_spec_tokens"] == 5

    def ask():
        try:
            return httpx.post(url, json=BODY, headers=headers, timeout=30)
        except httpx.TransportError as error:
            return error

    asked = in_thread(ask)
    tools.wait_for(lambda: httpx.get(server.url + "/health").json()["num_in_flight"] == 1)
    server.process.kill()
    assert isinstance(asked(), httpx.TransportError)


def test_kill_and_restart(start, tools):
    """Who waits sees an error, never silence; the next server gives the same text."""
    words = ("--speculative-config", '{"method": "ngram"}')
    first = start(*words, pass_s=0.02)
    body = BODY | {"max_tokens": 900, "stream": True}
    url = first.url + "/v1/completions"

    def read():
        """Return the lines that came, and how the stream ended."""
        lines = []
        try:
            with httpx.stream("POST", url, json=body, timeout=30) as answer:
                lines += answer.iter_lines()
        except httpx.TransportError as error:
            return lines, error
        return lines, None

    streams = [in_thread(read) for _ in range(3)]
    tools.wait_for(lambda: httpx.get(first.url + "/health").json()["num_in_flight"] == 3)
    short = BODY | {"max_tokens": 20}
    before = httpx.post(url, json=short, timeout=30).json()["choices"][0]["text"]
    first.process.kill()
    for one in streams:
        lines, error = one()
        assert isinstance(error, httpx.TransportError)
        assert not any("[DONE]" in line or '"finish_reason":"' in line for line in lines)
    with pytest.raises(httpx.ConnectError):
        httpx.post(url, json=short, timeout=30)
    port = first.url.rpartition(":")[2]
    again = start(*words, "--port", port)
    assert again.url == first.url
    after = httpx.post(url, json=short, timeout=30).json()["choices"][0]["text"]
    assert after == before


@pytest.fixture(scope="module")
def invoke(tmp_path_factory):
    load = runpy.run_path(str(SCRIPT))["load"]

    def run(*words):
        context = CliContext(load=load, cache_dir=tmp_path_factory.mktemp("cache"))
        return CliRunner().invoke(app, ["serve", *words], obj=context)

    return run


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--max-choices", "0"], "max_choices"),
        (["--max-choices", "999"], "max_choices"),
        (["--timeout", "0"], "timeout_s"),
        (["--drain", "-1"], "drain_s"),
        (["--max-queue", "-1"], "max_queue"),
        (["--api-key", ""], "API key"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--speculative-config", '{"methid": "ngram"}'], "methid"),
        (["--draft-precision", "int8"], "--draft-precision"),
        (["--allow-drafter", "none", "--allow-drafter", "ngram"], "--allow-drafter"),
        (["--allow-drafter", "draft_model"], "draft_model"),
        (["-m", "no-such-model"], "no-such-model"),
    ],
)
def test_options_out_of_range(invoke, words, named):
    answer = invoke(*words)
    assert answer.exit_code in (1, 2)
    assert named in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ((), ("ngram", "suffix", "prediction")),
        (("--allow-drafter", "ngram"), ("ngram",)),
        (("--allow-drafter", "prediction", "--allow-drafter", "suffix"), ("prediction", "suffix")),
        (("--allow-drafter", "none"), ()),
    ],
)
def test_the_drafters_that_requests_may_choose(tmp_path, words, offered):
    asked = []

    def load(model, **options):
        asked.append(options["also"])
        raise ConfigError("enough")

    context = CliContext(load=load, cache_dir=tmp_path)
    answer = CliRunner().invoke(app, ["serve", *words], obj=context)
    assert "enough" in answer.stderr
    assert asked == [offered]


@pytest.mark.parametrize("tokens", [0, 1000])
def test_sharing_by_a_name_that_nobody_checks_is_told(tmp_path, tokens):
    def load(model, **options):
        raise ConfigError("enough")

    given = f'{{"method": "suffix", "suffix_tenant_tokens": {tokens}}}'
    context = CliContext(load=load, cache_dir=tmp_path)
    answer = CliRunner().invoke(app, ["serve", "--speculative-config", given], obj=context)
    assert "enough" in answer.stderr
    assert ("a name that nobody checks" in " ".join(answer.stderr.split())) is (tokens > 0)
