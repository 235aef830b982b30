"""What the README shows runs as it stands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.model
@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_blocks_run(smollm2_gguf, capsys, page):
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks, f"{page} has no Python block"
    names = {}  # later blocks go on from earlier ones, as a reader does
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert "Paris" in capsys.readouterr().out


@pytest.mark.model
def test_the_first_command_runs(smollm2_gguf):
    line = next(line for line in README.splitlines() if line.startswith("    draftproof generate"))
    words = shlex.split(line)
    done = subprocess.run(
        [sys.executable, "-m", *words, "--max-tokens", "8"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Paris" in done.stdout


def test_every_linked_file_exists():
    for page in [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
