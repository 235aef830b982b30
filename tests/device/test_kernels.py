"""The triton kernels, on the CPU in triton's interpreter: equal to torch and to the definition."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

HERE = Path(__file__).parent
NAMES = (
    "weights", "exponential", "greedy", "no law", "draws", "dropped", "batch",
    *(f"decisions {n}" for n in range(4)),
    "fault: hardware exponential", "fault: last of ties", "fault: NaN is skipped",
    "fault: residual not clamped", "fault: draft stays in the block", "fault: not above",
    "fault: row of the neighbour", "fault: dropped token stays",
)  # fmt: skip


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """What each case said, from one run of the interpreter."""
    import draftproof

    paths = [str(Path(draftproof.__file__).parents[1]), str(HERE)]
    run = subprocess.run(
        [sys.executable, HERE / "interpreted_kernels.py", tmp_path_factory.mktemp("kernels")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def test_no_case_is_left_out(outcome):
    assert set(outcome) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_interpreted(name, outcome):
    assert outcome[name] == ""
