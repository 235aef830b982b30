"""What top-k, top-p and min-p keep, on rows of real sizes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_kit import law_of


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9000),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.001, 1.0, 6.0]),
    st.booleans(),
)
def test_filters_keep_what_a_full_sort_keeps(
    size: int, seed: int, spread: float, ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=size) * spread).astype(np.float32)
    if ties:
        logits = np.round(logits)
    order = np.lexsort((np.arange(size), -logits))
    for count in (1, 2, 40, size // 2 + 1):
        kept = np.flatnonzero(law_of(logits, top_k=count).dense())
        assert kept.tolist() == sorted(order[:count].tolist())
    weights = np.exp(logits - logits.max())
    order = np.lexsort((np.arange(size), -weights))
    sums = np.cumsum(weights[order], dtype=np.float64)
    for mass in (1e-9, 0.1, 0.9, 0.999):
        kept = np.flatnonzero(law_of(logits, top_p=mass).dense())
        count = int(np.searchsorted(sums, mass * sums[-1])) + 1
        assert abs(len(kept) - count) <= 1 + size * 1e-6, "one entry of rounding at most"
        assert kept.tolist() == sorted(order[: len(kept)].tolist())
    kept = np.flatnonzero(law_of(logits, min_p=0.25).dense())
    assert kept.tolist() == np.flatnonzero(np.exp(logits - logits.max()) >= 0.25).tolist()


def test_top_p_takes_the_shortest_prefix_and_lowest_ids_on_ties() -> None:
    row = np.log2([8, 4, 8, 8, 4]) * np.log(2)
    for mass, kept in [
        (1e-12, [0]), (0.25, [0]), (0.26, [0, 2]), (0.5, [0, 2]), (0.75, [0, 2, 3]),
        (0.76, [0, 1, 2, 3]), (0.99, [0, 1, 2, 3, 4]),
    ]:  # fmt: skip
        assert np.flatnonzero(law_of(row, top_p=mass).dense()).tolist() == kept, mass


def test_top_p_works_on_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert np.flatnonzero(law_of(logits, top_k=2, top_p=0.55).dense()).tolist() == [0]
    first_p = ("top_p", "top_k")
    assert np.flatnonzero(law_of(logits, top_k=2, top_p=0.55, order=first_p).dense()).tolist() == [
        0,
        1,
    ]


def test_min_p_counts_from_the_largest() -> None:
    assert np.flatnonzero(law_of(np.log([0.5, 0.26, 0.24]), min_p=0.5).dense()).tolist() == [0, 1]
    assert law_of(np.log([0.6, 0.4]), min_p=1.0).prob(0) == 1.0
