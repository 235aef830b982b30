"""What drafting may still lose: a bound on how far below plain decoding a batch can fall."""

from __future__ import annotations

__all__ = ["Account"]


class Account:
    """Gains and losses of drafting against plain decoding, in plain steps.

    Every round adds what it gained over a plain step of the same rows, by the costs that
    decisions are made with, and an allowance. A draft that could lose more than there is,
    were nothing of it accepted, is not made. So drafting loses no more than the stake and
    the allowance, whatever beliefs say; what was gained before, up to a limit, may be
    staked too.

    Parameters
    ----------
    stake : float
        Plain steps that may be lost at first, at most.
    share : float
        The same as a share of the rounds to come: a short text must not lose what a long
        one would win back.
    allowance : float
        Plain steps that each round adds.
    most : float
        Most that is held: gains of long ago cover no losses of today.
    """

    __slots__ = ("_allowance", "_expected", "_most", "_share", "_stake", "_unstaked", "held")

    def __init__(self, stake: float, share: float, allowance: float, most: float) -> None:
        self._stake, self._share, self._allowance, self._most = stake, share, allowance, most
        self._expected, self._unstaked, self.held = 0.0, stake, 0.0

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
            self.held = min(self.held + more, self._most)
            self._expected = rounds

    def settle(self, gain: float) -> None:
        """Add a round.

        Parameters
        ----------
        gain : float
            Plain steps that it gained; 0 for one without drafts.
        """
        self.held = min(self.held + gain + self._allowance, self._most)
        self._expected = max(self._expected - 1.0, 0.0)

    def reset(self) -> None:
        """Start a new call."""
        self.held = self._expected = 0.0
        self._unstaked = self._stake
