"""The other questions of ``draftproof audit engine``, from the command line."""

from __future__ import annotations

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.cli import CliContext, app
from draftproof.cli.audit_engine_modes import Mode
from draftproof.engine import Engine, EngineCore
from draftproof.proposers import NgramProposer

PROMPT = ("--prompt-ids", "0 1 2 3 4 0 1 2 3 4 0")
SHORT = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}')
NGRAM = ("--speculative-config", '{"method": "ngram"}', *PROMPT)


def load(model, *, speculative_config, **options):
    """An engine over a table of five tokens that mostly counts on, with n-gram drafts."""
    del model, options
    table = FunctionTable(5, lambda held: np.roll([0.1, 0.5, 0.25, 0.1, 0.05], held[-1]), span=1)
    drafters = [NgramProposer(1, 3)] if speculative_config else []
    return Engine(EngineCore(TableBackend(table), proposers=drafters, kappa=3 * len(drafters)))


def run(*words):
    context = CliContext(load=load, force_terminal=False)
    result = CliRunner().invoke(app, ["audit", *map(str, words)], obj=context)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.statistical
@pytest.mark.parametrize(
    "words",
    [
        ("--greedy", "--tokens", 20),
        ("--state", "--tokens", 300, "--seed", 3),
        ("--stream", "--tokens", 1200, "--tv", 0.25, "--seed", 3),
        ("--sequential", "--top-k", 2, "--horizon", 3, "--draws", 1200, "--tv", 0.2, "--seed", 3),
        ("--matrix", "--draws", 60, "--tv", 0.45, "--seed", 3),
    ],
    ids=lambda words: words[0],
)
def test_the_engine_passes_and_show_says_the_same(words, tmp_path):
    # Every mode but the greedy one has a false-alarm rate of 0.001, on fixed seeds.
    stored, page = tmp_path / "c.json", tmp_path / "c.html"
    found = run("engine", *NGRAM, *words, "-q", "--output", stored, "--html", page)
    expected = 3 if words[0] == "--matrix" else 0
    assert found.exit_code == expected, found.output
    assert "verdict: " in found.stdout
    again = run("show", stored)
    assert again.exit_code == expected
    assert again.stdout == found.stdout
    assert 'id="certificate">' in page.read_text()
    if words[0] == "--matrix":
        # So few draws are no evidence in some cells; none may be wrong.
        assert "biased" not in found.stdout.splitlines()[0]
        assert "banned_token_ids" in found.stdout


def test_state_says_what_it_did_not_examine():
    plain = run("engine", *PROMPT, "--state", "--seed", 3, "-q")
    assert plain.exit_code == 3
    assert "no drafter was examined after silent rounds" in plain.stdout
    few = run("engine", *NGRAM, "--state", "--tokens", 300, "--seed", 3, "--tv", 0.05, "-q")
    assert few.exit_code == 3
    assert "0.05 was asked for" in few.stdout


@pytest.mark.statistical
def test_a_planted_fault_stops_a_sequential_audit_and_is_named(tmp_path):
    found = run(
        "engine", "--table", "--sequential", "--processes", 1, "--draws", 4000, "--tv", 0.2,
        "--calibration-samples", 4000, "--seed", 3, "-q", "--plant", "target drawn again on reject",
    )  # fmt: skip
    assert found.exit_code == 1
    assert "stopped at the alarm" in found.stdout
    assert "diagnosis: 'target drawn again on reject'" in found.stdout


#: What each question makes use of, beside how the engine is loaded and where the result goes.
USED = {
    Mode.STREAM: {
        "temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "tv", "alpha",
        "power", "seed", "tokens", "num_speculative_tokens",
    },
    Mode.GREEDY: {"tokens", "prediction"},
    Mode.STATE: {"tv", "alpha", "power", "seed", "tokens", "num_speculative_tokens"},
    Mode.MATRIX: {
        "horizon", "draws", "tv", "alpha", "power", "calibration_samples", "seed", "drafts",
        "num_speculative_tokens", "prediction",
    },
}  # fmt: skip
#: Options of every question, and flags of which one stands at a time.
ALWAYS = {
    "model", "backend", "precision", "n_gpu_layers", "main_gpu", "flash_attn", "cache_type_k",
    "cache_type_v", "max_rows", "threads", "draft_model", "speculative_config", "rule", "prompt",
    "prompt_ids", "prompts", "as_json", "html", "save", "quiet", "table", "plant", "stream",
    "greedy", "state", "matrix",
}  # fmt: skip
VALUES = {
    "temperature": 0.5, "top_k": 2, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 1.1,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "tv": 0.3, "alpha": 0.01, "power": 0.9,
    "ray": "auto", "drafts": "shown", "sequential": None,
}  # fmt: skip


@pytest.mark.parametrize("mode", USED)
def test_every_option_is_used_or_refused_by_name_in_every_question(mode):
    # A new option has to be put into one of the two sets.
    command = typer.main.get_command(app).commands["audit"].commands["engine"]
    spelled = {each.name: max(each.opts, key=len) for each in command.params}
    assert ALWAYS | USED[mode] <= spelled.keys()
    for name in sorted(spelled.keys() - ALWAYS - USED[mode]):
        value = VALUES.get(name, 9)
        words = [spelled[name], *([] if value is None else [value])]
        found = run("engine", "--draft-model", "d", *PROMPT, f"--{mode.value}", *words, "-q")
        assert found.exit_code == 2, name
        assert f"{spelled[name]}: of no use with --{mode.value}" in found.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--greedy", "--state"), "one question at a time"),
        (("--table", "--greedy"), "expected a model, not --table"),
        (("--greedy", "--top-k", 3), "--top-k: of no use with --greedy"),
        (("--stream", "--draws", 3), "--draws: of no use with --stream"),
        (("--tokens", 3), "--tokens: expected --stream"),
        (("--matrix", "--temperature", 0.5), "of no use with --matrix"),
        ((*NGRAM, "--matrix", "--prompt-ids", "1 2"), "2 prompts with --matrix"),
        ((*NGRAM, "--stream", "--tokens", 0), "expected 1 or more"),
        (("--greedy", *PROMPT), "--greedy without a drafter: expected --draft-model or"),
        (("--stream", *PROMPT), "--stream without a drafter: expected --draft-model or"),
        (("--state", "--rule", "coupled"), "--rule: of no use with --state without a drafter"),
        (("--state", "--tv", 0.3, "--tokens", 9), "--tv: of no use with --state without"),
        (("--greedy", *SHORT), "num_speculative_tokens: of no use with --greedy"),
    ],
)
def test_options_that_a_question_has_no_use_for_are_refused(words, message):
    found = run("engine", *words, "-q")
    assert found.exit_code == 2
    assert message in found.stderr.strip().splitlines()[-1]
    assert not found.stdout
