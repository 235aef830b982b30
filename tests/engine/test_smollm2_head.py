"""The head that comes with the package drafts for the model it was made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.build import load
from draftproof.core.stats import SpecDecodeStats

pytestmark = pytest.mark.model

ASKED = (
    "Explain in a few sentences why the sky is blue.",
    "Tell a short story about a fox and a river.",
    "How does one bake bread?",
)


def test_its_greedy_drafts_are_kept(smollm2_gguf: Path) -> None:
    engine = load(
        smollm2_gguf,
        speculative_config={
            "method": "draft_head",
            "model": "smollm2-head",
            "num_speculative_tokens": 2,
        },
        threads=2,
    )
    stats = SpecDecodeStats()
    try:
        for text in ASKED:
            prompt = [{"role": "user", "content": text}]
            stats = stats.merge(engine.generate(prompt, max_tokens=64, ignore_eos=True).stats)
    finally:
        engine.close()
    kept, reached = stats.num_accepted_tokens_per_pos[0], stats.num_reached_per_pos[0]
    assert reached > 80
    # 0.34 was seen, with a standard error of 0.04. A head whose states, vocabulary or weights
    # were mixed up keeps next to nothing.
    assert kept / reached > 0.2
