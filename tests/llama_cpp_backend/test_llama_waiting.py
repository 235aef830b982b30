"""How long the library's threads wait for work in a loop."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from draftproof.backends.llama_cpp.waiting import brief_waits

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def test_the_environment_is_as_before(monkeypatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)

    def fail_to_load() -> None:
        with brief_waits():
            assert 0 < int(os.environ["GOMP_SPINCOUNT"]) < 100_000
            raise ImportError

    with pytest.raises(ImportError):
        fail_to_load()
    assert dict(os.environ) == before


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "x")])
def test_who_has_set_it_decides(name, value, monkeypatch) -> None:
    for other in NAMES:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with brief_waits():
        assert dict(os.environ) == before
    assert dict(os.environ) == before


def test_the_library_reads_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    shown = subprocess.run(
        [sys.executable, "-c", "import draftproof.backends.llama_cpp"],
        env=environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    # OpenMP shows its settings as it is loaded; only GNU's has the count.
    counts = [line for line in shown.splitlines() if "GOMP_SPINCOUNT" in line]
    assert all("'10000'" in line for line in counts), counts
    assert counts or "LIBGOMP" not in shown.upper()
