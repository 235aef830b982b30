"""The noise that is made on the device is the definition's."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from draftproof.core.rng import CoinSource  # noqa: E402
from draftproof.device.noise import make_noise  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [1, 2, 1023, 1025, 65536, 65537, 70001])
def test_it_is_the_definitions_noise(size):
    """Equal to the last bits of a logarithm, whatever the sign bits of the keys."""
    noise = [CoinSource(seed, 3).round(7).noise(2, size) for seed in range(8)]
    keys = np.array([held._keys for held in noise])
    assert (keys >> np.uint64(63)).any()
    made = make_noise(noise, size, CPU).numpy()
    for one, held in zip(made, noise, strict=True):
        expected = np.asarray(held)
        assert one.shape == (size,)
        assert (np.abs(one - expected) <= 4 * 2.0**-52 * expected).all()


def test_other_noise_is_copied():
    given = [np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])]
    assert make_noise(given, 2, CPU).tolist() == [[1.0, 2.0], [3.0, 2.0]]
