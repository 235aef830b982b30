"""Early exits and draft heads: what they cost is measured, kept, and used by plans."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from head_kit import VOCAB, HiddenTable, numpy_head
from typer.testing import CliRunner

from draftproof.backends.table import MarkovTable
from draftproof.cli import CliContext, app
from draftproof.engine import Engine, EngineCore
from draftproof.errors import ConfigError
from draftproof.planner.calibrate_rounds import Overheads, RoundSample, draft_table, measure_rounds
from draftproof.planner.profile import read_profile
from draftproof.proposers import DraftModelProposer, SuffixTreeProposer
from draftproof.proposers.draft_head import DraftHeadProposer

KIT = Path(__file__).parents[1] / "cli" / "table_cli.py"
CALIBRATE = (
    "calibrate", "-m", "table", "--budget", "0.1", "--batches", "1,2", "--widths", "1,2",
    "--contexts", "16,32",
)  # fmt: skip


@pytest.fixture(scope="module")
def table_load():
    return runpy.run_path(str(KIT))["load"]


@pytest.fixture
def invoke(table_load, tmp_path):
    """Run the command over a table model whose early exit is the model itself."""
    asked = []

    def load(model, *, speculative_config, **options):
        asked.append(speculative_config)
        plain = table_load(model, speculative_config={"method": "ngram"}, **options)
        if speculative_config["method"] == "ngram":
            return plain
        core = plain.core
        if speculative_config["method"] == "suffix_tree":
            copying = [SuffixTreeProposer()]
            return Engine(EngineCore(core.target, tokenizer=core.tokenizer, proposers=copying))
        exit_of = DraftModelProposer(type(core.target)(core.target.table), name="early-exit")
        return Engine(EngineCore(core.target, tokenizer=core.tokenizer, proposers=[exit_of]))

    def run(*words):
        context = CliContext(load=load, cache_dir=tmp_path / "cache")
        return CliRunner().invoke(app, [str(word) for word in words], obj=context), asked

    return run


def test_a_draft_head_is_timed_with_what_it_is_told():
    core = EngineCore(
        HiddenTable(MarkovTable(VOCAB, None, seed=3)),
        proposers=[DraftHeadProposer(numpy_head())],
    )
    prompts = [[1, 2, 3, 1], [2, 3, 1, 2]]
    samples = measure_rounds(
        core, "draft-head", prompts, batches=(1, 2), kappas=(0, 1, 4), num_steps=3
    )
    drafted = [sample for sample in samples if sample.kappa]
    assert all(sample.tokens > sample.batch for sample in drafted), "it was silent"
    table = draft_table(samples, Overheads(0.0, 0.0, 0.0))
    assert (table.batches, table.kappas) == ((1, 2), (1, 4))
    assert (table.seconds > 0).all()


def test_what_rounds_take_beyond_the_known_is_the_drafter_s():
    known = Overheads(1e-3, 1e-5, 2e-3)
    samples = [
        RoundSample(b, k, b * (k + 1), 5e-3, 0.1, 1e-3 + 1e-5 * b * (k + 1) + 2e-3 + 7e-4 * b)
        for b in (1, 4)
        for k in (1, 8)
    ]
    table = draft_table(samples, known)
    assert table.seconds == pytest.approx(np.asarray([[5.7e-3] * 2, [7.8e-3] * 2]))
    assert draft_table(samples).seconds == pytest.approx(np.full((2, 2), 5e-3))


def test_an_early_exit_is_measured_kept_planned_with_and_validated(invoke, tmp_path):
    path = tmp_path / "p.json"
    done, asked = invoke(*CALIBRATE, "--draft", "early-exit:6", "-o", path)
    assert done.exit_code == 0, done.output
    assert asked == [{"method": "ngram"}, {"method": "early_exit", "num_layers": 6}]
    assert "drafts by early-exit:6" in done.stdout
    profile = read_profile(path)
    assert list(profile.drafters) == ["ngram", "early-exit:6"]
    priced = profile.drafters["early-exit:6"].seconds
    # How large is a matter of the clock; that every batch and length has a price is not.
    table = profile.drafters["early-exit:6"]
    assert priced.shape == (len(table.batches), len(table.kappas))
    assert (priced >= 0.0).all()
    plan = ("plan", "--profile", path, "--drafter", "early-exit:6")
    done, _ = invoke(*plan, "--acceptance", "0.5", "--json")
    assert done.exit_code == 0, done.output
    done, _ = invoke(*plan, "--validate", "--json")
    assert done.exit_code in (0, 1), done.output  # times of a table are noise
    assert json.loads(done.stdout)["points"]
    assert asked[-1] == {"method": "early_exit", "num_layers": 6}


def test_a_plan_with_an_early_exit_is_written_for_us_alone(invoke, tmp_path):
    path = tmp_path / "p.json"
    invoke(*CALIBRATE, "--draft", "early-exit:6", "-o", path)
    document = json.loads(path.read_text())
    document["drafters"]["early-exit:6"]["seconds"] = [[0.0] * 3] * 2  # so that it pays
    for cell in document["cells"]:
        cell["seconds"] = [0.01] * 3
    document["overheads"] = {"step_s": 0.0, "token_s": 0.0, "speculative_s": 0.0}
    path.write_text(json.dumps(document))
    plan = ("plan", "--profile", path, "--drafter", "early-exit:6", "--acceptance", "0.9")
    done, _ = invoke(*plan, "--batch", "1,2", "--emit", "draftproof")
    found = json.loads(done.stdout)
    assert (found["method"], found["num_layers"]) == ("early_exit", 6)
    assert found["num_speculative_tokens"] > 0
    done, _ = invoke(*plan, "--emit", "vllm")
    assert done.exit_code == 2
    assert "vllm has no drafter early-exit:6" in done.stderr


def test_a_tree_is_measured_by_its_nodes_and_no_plan_takes_it_for_a_chain(invoke, tmp_path):
    path = tmp_path / "p.json"
    done, asked = invoke(*CALIBRATE, "--draft", "suffix-tree", "-o", path)
    assert done.exit_code == 0, done.output
    assert asked == [{"method": "ngram"}, {"method": "suffix_tree"}]
    table = read_profile(path).drafters["suffix-tree"]
    assert table.kappas == (1, 4, 8)
    assert (table.seconds > 0.0).all()
    plan = ("plan", "--profile", path, "--acceptance", "0.5")
    assert invoke(*plan, "--drafter", "ngram", "--json")[0].exit_code == 0
    done, _ = invoke(*plan, "--drafter", "suffix-tree")
    assert done.exit_code == 2
    assert "--drafter suffix-tree drafts trees, and plans count chains; expected ngram" in (
        done.stderr
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--draft", "suffix"), "lookups are always measured"),
        (("--draft", "prediction-tree"), "depends on what it copies"),
        (("--draft", "hybrid-tree:m"), "depends on what it copies"),
        (("--draft", "early-exit:many"), "expected a number of layers"),
        (("--draft", "early-exit:6", "--draft", "early-exit:6"), "one early-exit:6, and two"),
        (("--draft", "early-exit:6", "--draft-precision", "int8"), "needs --draft-model"),
    ],
)
def test_drafters_that_cannot_be_priced_are_refused(invoke, words, message):
    done, asked = invoke(*CALIBRATE, *words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not asked


def test_drafters_and_models_that_do_not_fit_are_refused(invoke, tmp_path):
    path = tmp_path / "p.json"
    invoke(*CALIBRATE, "-o", path)
    validate = ("plan", "--validate", "--profile", path)
    for words in (
        ("--drafter", "draft-head"),
        ("--drafter", "early-exit:6", "--draft", "m"),
        ("--drafter", "early-exit:x"),
        ("--draft", "m"),
    ):
        done, _ = invoke(*validate, *words)
        assert done.exit_code == 2, words
        assert "do not fit" in done.stderr


def test_a_head_without_samples_is_refused():
    with pytest.raises(ConfigError, match="no measured round drafted"):
        draft_table([RoundSample(1, 0, 1, 0.0, 0.1, 0.1)], Overheads(0.0, 0.0, 0.0))
