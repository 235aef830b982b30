"""Raw log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest

from draftproof.core.logprobs import log_softmax_at, top_logprobs
from draftproof.errors import ConfigError, NonFiniteLogitsError

ROW = np.array([1.0, 3.0, -np.inf, 3.0, 0.5], dtype=np.float32)


def test_they_are_the_log_softmax() -> None:
    finite = ROW[[0, 1, 3, 4]].astype(np.float64)
    total = np.log(np.exp(finite).sum())
    assert log_softmax_at(ROW, [1, 0, 2]) == pytest.approx([3 - total, 1 - total, -np.inf])
    assert np.exp(log_softmax_at(ROW, range(5))).sum() == pytest.approx(1.0, abs=1e-15)
    large = np.array([3e38, 3e38, -3e38], dtype=np.float32)
    assert log_softmax_at(large, [0]) == pytest.approx(-np.log(2))


def test_the_top_breaks_ties_by_id() -> None:
    ids, values = top_logprobs(ROW, 3)
    assert ids.tolist() == [1, 3, 0]
    assert values == pytest.approx(log_softmax_at(ROW, ids))
    assert top_logprobs(ROW, 99)[0].tolist() == [1, 3, 0, 4, 2]
    assert len(top_logprobs(ROW, 0)[0]) == 0
    long = np.zeros(5000, dtype=np.float32)
    long[[4000, 70]] = 2.0
    assert top_logprobs(long, 4)[0].tolist() == [70, 4000, 0, 1]


def test_bad_rows_and_ids_are_refused() -> None:
    for bad in (np.nan, np.inf):
        row = ROW.copy()
        row[0] = bad
        with pytest.raises(NonFiniteLogitsError):
            log_softmax_at(row, [1])
    with pytest.raises(NonFiniteLogitsError):
        top_logprobs(np.full(3, -np.inf, dtype=np.float32), 1)
    for ids in ([-1], [5]):
        with pytest.raises(ConfigError):
            log_softmax_at(ROW, ids)
    with pytest.raises(ConfigError):
        top_logprobs(ROW, -1)
