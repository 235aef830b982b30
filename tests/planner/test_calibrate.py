"""Calibration: measured shapes, fits, profiles and the command line."""

from __future__ import annotations

import json
import re
import runpy
import time
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from draftproof.backends.table import FunctionTable, TableBackend, seeded_probs
from draftproof.cli import CliContext, app
from draftproof.core.types import Draft
from draftproof.engine import EngineCore
from draftproof.errors import ConfigError
from draftproof.planner.calibrate import (
    CalibrationGrid,
    machine_rates,
    measure_change,
    measure_passes,
)
from draftproof.planner.calibrate_rounds import (
    RoundSample,
    draft_table,
    fit_overheads,
    measure_rounds,
)
from draftproof.planner.cost import AffineCost
from draftproof.planner.counts import AcceptanceCounts
from draftproof.planner.estimate import estimate_survival
from draftproof.planner.fit import Cell, curve_of, fit_affine, fit_report, table_of
from draftproof.planner.profile import read_profile
from draftproof.planner.rounds import ParallelDraft, RoundCost
from draftproof.planner.validate import Validation, ValidationPoint, quantile, validate
from draftproof.proposers import NgramProposer

VOCAB = 8


def backend(context_length=256):
    def law(held):
        return seeded_probs(VOCAB, held, seed=1, spread=3.0)

    return TableBackend(FunctionTable(VOCAB, law, span=1), context_length=context_length)


def cells_of(law, batches=(1, 2, 8), widths=(1, 2, 4), contexts=(10, 100), noise=0.0):
    rng = np.random.default_rng(0)
    cells = []
    for batch in batches:
        for width in widths:
            for context in contexts:
                tokens = np.array([float(batch * width)])
                seconds = float(law.many(batch, tokens, batch * context)[0])
                times = seconds * (1 + noise * rng.standard_normal(5))
                cells.append(Cell(batch, width, context, tuple(float(t) for t in times)))
    return cells


def test_a_law_is_found_again():
    law = AffineCost(5e-3, 2e-4, 1e-6, 3e-5)
    found = fit_affine(cells_of(law))
    for name in ("base_s", "per_token_s", "per_kv_token_s", "per_row_s"):
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=1e-6)
    report = fit_report(cells_of(law), found)
    assert report.p90_error < 1e-6
    assert report.bad == ()
    assert report.dips == ()


def test_no_constant_is_negative():
    # Times fall with the batch: the best unconstrained slope would be negative.
    cells = [Cell(b, 1, 10, (1.0 / b,)) for b in (1, 2, 4)]
    found = fit_affine(cells)
    assert min(found.base_s, found.per_token_s, found.per_kv_token_s, found.per_row_s) >= 0


def test_bad_cells_and_dips_are_named():
    cells = cells_of(AffineCost(5e-3, 1e-3))
    # One row of 3 tokens costs more than one of 4: a step of the kernels.
    cells.append(Cell(1, 3, 10, (20e-3,) * 5))
    law = fit_affine(cells)
    report = fit_report(cells, law)
    assert (report.bad[0][0].batch, report.bad[0][0].width) == (1, 3)
    assert report.bad[0][1] < -0.1
    assert [(left.width, right.width) for left, right in report.dips] == [(3, 4)]


def test_the_table_keeps_the_measured_times_and_fills_gaps():
    cells = cells_of(AffineCost(5e-3, 1e-3))
    gap = cells.pop()
    table = table_of(cells, fit_affine(cells))
    tokens = np.array([float(gap.batch * gap.width)])
    found = float(table.many(gap.batch, tokens, gap.batch * gap.context)[0])
    assert found == pytest.approx(gap.median_s, rel=1e-6)


def test_passes_of_a_backend():
    target = backend()
    grid = CalibrationGrid((1, 2), (1, 3), (4, 16), budget_s=0.01, most_rounds=3)
    lines = []
    cells = measure_passes(target, grid, vocab_size=VOCAB, progress=lines.append)
    assert {(c.batch, c.width, c.context) for c in cells} == {
        (b, w, k) for b in (1, 2) for w in (1, 3) for k in (4, 16)
    }
    assert all(cell.median_s > 0 and cell.seconds for cell in cells)
    assert any("measured 8 shapes" in line for line in lines)
    # Everything was closed: a new sequence finds an empty cache.
    assert target.length(target.open()) == 0


class Ticking:
    """A backend by whose passes a clock goes on: more where the shape is another."""

    def __init__(self, change):
        self.inner, self.change, self.now, self.last = backend(), change, 0.0, None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def forward(self, batch):
        self.now += 1.0 + 0.1 * len(batch) + self.change * (len(batch) != self.last)
        self.last = len(batch)
        return self.inner.forward(batch)


