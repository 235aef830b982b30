"""Top-k, top-p and min-p over many rows keep the definition's sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

from draftproof.core.policy import History, SamplingParams, target_law  # noqa: E402
from draftproof.device.filters import keep_at_least, keep_largest, keep_nucleus  # noqa: E402


def rows_of(seed: int, size: int) -> np.ndarray:
    """Rows of many kinds: ties, flat, peaked, holes."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(4, size)) * np.array([[0.0], [0.5], [4.0], [20.0]])
    rows[1] = rows[1].round(1)
    rows[2, rng.random(size) < 0.3] = -np.inf
    rows[:, 0] = 1.0
    return rows.astype(np.float32)


def kept_by_definition(row, **fields) -> set[int]:
    law = target_law(row, SamplingParams(**fields), History())
    return set(np.flatnonzero(law.dense()).tolist())


def weights_of(rows: np.ndarray) -> torch.Tensor:
    # The definition's own bits: its sets are then this room's, without any slack.
    with np.errstate(under="ignore"):
        return torch.from_numpy(np.exp(rows - rows.max(1, keepdims=True)))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    size=st.sampled_from([2, 5, 60, 257, 900]),
    count=st.integers(1, 300),
)
def test_top_k(seed, size, count):
    rows = rows_of(seed, size)
    held = torch.from_numpy(rows.copy())
    keep_largest(held, torch.tensor([count, 1, count, 2]), max(count, 2))
    for row, kept, k in zip(rows, held, (count, 1, count, 2), strict=True):
        expected = kept_by_definition(row, top_k=k)
        got = set(torch.nonzero(torch.exp(kept - kept.max()) > 0)[:, 0].tolist())
        assert got == expected


@pytest.mark.parametrize("by_sort", [True, False])
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    size=st.sampled_from([2, 5, 60, 257, 900, 5000]),
    mass=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.99, 0.9999]),
)
def test_top_p(by_sort, seed, size, mass):
    rows = rows_of(seed, size)
    weights = weights_of(rows)
    full = weights.sum(1, dtype=torch.float64)
    slack = keep_nucleus(
        weights,
        torch.from_numpy(rows),
        torch.full((4,), mass, dtype=torch.float64),
        by_sort=by_sort,
    )
    for row, kept, unsure, total in zip(rows, weights, slack, full, strict=True):
        expected = kept_by_definition(row, top_p=mass)
        got = set(torch.nonzero(kept > 0)[:, 0].tolist())
        if got != expected:  # then the mass in question was announced
            differing = list(got ^ expected)
            apart = float(np.exp(np.float64(row[differing]) - row.max()).sum())
            assert apart <= float(unsure) * (1 + 1e-5)
        assert float(unsure) <= float(total)


def test_top_p_of_rows_that_keep_all():
    weights = weights_of(rows_of(3, 60))
    before = weights.clone()
    slack = keep_nucleus(weights, weights, torch.ones(4, dtype=torch.float64))
    assert torch.equal(before, weights)
    assert not slack.any()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**20), fraction=st.sampled_from([1e-6, 0.01, 0.3, 1.0]))
def test_min_p(seed, fraction):
    rows = rows_of(seed, 300)
    weights = weights_of(rows)
    keep_at_least(weights, torch.full((4,), fraction))
    for row, kept in zip(rows, weights, strict=True):
        got = set(torch.nonzero(kept > 0)[:, 0].tolist())
        assert got == kept_by_definition(row, min_p=fraction)


def test_near_ties_are_announced():
    """Two logits one rounding apart, of which the set keeps one, make the set unsure."""
    rows = np.array([[1.0, np.nextafter(np.float32(0), np.float32(1)), 0.0, -9.0]], np.float32)
    weights = weights_of(rows)
    held = float(weights[0, 1])
    mass = torch.tensor([1.2 / float(weights.sum())], dtype=torch.float64)
    slack = keep_nucleus(weights, torch.from_numpy(rows), mass)
    assert float(slack[0]) >= 2 * held * 0.99
    same_logits = np.array([[1.0, 0.0, 0.0, -9.0]], np.float32)
    weights = weights_of(same_logits)
    slack = keep_nucleus(weights, torch.from_numpy(same_logits), mass)
    assert float(slack[0]) == 0.0
    assert weights[0].tolist()[2] == 0.0
