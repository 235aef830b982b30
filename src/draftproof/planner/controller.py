"""Chooses how far each row drafts so that the whole batch commits most per second.

The rule: every draft position of every row is a slot with a probability of yielding a
token and a cost. Slots are sorted by that probability; since it falls with the
position, a prefix of the sorted slots is a set of drafts. Each prefix is priced with
the cost model, and the one with the largest ratio of expected tokens to seconds wins.
The empty prefix, plain decoding, is one of them.

Nothing here looks at a token of the round it decides about: beliefs come from finished
rounds, so the maximum may be taken over all prefixes without an early stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.core.types import StepRecord
from draftproof.errors import ConfigError
from draftproof.planner.rounds import DraftCost, RoundCost
from draftproof.planner.slots import Beliefs, SlotPricer
from draftproof.planner.tracker import AcceptanceTracker, TrackerConfig

__all__ = ["ControllerConfig", "GoodputController"]

#: Plain decoding of a row.
_NOTHING = RowChoice(0)


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
        Rounds without drafts after which a row tries again.
    probe_most : int, default 512
        The pause doubles with each try in vain, up to this.
    decide_every : int, default 4
        Rounds for which a decision holds at most while the batch stays nearly the same;
        fewer while requests are young, since beliefs move fast then.
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


class GoodputController:
    """The run-time policy; implements `draftproof.core.kappa_policy.KappaPolicy`.

    Parameters
    ----------
    cost : RoundCost
        Costs of passes and overheads. Its own drafter is used for drafters that
        ``drafters`` does not name.
    drafters : mapping of str to DraftCost, optional
        Costs of each drafter by name.
    config : ControllerConfig, optional
        Limits.

    Notes
    -----
    One call costs O(B K log(B K)) in a few array operations per drafter.
    """

    def __init__(
        self,
        cost: RoundCost,
        drafters: Mapping[str, DraftCost] | None = None,
        config: ControllerConfig | None = None,
    ) -> None:
        self.config = config or ControllerConfig()
        self._cost = cost
        self._slots = SlotPricer(cost, drafters or {}, self.config.max_kappa)
        self._tracker = AcceptanceTracker(max(self.config.max_kappa, 1), self.config.tracker)
        self._asked: dict[str, RowChoice] = {}
        self._finished: dict[str, dict[str, tuple[int, int]]] = {}
        self._held: dict[str, RowChoice] = {}
        self._held_rounds = 0
        self._decisions = 0
        self._silent_rounds = 0
        self._pause = self.config.probe_after

    def choose(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Choose drafters and draft lengths for the rows of one pass.

        Parameters
        ----------
        rows : sequence of RowState
            The decoding rows.

        Returns
        -------
        list of RowChoice
            One per row.
        """
        if not rows:
            return []
        choices = self._hold(rows)
        if choices is None:
            choices = self._decide(rows)
        self._asked = {row.request_id: choice for row, choice in zip(rows, choices, strict=True)}
        return choices

    def _hold(self, rows: Sequence[RowState]) -> list[RowChoice] | None:
        """Return the last decision while it still fits the batch; None to decide anew."""
        held = self._held
        settled = 1 + self._decisions // 4
        if not held or self._held_rounds >= min(settled, self.config.decide_every):
            return None
        if abs(len(rows) - len(held)) * 8 > len(held):
            return None
        if sum(row.request_id not in held for row in rows) * 8 > len(rows):
            return None
        self._held_rounds += 1
        typical = next(iter(held.values()))  # of a newcomer, until the next decision
        choices = [_cut(held.get(row.request_id, typical), row) for row in rows]
        self._silent_rounds += not any(choice.kappa for choice in choices)
        return choices

    def _decide(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Price the slots of all rows with what was learnt so far."""
        self._learn()
        limits = np.asarray([min(row.max_kappa, self.config.max_kappa) for row in rows])
        context = sum(row.kv_tokens for row in rows) / len(rows)
        names = list(dict.fromkeys(name for row in rows for name in row.proposers))
        requests = [row.request_id for row in rows]
        beliefs = {name: self._tracker.beliefs(requests, name) for name in names}
        best_gain = 1.0 + self.config.min_gain
        best, assignment = np.zeros(len(rows), dtype=np.int64), [""] * len(rows)
        for tried in self._assignments(rows, names, beliefs, context):
            found = self._slots.admit(tried, limits, beliefs, context)
            if found.gain > best_gain:
                best_gain, best, assignment = found.gain, found.kappas, tried
        newcomers = sum(request not in self._held for request in requests)
        # Counts the decisions of the crowd that is here: one with new faces is young.
        self._decisions = 0 if 2 * newcomers > len(requests) else self._decisions + 1
        self._held_rounds = 1
        if not best.any():
            best, assignment = self._probe(rows, limits, context)
            if best.any():  # a probe is one round
                self._held_rounds = self.config.decide_every
        else:
            self._silent_rounds, self._pause = 0, self.config.probe_after
        choices = [
            RowChoice(kappa, name) if kappa else _NOTHING
            for kappa, name in zip(best.tolist(), assignment, strict=True)
        ]
        self._held = dict(zip(requests, choices, strict=True))
        return choices

    def observe(self, record: StepRecord) -> None:
        """Learn from one finished round; see `KappaPolicy.observe`.

        Parameters
        ----------
        record : StepRecord
            The round. One that was not chosen here teaches nothing.
        """
        asked = self._asked.pop(record.request_id, None)
        if asked is None or not asked.kappa:
            return
        finished = self._finished.setdefault(asked.proposer, {})
        if record.request_id in finished:  # the next round of the same batch began
            self._learn()
            finished = self._finished.setdefault(asked.proposer, {})
        finished[record.request_id] = (
            min(len(record.drafted), self.config.max_kappa),
            min(record.num_accepted, self.config.max_kappa),
        )

    def release(self, request_id: str) -> None:
        """Forget a request.

        Parameters
        ----------
        request_id : str
            Unknown names are ignored.
        """
        self._learn()
        self._asked.pop(request_id, None)
        self._held.pop(request_id, None)
        self._tracker.release(request_id)

    def reset(self) -> None:
        """Start a new call: forget, unless memory was asked to outlive calls."""
        self._learn()
        self._asked.clear()
        self._held.clear()
        self._silent_rounds, self._pause = 0, self.config.probe_after
        if self.config.forget_after_call:
            self._tracker.reset()

    def survival(self, request_id: str, proposer: str) -> tuple[float, ...]:
        """Return the believed survival curve of a request.

        Parameters
        ----------
        request_id, proposer : str
            The request and a drafter.

        Returns
        -------
        tuple of float, length max_kappa
            ``Pr(at least i drafts survive)`` when a draft comes.
        """
        self._learn()
        survival, _given = self._tracker.beliefs([request_id], proposer)
        return tuple(float(rate) for rate in survival[0])

    def _learn(self) -> None:
        """Fold the rounds that finished since the last call, all rows at once."""
        for proposer, rounds in self._finished.items():
            self._tracker.fold(proposer, rounds)
        self._finished.clear()

    def _assignments(
        self,
        rows: Sequence[RowState],
        names: Sequence[str],
        beliefs: Mapping[str, Beliefs],
        context: float,
    ) -> list[list[str]]:
        """Return the assignments of drafters to try: each alone, and the best of each row.

        A row whose drafters do not include the one that is tried alone drafts nothing.
        """
        alone = [[name if name in row.proposers else "" for row in rows] for name in names]
        if len(names) < 2:
            return alone
        # In tokens: what a full draft yields, less its first depth at the plain pace.
        pace = len(rows) / self._cost.plain_s(len(rows), context)
        worth = {
            name: beliefs[name][0].sum(axis=1) * beliefs[name][1]
            - self._slots.price(name, len(rows), 0.0)[0].mean() * pace
            for name in names
        }
        mixed = [
            max(row.proposers, key=lambda name: worth[name][place]) if row.proposers else ""
            for place, row in enumerate(rows)
        ]
        return [*alone, mixed]

    def _probe(
        self, rows: Sequence[RowState], limits: NDArray[np.int64], context: float
    ) -> tuple[NDArray[np.int64], list[str]]:
        """Now and then draft although it is not believed to pay: beliefs may be stale.

        All rows try together, so that the drafter's fixed cost is paid once, and never
        where even full acceptance would not pay.
        """
        nothing = np.zeros(len(rows), dtype=np.int64)
        self._silent_rounds += 1
        if self._silent_rounds < self._pause:
            return nothing, [""] * len(rows)
        self._silent_rounds = 0
        self._pause = min(2 * self._pause, self.config.probe_most)
        assignment = [row.proposers[0] if row.proposers else "" for row in rows]
        certain = {
            name: (np.ones((len(rows), max(self.config.max_kappa, 1))), np.ones(len(rows)))
            for name in assignment
            if name
        }
        if not certain:
            return nothing, assignment
        hoped = self._slots.admit(assignment, limits, certain, context)
        if hoped.gain <= 1.0:
            return nothing, assignment
        return np.minimum(hoped.kappas, 1), assignment


def _cut(choice: RowChoice, row: RowState) -> RowChoice:
    """Return a choice within what a row may do now."""
    if choice.kappa <= row.max_kappa and (choice.proposer in row.proposers or not choice.kappa):
        return choice
    if not row.max_kappa or choice.proposer not in row.proposers:
        return _NOTHING
    return RowChoice(row.max_kappa, choice.proposer)
