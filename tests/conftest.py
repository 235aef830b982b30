"""Fixtures that several rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """The weights of SmolLM2-135M-Instruct, fetched once into the user's cache."""
    from draftproof.models import pull

    return pull("smollm2")
