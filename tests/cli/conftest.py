"""A table model behind the command line, in this process or in another."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftproof.cli import CliContext, app

SCRIPT = Path(__file__).with_name("table_cli.py")


@pytest.fixture(scope="session")
def table_cli():
    """The names of the script, its loader among them."""
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def invoke(table_cli, tmp_path):
    """Run the command line in this process."""

    def run(*words, stdin=None, terminal=None):
        context = CliContext(
            load=table_cli["load"], cache_dir=tmp_path / "cache", force_terminal=terminal
        )
        return CliRunner().invoke(app, [str(word) for word in words], input=stdin, obj=context)

    return run


@pytest.fixture
def start():
    """Start the command line in a process of its own."""
    running = []

    def run(*words, pass_s=0.0, **options):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TABLE_CLI_PASS_S": str(pass_s)},
            # Who runs the tests in the background hands down a Ctrl-C that is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            **options,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.communicate()
