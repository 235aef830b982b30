"""Fixtures that several rooms share."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

#: Its own conftest imports torch, which only the `torch` extra brings.
_NEEDS_TORCH = "torch_backend"
collect_ignore = [] if find_spec("torch") else [_NEEDS_TORCH]


def pytest_report_header() -> str | None:
    """Say what is left out, and why."""
    if not collect_ignore:
        return None
    return f"torch is not installed: tests/{_NEEDS_TORCH} is left out"


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The weights of SmolLM2-135M-Instruct, fetched once into the user's cache."""
    from draftproof.models import pull

    return pull("smollm2")