@pytest.mark.parametrize("change", [0.0, 0.7])
def test_a_change_of_shape_is_what_the_first_of_two_equal_passes_takes_longer(change):
    target = Ticking(change)
    found = measure_change(target, clock=lambda: target.now)
    assert found == pytest.approx(change)
    assert target.length(target.open()) == 0
    assert measure_change(backend(context_length=4)) == 0.0


def test_the_curve_is_that_of_one_row_and_of_one_token_per_row():
    times = {(1, 1, 8): 2.0, (2, 1, 8): 2.2, (1, 2, 8): 2.4, (4, 1, 8): 2.1, (2, 2, 8): 9.0}
    times |= {(8, 1, 8): 5.0, (1, 1, 64): 7.0}
    cells = [Cell(*shape, (seconds,)) for shape, seconds in times.items()]
    assert curve_of(cells) == (
        (1, 2.0), (2, pytest.approx(2.3)), (4, pytest.approx(2.3 * 1.001)), (8, 5.0),
    )  # fmt: skip


def test_shapes_that_do_not_fit_are_left_out():
    grid = CalibrationGrid((1,), (1, 3), (4, 64), budget_s=0.01, most_rounds=1)
    cells = measure_passes(backend(context_length=32), grid)
    assert {cell.context for cell in cells} == {4}
    with pytest.raises(ConfigError, match="no shape fits"):
        measure_passes(backend(context_length=5), grid)


def test_grids_are_checked():
    for broken in ({"batches": (2, 1)}, {"widths": ()}, {"contexts": (0,)}, {"budget_s": 0.0}):
        with pytest.raises(ConfigError):
            CalibrationGrid(**broken)


def test_rounds_of_an_engine():
    core = EngineCore(backend(), proposers=[NgramProposer()])
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [2, 3, 1, 2, 3, 1, 2, 3]]
    samples = measure_rounds(core, "ngram", prompts, batches=(1, 2), kappas=(0, 2), num_steps=3)
    assert not core.has_work
    assert {(s.batch, s.kappa) for s in samples} == {(1, 0), (1, 2), (2, 0), (2, 2)}
    assert len(samples) == 12
    assert all(s.batch <= s.tokens <= s.batch * (s.kappa + 1) for s in samples)
    table = draft_table(samples)
    assert (table.batches, table.kappas) == ((1, 2), (2,))
    with pytest.raises(ConfigError, match="2 prompts"):
        measure_rounds(core, "ngram", prompts, batches=(4,))
    with pytest.raises(ConfigError, match="no measured round drafted"):
        draft_table([s for s in samples if not s.kappa])


class Slow(TableBackend):
    """A table whose passes take a known time."""

    def forward(self, batch):
        end = time.perf_counter() + 2e-3 + 1e-4 * len(batch)
        logits = super().forward(batch)
        while time.perf_counter() < end:
            pass
        return logits


def test_validation_predicts_what_it_measures():
    # Each pass takes 2 ms + 0.1 ms per token, and the costs say so. Drafts of a
    # repeating text survive. The bound is loose: this checks the sums, not the clock.
    table = FunctionTable(VOCAB, lambda held: np.eye(VOCAB)[(held[-1] + 1) % VOCAB], span=1)
    core = EngineCore(Slow(table, context_length=256), proposers=[NgramProposer()])
    cost = RoundCost(AffineCost(2e-3, 1e-4), ParallelDraft())
    prompts = [[(start + i) % VOCAB for i in range(20)] for start in range(4)]
    found = validate(core, "ngram", cost, prompts, batches=(1, 2), kappas=(0, 3), max_tokens=40)
    assert found.survival.curve.rates == (1.0, 1.0, 1.0)
    by_setting = {(p.batch, p.kappa): p for p in found.points}
    assert set(by_setting) == {(1, 0), (1, 3), (2, 0), (2, 3)}
    for batch, kappa in by_setting:
        seconds = 2e-3 + 1e-4 * batch * (kappa + 1)
        predicted = by_setting[batch, kappa].predicted
        assert predicted == pytest.approx(batch * (kappa + 1) / seconds)
        # A step cannot be faster than its pass.
        assert by_setting[batch, kappa].measured <= predicted * 1.001
    assert found.worst.error >= found.median_error
    with pytest.raises(ConfigError, match="4 prompts"):
        validate(core, "ngram", cost, prompts, batches=(5,))


