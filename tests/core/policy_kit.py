"""One law from one row, with the policy given by keywords."""

from __future__ import annotations

import numpy as np

from draftproof.core.policy import History, SamplingParams, target_law

F32_MAX = float(np.finfo(np.float32).max)


def law_of(logits, history: History | None = None, extra=(), **fields):
    row = np.asarray(logits, dtype=np.float32)
    return target_law(row, SamplingParams(**fields), history or History(), extra)
