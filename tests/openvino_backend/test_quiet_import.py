"""The runtime's own usage statistics never load."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
{before}
import draftproof.backends.openvino
print("openvino" in sys.modules, "openvino_telemetry.backend" in sys.modules)
"""


def run(before: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin", "CI": "true"},
    )
    return done.stdout.strip()


def test_the_statistics_package_is_not_loaded_with_the_runtime():
    assert run("") == "True False"


def test_the_check_sees_a_runtime_that_was_imported_plainly():
    assert run("import openvino") == "True True"