class HalfSilent(NgramProposer):
    """Drafts in every other round."""

    asked_before = 0

    def propose(self, asked):
        self.asked_before += 1
        found = super().propose(asked)
        return found if self.asked_before % 2 else [Draft(proposer=self.name) for _ in found]


def test_rounds_in_which_nothing_is_drafted_are_priced_as_plain_ones():
    table = FunctionTable(VOCAB, lambda held: np.eye(VOCAB)[(held[-1] + 1) % VOCAB], span=1)
    core = EngineCore(TableBackend(table, context_length=256), proposers=[HalfSilent()])
    cost = RoundCost(AffineCost(2e-3, 1e-3), ParallelDraft())
    prompts = [[(start + i) % VOCAB for i in range(20)] for start in range(2)]
    (found,) = validate(core, "ngram", cost, prompts, batches=(1,), kappas=(3,)).points
    # Half of the rounds have 3 drafts, all kept, and 4 tokens; the others 1 token of each.
    half = 0.5 * (2e-3 + 4e-3) + 0.5 * (2e-3 + 1e-3)
    assert found.predicted == pytest.approx(0.5 * (4 + 1) / half, rel=0.06)


def test_a_pace_that_changed_is_no_error_of_what_drafts_gain():
    survival = estimate_survival(AcceptanceCounts.from_rounds([(1, 1), (1, 0)]))
    pairs = [(100.0, 60.0), (150.0, 90.0), (50.0, 36.0), (80.0, 44.0)]
    points = tuple(
        ValidationPoint(1, kappa, predicted, measured)
        for kappa, (predicted, measured) in enumerate(pairs)
    )
    found = Validation(points, survival)
    assert found.pace == pytest.approx(0.6)
    assert found.median_error == pytest.approx(2 / 3)
    errors = found.errors_at_pace()
    assert errors == pytest.approx([0.0, 0.0, 0.6 * 50 / 36 - 1, 0.6 * 80 / 44 - 1])
    assert found.median_error_at_pace == pytest.approx((0.6 * 80 / 44 - 1) / 2)
    assert quantile(errors, 0.9) == pytest.approx(1 - 0.6 * 50 / 36)
    drafts_only = Validation(points[1:], survival)
    assert drafts_only.pace is None
    assert drafts_only.median_error_at_pace == drafts_only.median_error


def test_overheads_are_found_again():
    samples = [
        RoundSample(b, k, b * (k + 1), 0.0, 0.0, 2e-3 + 1e-5 * b * (k + 1) + 5e-4 * (k > 0))
        for b in (1, 4, 16)
        for k in (0, 1, 4)
    ]
    found = fit_overheads(samples)
    assert (found.step_s, found.token_s, found.speculative_s) == pytest.approx((2e-3, 1e-5, 5e-4))


def test_machine_rates_are_positive():
    rates = machine_rates(megabytes=4, size=64, repeats=2)
    assert rates.bytes_per_s > 0
    assert rates.flops_per_s > 0


# The command line, over a table model.


@pytest.fixture(scope="module")
def loader():
    script = Path(__file__).parents[1] / "cli" / "table_cli.py"
    return runpy.run_path(str(script))["load"]


@pytest.fixture
def invoke(loader, tmp_path):
    def run(*words):
        context = CliContext(load=loader, cache_dir=tmp_path / "cache")
        return CliRunner().invoke(app, [str(word) for word in words], obj=context)

    return run


CALIBRATE = (
    "calibrate", "-m", "table", "--budget", "0.1", "--batches", "1,2", "--widths", "1,2",
    "--contexts", "16,32",
)  # fmt: skip
DERIVED = (
    "plan", "--target", "llama-3-8b", "--draft", "llama-3.2-1b", "--hardware", "h100-sxm",
    "--acceptance", "0.7", "--context", "0",
)  # fmt: skip
PUBLISHED = ("plan", "--published", "llama-3.1-8b-h100-eagle", "--acceptance", "1")


