"""Models with a sliding window: cells that fell out of it may have been used again."""

from __future__ import annotations

import numpy as np

from draftproof.backends.llama_cpp.native import LlamaContext
from draftproof.testing import check_backend

CLOSE = 2e-4
WINDOW = 16


def close(found, expected):
    return found.shape == expected.shape and float(np.abs(found - expected).max()) < CLOSE


def fresh(decoder, text, count):
    return decoder("gemma3", window=WINDOW).score(text)[-count:]


def test_the_kit_passes(make_backend):
    names = {"ragged_equals_solo", "deep_rollback_equals_fresh", "kept_paths_equal_fresh"}
    report = check_backend(
        lambda: make_backend("gemma3", window=WINDOW), tolerance=CLOSE, names=names
    )
    report.require()
    assert {result.status for result in report.results} == {"passed"}


def test_a_rollback_to_before_what_was_dropped(decoder):
    """Let a text take cells that fell out of another one's window, then take that one back."""

    class Watched(LlamaContext):
        lowest = 0

        def decode(self, *arguments):
            logits = super().decode(*arguments)
            firsts = [self.first_position(slot) for slot in range(self.num_slots)]
            type(self).lowest = max(self.lowest, *firsts)
            return logits

    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 200, 100).tolist() for _ in range(3)]
    small = decoder("gemma3", window=WINDOW, cells=256, context_type=Watched)
    first, second, third = (small.backend.open() for _ in texts)
    small.feed(first, texts[0], 0)
    small.feed(second, texts[1], 0)
    small.backend.truncate(first, 50)
    small.feed(third, texts[2], 0)
    assert Watched.lowest == 50  # or nothing was dropped that this could miss
    small.backend.truncate(second, 60)
    assert close(small.feed(second, texts[0][:3]), fresh(decoder, texts[1][:60] + texts[0][:3], 3))
    assert close(small.feed(third, texts[0][:3]), fresh(decoder, texts[2] + texts[0][:3], 3))
