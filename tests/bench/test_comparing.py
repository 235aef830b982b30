"""Two runs: pairs where prompts are equal, samples where not, and what differs around them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof.bench.comparing import compare_runs
from draftproof.bench.measured import Gaps, Measurement, RequestRecord
from draftproof.bench.run_record import FORMAT, Condition, RunRecord
from draftproof.cli.bench_options import redacted


def measurement(arm, number, tpot_s, digest):
    request = RequestRecord(0, 0.0, 0.0, 1.0, 1.0 + 20 * tpot_s, 21, 1, 5, 21)
    return Measurement(0, arm, number, 0, 0.0, 1.0, (request,), Gaps(0), None, digest)


@pytest.fixture
def make(tools):
    def run(paces, *, digest="same", condition=None, **around):
        settings = tools.settings([condition or Condition("chat", 0.0, 1)], rounds=len(paces))
        measured = tuple(
            measurement(arm, number, tpot_s * factor, f"{digest} {number}")
            for number, tpot_s in enumerate(paces)
            for arm, factor in (("plain", 2.0), ("kappa 3", 1.0))
        )
        return RunRecord(FORMAT, tools.SUBJECT, settings, tools.environment(**around), measured)

    return run


# Prompts differ by more than the engines do.
PACES = (0.010, 0.050, 0.020, 0.090, 0.030, 0.015)


def test_equal_prompts_are_compared_in_pairs(make):
    found = compare_runs(make(PACES), make([pace / 1.25 for pace in PACES]))
    cells = {cell.arm: cell for cell in found.cells}
    assert cells["kappa 3"].is_paired
    assert cells["kappa 3"].pace.value == pytest.approx(1.25)
    assert cells["kappa 3"].pace.low == pytest.approx(1.25)
    assert cells["kappa 3"].speedup.value == pytest.approx(1.0)
    assert (found.differences, found.notes) == ((), ())


def test_other_prompts_are_two_samples_and_say_less(make):
    other = make([pace / 1.25 for pace in PACES], digest="other")
    cell = compare_runs(make(PACES), other).cells[1]
    assert not cell.is_paired
    assert cell.pace.value == pytest.approx(1.25)
    assert cell.pace.low < 1.0 < cell.pace.high


def test_what_differs_around_the_runs_is_told(make, tools):
    left = make(PACES)
    right = make(
        PACES, cpu="another", packages={"draftproof": "0.2.0"}, load_before=(1.9, 1.0, 1.0)
    )
    right = replace(right, subject=replace(tools.SUBJECT, precision="f16"))
    found = compare_runs(left, right)
    assert found.differences == (
        "cpu: a processor against another",
        "draftproof: 0.1.0 against 0.2.0",
        "load per core before: 0.05 against 0.95",
    )
    assert "different subjects" in found.notes[0]
    assert compare_runs(left, make(PACES, condition=Condition("story", 0.0, 1))).cells == ()


def test_a_key_is_kept_out_of_the_record():
    words = ["draftproof", "bench", "--api-key", "sk-1", "--api-key=sk-2", "--rounds", "3"]
    assert "sk-" not in " ".join(redacted(words))
    assert redacted(words)[-2:] == ["--rounds", "3"]
