"""The verb against a page on a port: readings, restarts, crossings, refusals."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from rich.console import Console
from typer.testing import CliRunner

from draftproof.cli import CliContext, app
from draftproof.cli.watch_view import panel, sparkline
from draftproof.metrics import EngineSnapshot, Monitor, between, read_snapshot
from draftproof.planner.calibrate import MachineRates
from draftproof.planner.calibrate_rounds import Overheads
from draftproof.planner.fit import Cell
from draftproof.planner.profile import Profile, write_profile

PAGE = """\
draftproof:spec_decode_num_drafts_total {drafts}
draftproof:spec_decode_num_draft_tokens_total {drafted}
draftproof:spec_decode_num_accepted_tokens_total {accepted}
draftproof:generation_tokens_total {generated}
draftproof:num_requests_running 6
draftproof:num_requests_waiting 2
draftproof:kv_cache_usage_perc 0.5
"""


def page(number):
    return PAGE.format(
        drafts=10 * number, drafted=30 * number, accepted=15 * number, generated=40 * number
    )


@pytest.fixture
def serve():
    """A port whose answers are listed: a page, or a status."""
    servers = []

    def start(*answers):
        left = list(answers)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer = left.pop(0) if len(left) > 1 else left[0]
                status, text = (answer, "") if isinstance(answer, int) else (200, answer)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def watch(*words):
    context = CliContext(force_terminal=False)
    return CliRunner().invoke(app, ["watch", *map(str, words)], obj=context)


def test_one_reading_for_scripts(serve):
    done = watch(serve(page(1), page(3)), "--once", "--json", "--interval", "0.01")
    assert done.exit_code == 0, done.output
    held = json.loads(done.stdout)
    assert held["engine"] == "draftproof"
    assert held["speculation"]["acceptance_rate"] == 0.5
    assert held["speculation"]["mean_acceptance_length"] == 2.5
    assert held["speculation"]["num_drafts"] == 20
    assert held["since_start"]["num_drafts"] == 30
    assert (held["num_running"], held["num_waiting"], held["kv_usage"]) == (6, 2, 0.5)
    assert held["tokens_per_s"] == pytest.approx(80 / held["seconds"])
    assert held["warnings"] == []


def test_nothing_drafted_is_null(serve):
    held = json.loads(watch(serve(page(1)), "--once", "--json", "--interval", "0.01").stdout)
    assert held["speculation"]["acceptance_rate"] is None
    assert held["since_start"]["acceptance_rate"] == 0.5


def test_a_restart_is_told(serve):
    done = watch(serve(page(5), page(2)), "--once", "--json", "--interval", "0.01")
    held = json.loads(done.stdout)
    assert held["has_restarted"]
    assert held["speculation"]["num_drafts"] == 20
    assert held["tokens_per_s"] is None


def test_a_batch_past_the_crossing_is_told(serve):
    done = watch(serve(page(1), page(2)), "--once", "--interval", "0.01", "--crossing", "4")
    assert "6 requests run; from 4 on plain decoding is as fast" in done.stdout


def test_a_profile_gives_the_crossing_at_the_acceptance_that_is_seen(serve, tmp_path):
    """Passes in proportion to their tokens: three drafts of which half are kept never pay."""
    cells = tuple(
        Cell(batch, width, context, (1e-3 * batch * width,) * 3)
        for batch in (1, 8)
        for width in (1, 4)
        for context in (32, 512)
    )
    profile = Profile(
        "table", "table", "f64", {}, cells, {}, Overheads(0.0, 0.0, 0.0), MachineRates(1e9, 1e9)
    )
    path = tmp_path / "profile.json"
    write_profile(profile, path)
    words = ("--once", "--interval", "0.01", "--profile", path)
    assert "6 requests run; from 1 on" in watch(serve(page(1), page(2)), *words).stdout
    free = replace(profile, cells=tuple(replace(cell, seconds=(1e-3,) * 3) for cell in cells))
    write_profile(free, path)
    assert "requests run; from" not in watch(serve(page(1), page(2)), *words).stdout


def test_nobody_answers(serve):
    down = watch(serve(503), "--once", "--interval", "0.01")
    assert (down.exit_code, "no answer: status 503" in down.stderr) == (1, True)
    other = watch(serve("node_load1 1\n"), "--once")
    assert (other.exit_code, "no metrics of a known engine" in other.stderr) == (2, True)
    missing = watch(serve(404), "--once")
    assert (missing.exit_code, "status 404" in missing.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("localhost:8000",), "expected an address"),
        (("http://x", "--interval", "0"), "expected more than 0 seconds"),
        (("http://x", "--crossing", "2", "--profile", "p"), "expected one of them"),
        (("http://x", "--crossing", "0"), "expected more than 0"),
        (("http://x", "--drafter", "ngram"), "needs --profile"),
        (("http://x", "--profile", "/nonexistent.json"), "not a profile"),
    ],
)
def test_refusals(words, complaint):
    done = watch(*words)
    assert (done.exit_code, complaint in done.stderr) == (2, True), done.output


def test_the_panel_says_n_a_where_nothing_is_known():
    monitor = Monitor()
    text = "vllm:num_requests_running 1\nvllm:generation_tokens_total 5\n"
    monitor.add(read_snapshot(text, 0.0))
    snapshot = read_snapshot(text, 1.0)
    sight = monitor.add(snapshot)
    console = Console(record=True, width=100, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(panel(sight, between(EngineSnapshot("vLLM", 1.0), snapshot), "http://x"))
    shown = console.export_text()
    console.file.close()
    assert "acceptance rate    n/a" in shown
    assert "tells nothing about speculation" in shown


def test_sparklines():
    nan = float("nan")
    assert sparkline([0.0, 0.5, nan, 1.0], 0.0, 1.0) == "▁▅ █"
    assert sparkline([nan, nan]) == "  "
    assert sparkline([3.0, 3.0]) == "▅▅"
    assert len(sparkline([1.0] * 100)) == 32
