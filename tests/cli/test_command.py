"""The command as a whole: version, start, interruption, models, demo."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from draftproof import __version__
from draftproof.cli import app
from draftproof.cli.batch_input import LINE_OPTIONS
from draftproof.cli.compare import spread


def python(*words):
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=60
    )


def test_version():
    done = python("-m", "draftproof", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"draftproof {__version__}\n", "")


def test_help_of_every_verb(invoke):
    for words in ((), ("generate",), ("demo",), ("models",), ("models", "pull")):
        result = invoke(*words, "--help")
        assert result.exit_code == 0
        assert "Usage: " in result.stdout


def test_the_reference_names_every_option():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    verbs = get_command(app).commands
    for command in (verbs["generate"], verbs["demo"], *verbs["models"].commands.values()):
        for parameter in command.params:
            if parameter.param_type_name != "option":
                continue
            for name in (*parameter.opts, *parameter.secondary_opts):
                assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name
    for key in LINE_OPTIONS:
        assert f"`{key}`" in text


def test_start_is_light():
    code = (
        "import sys, draftproof.cli;"
        "print([m for m in ('openvino', 'numpy', 'gguf', 'tokenizers', 'pydantic')"
        " if m in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("generat",), "generat"),
        (("--bogus",), "--bogus"),
        (("generate", "--bogus"), "--bogus"),
        (("generate", "-m", "table", "hi", "--max-tokens", "many"), "--max-tokens"),
        (("audit", "nobody"), "nobody"),
        (("plan", "--batch"), "--batch"),
    ],
)
def test_words_it_cannot_read_are_one_line_and_wrong_usage(invoke, words, named):
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert named in result.stderr


def test_no_words_show_the_help(invoke):
    for words in ((), ("audit",)):
        assert "Usage: " in invoke(*words).output


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_ends_the_text_and_exits_130(start):
    words = ("generate", "-m", "table", "hello", "--ignore-eos", "--max-tokens", "500")
    process = start(*words, pass_s=0.02)
    text = process.stdout.read(3)
    process.send_signal(signal.SIGINT)
    rest, stderr = process.communicate(timeout=30)
    assert len(text) == 3, "text streams before the end"
    assert rest.endswith("\n")
    assert len(rest) < 400
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_reader_that_leaves_makes_no_traceback(start):
    words = ("generate", "-m", "table", "hello", "--ignore-eos", "--max-tokens", "500")
    process = start(*words, pass_s=0.005)
    process.stdout.read(1)
    process.stdout.close()
    process.stdout = None
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "Traceback" not in stderr


def test_models(invoke, tmp_path):
    listed = json.loads(invoke("models", "list", "--json").stdout)
    entry = next(entry for entry in listed if entry["name"] == "smollm2")
    assert entry["path"] is None
    assert "smollm2" in invoke("models", "list").stdout
    missing = invoke("models", "path", "smollm2")
    assert missing.exit_code == 1
    assert missing.stdout == ""
    assert "draftproof models pull smollm2" in missing.stderr
    place = next(iter(missing.stderr.split("expected ")[1].split("; hint")))
    assert str(tmp_path) in place
    unknown = invoke("models", "path", "smolm2")
    assert unknown.exit_code == 2
    assert "'smollm2'" in unknown.stderr


def test_demo_shows_text_and_numbers(invoke):
    result = invoke("demo", "--repeats", "2")
    assert result.exit_code == 0, result.stderr
    for part in ("copying", "free text", "[accepted]", "ratio", "mean acceptance length", "equal"):
        assert part in result.stdout
    assert "pair 2 of 2" in result.stderr
    document = json.loads(invoke("demo", "--repeats", "1", "--json").stdout)
    assert [sample["name"] for sample in document["samples"]] == ["copying", "free text"]
    drafters = [
        list(sample["result"]["stats"]["num_draft_tokens_per_drafter"])
        for sample in document["samples"]
    ]
    assert drafters == [["ngram"], ["draft-head"]]
    for sample in document["samples"]:
        assert sample["compare"]["outputs"]["equal"] is True
        assert sample["result"]["stats"]["num_drafts"] > 0


def test_spread_leaves_out_what_is_undefined():
    nan = float("nan")
    found = spread([3.0, nan, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)
    assert spread([nan]).median != spread([nan]).median


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is full")
def test_a_full_disk_is_one_line():
    script = Path(__file__).with_name("table_cli.py")
    words = [sys.executable, str(script), "generate", "-m", "table", "abc", "--max-tokens", "4"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr
