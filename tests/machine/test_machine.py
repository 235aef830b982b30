"""The processor's name is the system's own, and what is not installed has no version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftproof import machine


def test_linux_tells_the_first_model_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "cpuinfo"
    listed.write_text("processor\t: 0\nmodel name\t: Fast: 9000\nmodel name\t: other\n")
    monkeypatch.setattr(machine, "_CPUINFO", listed)
    assert machine.processor_name() == "Fast: 9000"


@pytest.mark.parametrize("text", ["processor\t: 0\nFeatures\t: fp asimd\n", None])
def test_elsewhere_python_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    listed = tmp_path / "cpuinfo"
    if text is not None:
        listed.write_text(text)
    monkeypatch.setattr(machine, "_CPUINFO", listed)
    monkeypatch.setattr(machine.platform, "processor", lambda: "")
    monkeypatch.setattr(machine.platform, "machine", lambda: "aarch64")
    assert machine.processor_name() == "aarch64"


def test_versions_are_those_of_the_installed_packages() -> None:
    assert machine.installed_version("numpy") == np.__version__
    assert machine.installed_version("no-such-package-anywhere") is None
