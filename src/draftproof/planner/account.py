"""What drafting may still lose: a bound on how far below plain decoding a batch can fall."""

from __future__ import annotations

__all__ = ["Account"]


class Account:
    """Gains and losses of drafting against plain decoding, in plain steps.

    Every round adds what it gained over a plain step of the same rows, by the costs that
    decisions are made with, and an allowance. Two bounds follow. A draft that could lose
    more than is `held`, were nothing of it accepted, is not made: drafting loses no more
    than the stake and the allowance, whatever beliefs say. And one that would lose more than
    is left for `doubt`, should it fare worse than expected, is not made either: beliefs may
    stake much, hopes little. What was gained before, up to a limit, may be staked too.

    Parameters
    ----------
    stake : float
        Plain steps that may be lost at first.
    share : float
        What may be lost in doubt, as a share of the rounds to come and at most the stake: a
        short text must not lose what a long one would win back.
    allowance : float
        Plain steps that each round adds.
    most : float
        Most that is held: gains of long ago cover no losses of today.

    Attributes
    ----------
    held : float
        Plain steps that may be lost at worst.
    doubt : float
        Plain steps that may be lost where a draft fares worse than expected.
    """

    __slots__ = ("_allowance", "_expected", "_most", "_share", "_stake", "_unstaked", "doubt",
                 "held")  # fmt: skip

    def __init__(self, stake: float, share: float, allowance: float, most: float) -> None:
        self._stake, self._share, self._allowance, self._most = stake, share, allowance, most
        self.held = self._unstaked = stake
        self.doubt = self._expected = 0.0

    def expect(self, rounds: float) -> None:
        """Stake what the rounds to come allow.

        Parameters
        ----------
        rounds : float
            How many there may be; only those that were not expected before count.
        """
        if rounds > self._expected:
            more = min(self._share * (rounds - self._expected), self._unstaked)
            self._unstaked -= more
            self.doubt = min(self.doubt + more, self._most)
            self._expected = rounds

    def settle(self, gain: float) -> None:
        """Add a round.

        Parameters
        ----------
        gain : float
            Plain steps that it gained; 0 for one without drafts.
        """
        self.held = min(self.held + gain + self._allowance, self._most)
        self.doubt = min(self.doubt + gain + self._allowance, self._most)
        self._expected = max(self._expected - 1.0, 0.0)

    def reset(self) -> None:
        """Start a new call."""
        self.held = self._unstaked = self._stake
        self.doubt = self._expected = 0.0