def test_calibrate_and_plan(invoke, tmp_path):
    done = invoke(*CALIBRATE)
    assert done.exit_code == 0, done.output
    assert "straight law" in done.stdout
    path = Path(done.stdout.splitlines()[-1])
    assert path.parent == tmp_path / "cache" / "profiles"
    profile = read_profile(path)
    assert profile.document() == json.loads(path.read_text())
    assert len(profile.cells) == 8
    assert profile.drafters["ngram"].kappas == (1, 4, 8)
    trace = tmp_path / "trace.jsonl"
    rounds = [{"request_id": "a", "drafted": [1, 2, 3], "num_accepted": n % 4} for n in range(40)]
    trace.write_text("\n".join(map(json.dumps, rounds)))
    done = invoke("plan", "--profile", path, "--acceptance", trace, "--batch", "1,2", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["acceptance"]["survival"] == pytest.approx([0.75, 0.5, 0.25])
    assert [len(each["kappas"]) for each in document["batches"]] == [4, 4]
    done = invoke("plan", "--profile", path, "--acceptance", trace, "--max-kappa", "5")
    assert done.exit_code == 2
    assert "beyond the logged 3" in done.stderr
    done = invoke("plan", "--profile", path, "--validate", "--json")
    # A table model's times are noise: the command may call its own prediction bad.
    assert done.exit_code in (0, 1), done.output
    held = json.loads(done.stdout)
    assert {(p["batch"], p["kappa"]) for p in held["points"]} == {
        (b, k) for b in (1, 3) for k in (0, 2, 3, 5)
    }
    assert done.exit_code == (held["median_error_at_pace"] > 0.1)
    done = invoke("plan", "--profile", path, "--drafter", "other", "--acceptance", "0.5")
    assert done.exit_code == 2
    assert "measured: ngram" in done.stderr


def test_plan_from_configuration_files(invoke):
    done = invoke(*DERIVED, "--json")
    document = json.loads(done.stdout)
    assert document["figures"]["cost_ratio"] == pytest.approx(0.165, abs=5e-4)
    assert document["figures"]["ridge_tokens"] == pytest.approx(295, abs=0.5)
    assert document["fixed_crossing"]["kappa"] == 3
    assert document["fixed_crossing"]["batch"] == pytest.approx(150, abs=2)
    shown = invoke(*DERIVED).stdout
    assert "not measured" in shown
    assert "223 tok/s" in shown.replace("\n", " ")


def test_plan_says_no(invoke):
    done = invoke(*DERIVED[:-4], "--acceptance", "0.1", "--context", "0")
    assert done.exit_code == 0
    assert done.stdout.startswith("do not speculate: acceptance is too low")
    done = invoke(*DERIVED, "--emit", "vllm")
    assert "vllm serve meta-llama/Meta-Llama-3-8B" in done.stdout
    assert "meta-llama/Llama-3.2-1B" in done.stdout


def test_plan_page(invoke, tmp_path):
    pytest.importorskip("plotly", reason="the page needs plotly")
    page = tmp_path / "plan.html"
    done = invoke(*DERIVED, "--html", page, "--emit", "draftproof")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["num_speculative_tokens"] == 3
    text = page.read_text()
    assert "Plotly" in text
    assert 'src="http' not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "--acceptance", "0.5"), "costs from nothing"),
        (("plan", "--profile", "x"), "no --acceptance"),
        (("plan", "--validate"), "needs --profile"),
        ((*DERIVED, "--profile", "x.json"), "--profile"),
        (("plan", "--target", "llama-3-8b", "--acceptance", "0.5"), "needs --hardware"),
        ((*DERIVED, "--json", "--emit", "vllm"), "expected one of them"),
        ((*DERIVED, "--batch", "8:1"), "--batch"),
        ((*DERIVED, "--batch", "x"), "--batch"),
        ((*DERIVED, "--drafter", "x"), "needs --profile"),
        ((*DERIVED, "--confidence", "2"), "--confidence 2"),
        ((*DERIVED, "--assume", "mixture"), "logged positions"),
        ((*DERIVED, "--draft-kind", "none"), "do not fit"),
        ((*DERIVED, "--bandwidth-efficiency", "2"), "bandwidth efficiency 2"),
        (
            (*PUBLISHED, "--kv-bits", "8"),
            "no effect",
        ),
        (("plan", "--published", "other", "--acceptance", "1"), "no published step costs"),
        ((*CALIBRATE, "--draft-precision", "int8"), "needs --draft-model"),
        (("calibrate", "--batches", "1,x"), "--batches"),
    ],
)  # fmt: skip
def test_usage_errors(invoke, words, message):
    done = invoke(*words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr


def test_damaged_profiles(invoke, tmp_path):
    path = tmp_path / "p.json"
    for text, message in (("{", "not a profile"), ('{"format": 9}', "format 9"),
                          ('{"format": 1}', "damaged")):  # fmt: skip
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_profile(path)


def test_the_page_names_every_option():
    text = (Path(__file__).parents[2] / "docs" / "planner.md").read_text()
    verbs = get_command(app).commands
    for command in (verbs["plan"], verbs["calibrate"]):
        for parameter in command.params:
            for name in (*parameter.opts, *parameter.secondary_opts):
                assert re.search(rf"(?<![\w-]){name}(?![\w-])", text), name
