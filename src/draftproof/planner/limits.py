"""The limits of the controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from draftproof.errors import ConfigError
from draftproof.planner.tracker import TrackerConfig

__all__ = ["ControllerConfig"]


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Limits of the controller.

    Parameters
    ----------
    max_kappa : int, default 8
        Longest draft.
    min_gain : float, default 0.01
        Drafting must be believed to be this much faster than plain decoding,
        relatively: its cost is certain, its yield is not.
    probe_after : int, default 16
        Rounds without drafts after which a row tries again, at the earliest.
    probe_most : int, default 512
        The pause doubles with each try in vain, up to this.
    decide_every : int, default 4
        Rounds for which a decision holds at most while the batch stays nearly the same;
        fewer while requests are young, since beliefs move fast then.
    stake, allowance, most_held : float
        Plain steps that drafting may lose to plain decoding: at first, with each round,
        and at most at once after it gained; see `Account`.
    stake_share : float, default 0.01
        Where a draft fares worse than expected, it may lose this share of the tokens that the
        longest request may still commit, and at most the stake.
    forget_after_call : bool, default True
        Start each call without memory, so that equal calls behave equally. With False
        what was learnt outlives the call, and no seed may come again: what its first
        text taught would tell where the coins of the second lie.
    tracker : TrackerConfig
        How fast beliefs move.
    """

    max_kappa: int = 8
    min_gain: float = 0.01
    probe_after: int = 16
    probe_most: int = 512
    decide_every: int = 4
    stake: float = 2.5
    allowance: float = 0.01
    most_held: float = 10.0
    stake_share: float = 0.01
    forget_after_call: bool = True
    tracker: TrackerConfig = field(default_factory=TrackerConfig)

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.max_kappa < 0:
            raise ConfigError(f"max_kappa {self.max_kappa}: expected 0 or more")
        if self.decide_every < 1:
            raise ConfigError(f"decide_every {self.decide_every}: expected 1 or more")
        if not 1 <= self.probe_after <= self.probe_most:
            raise ConfigError(
                f"probe_after {self.probe_after}: expected 1 to probe_most {self.probe_most}"
            )
        if not self.stake_share >= 0.0:
            raise ConfigError(f"stake_share {self.stake_share}: expected 0 or more")
        if not (0.0 <= self.stake <= self.most_held and self.allowance >= 0.0):
            raise ConfigError(
                f"stake {self.stake}, allowance {self.allowance}: expected 0 or more, and a "
                f"stake of at most most_held {self.most_held}"
            )
