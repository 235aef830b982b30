"""In which order draws came, and whether they depend on each other.

Counts forget the order, and with it whatever makes draws depend: a seed that is used
again, a cache of answers, rows of a batch that leak. So evidence keeps the outcome of
every draw in the order of requests, up to a bound.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.audit.acceptance import is_whole
from draftproof.errors import ConfigError
from draftproof.evidence.independence import DependenceTest
from draftproof.evidence.lags import LagTest, equal_draws, pairs_learnt, smallest_repeated_share
from draftproof.evidence.repeats import RepeatedBlock, repeated_block, shared_block

__all__ = ["MOST_KEPT", "DrawOrder", "dependence_of", "reason_of", "smallest_repeat"]

#: Draws of a sample whose order is kept: a certificate of 240,000 draws is then some
#: hundred kilobytes long.
MOST_KEPT = 2**18
#: Tests of each sample.
_TESTS = 3


@dataclass(frozen=True, slots=True, eq=False)
class DrawOrder:
    """Outcomes in order of request.

    Parameters
    ----------
    codes : ndarray of int64, shape (N,)
        Number of the outcome of each draw, 0 or more; of the first `MOST_KEPT`.
    """

    codes: NDArray[np.int64]

    def __post_init__(self) -> None:
        """Refuse what is no outcome."""
        if self.codes.ndim != 1 or self.codes.min(initial=0) < 0:
            raise ConfigError("outcomes in order: expected a row of numbers, 0 or more")

    @classmethod
    def of(cls, codes: ArrayLike) -> DrawOrder:
        """Return the order of the first draws, as many as are kept."""
        return cls(np.asarray(codes, dtype=np.int64)[:MOST_KEPT])

    def __eq__(self, other: object) -> bool:
        """Return whether the same outcomes come in the same order."""
        return isinstance(other, DrawOrder) and np.array_equal(self.codes, other.codes)

    def __hash__(self) -> int:
        """Return a hash of the content."""
        return hash(self.codes.tobytes())

    def __len__(self) -> int:
        """Return the number of draws in order."""
        return len(self.codes)

    @classmethod
    def stored_in(cls, stored: Mapping[str, Any], name: str) -> DrawOrder | None:
        """Return the order under a name, None where certificates do not hold it."""
        return cls.from_json(stored[name]) if stored.get(name) is not None else None

    def check(self, counts: Sequence[int]) -> None:
        """Refuse an order that is not of these counts.

        Parameters
        ----------
        counts : sequence of int
            All draws of each outcome.

        Raises
        ------
        ConfigError
            If an outcome comes more often than it was counted, or draws are left out.
        """
        expected = min(sum(counts), MOST_KEPT)
        if len(self) != expected:
            raise ConfigError(f"{len(self)} draws in order: expected {expected}, as were counted")
        seen = np.bincount(self.codes, minlength=len(counts))
        if len(seen) > len(counts) or (seen > np.asarray(counts)).any():
            raise ConfigError("draws in order: expected the outcomes that were counted")

    def to_json(self) -> dict[str, Any]:
        """Return plain numbers and strings: little-endian codes, zlib, base64."""
        bits = next(b for b in (8, 16, 32) if self.codes.max(initial=0) < 2**b)
        packed = zlib.compress(self.codes.astype(f"<u{bits // 8}").tobytes(), 9)
        text = base64.b64encode(packed).decode("ascii")
        return {"draws": len(self), "bits": bits, "zlib": text}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> DrawOrder:
        """Return the order of a stored form.

        Parameters
        ----------
        stored : mapping of str to object
            What `to_json` gave.

        Returns
        -------
        DrawOrder
            Equal content.

        Raises
        ------
        ConfigError
            If it is malformed.
        """
        num, bits = stored["draws"], stored["bits"]
        if not is_whole(num) or not 0 <= num <= MOST_KEPT or bits not in (8, 16, 32):
            raise ConfigError(
                f"{num!r} draws in order of {bits!r} bits: expected up to {MOST_KEPT} of 8, 16, 32"
            )
        size = num * bits // 8
        try:
            packed = base64.b64decode(stored["zlib"], validate=True)
            # No more than was announced, whatever a file holds.
            raw = zlib.decompressobj().decompress(packed, size + 1)
        except (zlib.error, ValueError) as error:
            raise ConfigError(f"draws in order: {error}, expected base64 of zlib") from error
        if len(raw) != size:
            raise ConfigError(f"draws in order: {len(raw)} bytes, expected {size}")
        return cls(np.frombuffer(raw, f"<u{bits // 8}").astype(np.int64))


def dependence_of(
    orders: Sequence[tuple[str, DrawOrder]],
    shared: Sequence[tuple[str, DrawOrder, DrawOrder]] = (),
) -> tuple[DependenceTest, ...]:
    """Test samples for draws that depend on each other.

    Parameters
    ----------
    orders : sequence of (str, DrawOrder)
        Samples, each with what its draws are called, such as ``"draws after 'Once'"``.
    shared : sequence of (str, DrawOrder, DrawOrder)
        Pairs of samples under the same numbers that should know nothing of each other.

    Returns
    -------
    tuple of DependenceTest
        Three of each sample and one of each pair. Their p-values are Bonferroni's over
        all of them: one of p or less has a probability of at most p where all draws
        are independent.
    """
    times = _TESTS * len(orders) + len(shared)
    found = []
    for name, order in orders:
        equal, learnt = equal_draws(order.codes), pairs_learnt(order.codes)
        found.append(_of_lag(_equal_text(name, equal), equal, times))
        text = f"{name}: what is known of a draw tells of the one {learnt.lag} after it"
        found.append(_of_lag(text, learnt, times))
        block = repeated_block(order.codes)
        pairs = math.comb(len(order), 2)
        found.append(_of_block(f"{name}: {_block_text(block)} again", block, pairs, times))
    for name, first, second in shared:
        block = shared_block(first.codes, second.codes)
        pairs = len(first) * len(second)
        text = f"{name}: {_block_text(block)} of the other sample"
        found.append(_of_block(text, block, pairs, times))
    return tuple(found)


def reason_of(dependence: Sequence[DependenceTest], alpha: float) -> str:
    """Say why draws may not be pooled; empty where they may.

    Parameters
    ----------
    dependence : sequence of DependenceTest
        All tests of an audit.
    alpha : float
        Their level.

    Returns
    -------
    str
        Names a period, or else the test that fails most clearly: a lag, or a stretch that
        was given twice.
    """
    failed = [test for test in dependence if test.p_value <= alpha]
    if not failed:
        return ""
    text = "the draws depend on each other and may not be pooled"
    # What repeats far off looks like a dependence at any lag; a period explains it all.
    named = min(failed, key=lambda test: (test.statistic != test.num_pairs, test.p_value))
    # Certificates from before the whole order was kept name no lag.
    return text if named.name == "draws 1 apart" else f"{text}: {named.name}"


def smallest_repeat(
    samples: Sequence[tuple[NDArray[np.float64], DrawOrder]],
    num_tests: int,
    alpha: float,
    power: float,
) -> float | None:
    """Return the share of draws that repeat an earlier one which would have been seen.

    Parameters
    ----------
    samples : sequence of (ndarray of float64 of shape (K,), DrawOrder)
        Law and order of each sample.
    num_tests : int
        Tests of the audit.
    alpha : float
        Level of all of them.
    power : float
        Probability of being seen.

    Returns
    -------
    float, optional
        Of the sample where it is largest; None without a sample.
    """
    shares = [
        smallest_repeated_share(probs, len(order), alpha / num_tests, power)
        for probs, order in samples
    ]
    return max(shares, default=None)


def _of_lag(name: str, test: LagTest, times: int) -> DependenceTest:
    p = min(1.0, times * test.p_value)
    return DependenceTest(name, test.num_pairs, test.seen, test.expected, p)


def _of_block(name: str, block: RepeatedBlock, pairs: int, times: int) -> DependenceTest:
    p = min(1.0, times * block.p_value)
    return DependenceTest(name, pairs, float(block.length), math.nan, p)


def _equal_text(name: str, test: LagTest) -> str:
    if test.num_pairs and test.seen == test.num_pairs:
        return f"{name} repeat with period {test.lag}"
    return (
        f"{name}: {test.seen:.0f} of {test.num_pairs} equal the one {test.lag} before, "
        f"{test.expected:.0f} would by chance"
    )


def _block_text(block: RepeatedBlock) -> str:
    if not block.length:
        return "none are equal"
    first, second, more = block.first, block.second, block.length - 1
    return f"{second} to {second + more} are {first} to {first + more}"
