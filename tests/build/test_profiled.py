"""The runtime that calibrations found fastest is taken, and nothing else decides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftproof.build import runtimes
from draftproof.build.profiled import fastest_runtime
from draftproof.build.runtimes import RuntimeOptions
from draftproof.models import ModelSource
from draftproof.planner.calibrate import MachineRates
from draftproof.planner.calibrate_rounds import Overheads
from draftproof.planner.fit import Cell
from draftproof.planner.machine import describe_machine, is_this_machine, profile_path
from draftproof.planner.profile import Profile, write_profile

ALL = ("openvino", "torch", "llamacpp")


def profile(runtime, one, four, *, precision="int8", model="m", **changes):
    cells = (
        Cell(1, 1, 32, (one,)),
        Cell(1, 4, 32, (four,)),
        Cell(1, 1, 512, (9.0,)),
        Cell(4, 1, 32, (9.0,)),
    )
    made = Profile(
        model=model,
        runtime=runtime,
        precision=precision,
        machine=describe_machine(None),
        cells=cells,
        drafters={},
        overheads=Overheads(0.0, 0.0, 0.0),
        rates=MachineRates(1e9, 1e9),
    )
    return replace(made, **changes)


@pytest.fixture
def keep(tmp_path):
    def write(made):
        path = profile_path(tmp_path, made.model, made.runtime, made.precision)
        path.parent.mkdir(exist_ok=True)
        write_profile(made, path)
        return path

    return write


def ranked(tmp_path, runtimes=ALL):
    return fastest_runtime("m", runtimes, precision="int8", cache_dir=tmp_path)


def test_the_sum_of_a_plain_pass_and_a_block_decides(keep, tmp_path):
    assert ranked(tmp_path) == ()
    keep(profile("openvino", 0.020, 0.040))
    keep(profile("llamacpp", 0.015, 0.050, precision="Q4_1"))
    keep(profile("torch", 0.030, 0.010, precision="float32"))
    found = ranked(tmp_path)
    assert [each.name for each in found] == ["torch", "openvino", "llamacpp"]
    assert str(found[1]) == "openvino (20.0 ms for a token, 40.0 ms for four)"
    assert [each.name for each in ranked(tmp_path, ("llamacpp",))] == ["llamacpp"]


def test_what_does_not_compare_is_left_out(keep, tmp_path):
    kept = profile("openvino", 0.020, 0.040)
    keep(kept)
    keep(profile("openvino", 0.001, 0.001, precision="f32"))
    keep(profile("torch", 0.001, 0.001, precision="float32", model="other"))
    keep(profile("torch", 0.001, 0.001, precision="float32", machine={"cpu": "abacus"}))
    keep(profile("llamacpp", 0.001, 0.001, precision="Q4_1", cells=kept.cells[:1]))
    (tmp_path / "profiles" / "broken.json").write_text("{")
    assert [each.name for each in ranked(tmp_path)] == ["openvino"]
    assert is_this_machine(describe_machine(3))
    assert not is_this_machine("abacus")


@pytest.mark.parametrize(
    ("chosen", "with_hidden", "expected"),
    [
        (RuntimeOptions(), False, "llamacpp"),
        (RuntimeOptions(), True, "openvino"),
        (RuntimeOptions(backend="openvino"), False, "openvino"),
        (RuntimeOptions(precision="int8"), False, "openvino"),
    ],
)
def test_auto_follows_calibrations_and_says_so(
    keep, tmp_path, monkeypatch, chosen, with_hidden, expected
):
    monkeypatch.setattr(runtimes, "find_spec", lambda name: True if name == "llama_cpp" else None)
    said = []
    source = ModelSource("gguf", Path("m.gguf"), "m")

    def choose():
        return runtimes._profiled(source, chosen, tmp_path, said.append, with_hidden=with_hidden)

    keep(profile("openvino", 0.020, 0.040))
    assert choose() == "openvino"
    assert said == []
    keep(profile("llamacpp", 0.010, 0.020, precision="Q4_1"))
    assert choose() == expected
    if expected == "llamacpp":
        assert said == [
            "runtime by your calibrations: llamacpp (10.0 ms for a token, 20.0 ms for four), "
            "then openvino (20.0 ms for a token, 40.0 ms for four)"
        ]
