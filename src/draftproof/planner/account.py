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
        Plain steps that may be lost at first.
    allowance : float
        Plain steps that each round adds.
    most : float
        Most that is held: gains of long ago cover no losses of today.
    """

    __slots__ = ("_allowance", "_most", "_stake", "held")

    def __init__(self, stake: float, allowance: float, most: float) -> None:
        self._stake, self._allowance, self._most = stake, allowance, most
        self.held = stake

    def settle(self, gain: float) -> None:
        """Add a round.

        Parameters
        ----------
        gain : float
            Plain steps that it gained; 0 for one without drafts.
        """
        self.held = min(self.held + gain + self._allowance, self._most)

    def reset(self) -> None:
        """Start a new call."""
        self.held = self._stake
