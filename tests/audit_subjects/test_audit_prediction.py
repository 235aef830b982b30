"""``draftproof audit engine --prediction``: what drafts from a prediction can be audited."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from draftproof.backends.table import FunctionTable, TableBackend
from draftproof.cli import CliContext, app
from draftproof.engine import Engine, EngineCore
from draftproof.proposers import PredictionProposer

SIZE = ("--tv", "0.2", "--calibration-samples", "4000", "--seed", "3", "-q")
METHOD = ("--speculative-config", '{"method": "prediction"}')


class Digits:
    """A tokenizer of one digit per token."""

    vocab_size = 5
    eos_token_ids = frozenset()

    def encode(self, text, *, add_special=True):
        return [int(digit) for digit in text.strip()]

    def token_bytes(self, token_id):
        return str(token_id).encode()


def load(model, *, speculative_config, **options):
    """An engine over a table of five tokens, with predicted drafts."""
    del model, options, speculative_config
    table = FunctionTable(5, lambda held: np.roll([0.5, 0.3, 0.2, 0.0, 0.0], held[-1]), span=1)
    return Engine(
        EngineCore(
            TableBackend(table), tokenizer=Digits(), proposers=[PredictionProposer()], kappa=3
        )
    )


@pytest.fixture
def expected(tmp_path):
    path = tmp_path / "expected.txt"
    path.write_text("00100\n")
    return path


def run(*words):
    context = CliContext(load=load, force_terminal=False)
    result = CliRunner().invoke(app, ["audit", "engine", *map(str, words)], obj=context)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.statistical
def test_drafts_from_a_prediction_are_audited(expected, tmp_path):
    # An exact engine is called biased with probability 0.001; this seed is none of those.
    stored = tmp_path / "c.json"
    found = run(
        *METHOD, "--prediction", expected, "--prompt-ids", "0 1 0", "--top-k", 2, "--horizon", 4,
        *SIZE, "--output", stored,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    held = json.loads(stored.read_text())
    assert "prediction '00100" in held["evidence"]["subject"]
    assert "drafts accepted" in found.output


def test_greedy_texts_are_written_with_the_prediction(expected, tmp_path):
    stored = tmp_path / "c.json"
    found = run(
        *METHOD, "--prediction", expected, "--prompt-ids", "0 1 0", "--greedy", "--tokens", 8,
        "-q", "--output", stored,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    texts = json.loads(stored.read_text())["evidence"]["texts"]
    assert [text["kappa"] for text in texts] == [0, 1, 2, 4, 7]
    assert all((text["drafted"] > 0) == (text["kappa"] > 0) for text in texts)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (METHOD, "drafts from a prediction; expected --prediction"),
        (("--speculative-config", '{"method": "ngram"}'), "needs a method that reads it"),
        ((*METHOD, "--state"), "of no use with --state"),
        ((*METHOD, "--stream"), "of no use with --stream"),
        (("--table",), "--prediction"),
    ],
)
def test_a_prediction_that_has_no_use_is_refused(expected, words, reason):
    given = () if words == METHOD else ("--prediction", expected)
    found = run(*words, *given)
    assert found.exit_code == 2
    assert reason in " ".join(found.output.split())
