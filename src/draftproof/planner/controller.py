"""Chooses how far each row drafts so that the whole batch commits most per second.

The rule: every draft position of every row is a slot with a probability of yielding a
token and a cost. Slots are sorted by that probability; since it falls with the
position, a prefix of the sorted slots is a set of drafts. Each prefix is priced with
the cost model, and the one with the largest ratio of expected tokens to seconds wins.
The empty prefix, plain decoding, is one of them. No prefix wins that could lose more than
the account allows (`draftproof.planner.account.Account`).

Nothing here looks at a token of the round it decides about: beliefs come from finished
rounds, and signs from committed tokens, so the maximum may be taken over all prefixes
without an early stop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from draftproof.core.kappa_policy import RowChoice, RowState
from draftproof.core.types import StepRecord
from draftproof.planner.account import Account
from draftproof.planner.limits import ControllerConfig
from draftproof.planner.rounds import CopyCost, DraftCost, RoundCost
from draftproof.planner.slots import Beliefs, SlotPricer, Spare
from draftproof.planner.told import PricedAs, beliefs_of, cut, may_draft, sign_of
from draftproof.planner.tracker import UNTOLD, AcceptanceTracker

__all__ = ["ControllerConfig", "GoodputController"]

#: Plain decoding of a row.
_NOTHING = RowChoice(0)
#: Plain steps by which the account may fall while a decision holds.
_SURPRISE = 0.3
#: Kinds of rounds in which nothing paid that are remembered.
_MOST_BARREN = 512
#: Rounds without drafts before the first try of a call, when nothing is known.
_FIRST_PAUSE = 2
#: The same after a try of which at least half was accepted.
_HOPEFUL_PAUSE = 4


@dataclass(slots=True)
class _Round:
    """The pass that was chosen last: what it may have cost, and what came of it."""

    batch: int = 0
    context: float = 0.0
    drafting_s: float = 0.0
    asked: dict[str, tuple[RowChoice, int]] = field(default_factory=dict)
    drafted: int = 0
    accepted: int = 0


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
    copies : mapping of str to CopyCost, optional
        By name, drafters that copy where they tell so (signs from 1 on) and elsewhere draft
        with a model, which ``cost`` and ``drafters`` price.

    Notes
    -----
    A decision costs O(B K log(B K)) in a few array operations per drafter; a round for
    which an earlier one holds costs a look-up per row.
    """

    def __init__(
        self,
        cost: RoundCost,
        drafters: Mapping[str, DraftCost] | None = None,
        config: ControllerConfig | None = None,
        copies: Mapping[str, CopyCost] | None = None,
    ) -> None:
        self.config = config or ControllerConfig()
        self._as = PricedAs(copies or {})
        costs = dict(drafters or {}) | self._as.costs
        self._slots = SlotPricer(cost, costs, self.config.max_kappa)
        self._tracker = AcceptanceTracker(max(self.config.max_kappa, 1), self.config.tracker)
        limits = self.config
        self._account = Account(
            limits.stake, limits.stake_share, limits.allowance, limits.most_held
        )
        self._round = _Round()
        #: Choices that hold, by request and signs; and one of each kind, for newcomers.
        self._held: dict[tuple[str, tuple[int, ...]], RowChoice] = {}
        self._typical: dict[tuple[int, ...], RowChoice] = {}
        #: Rounds in which nothing paid, by requests and signs, and what doubt was allowed then.
        #: They stand until something is learnt.
        self._barren: dict[tuple[object, ...], float] = {}
        self._held_rows: set[str] = set()
        self._held_rounds = 0
        self._held_account = 0.0
        self._drafting_s = self._loss = self._risk = 0.0
        self._decisions = 0
        self._silent_rounds = 0
        self._pause = _FIRST_PAUSE
        self._is_try = False

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
        self._settle()
        left = [inf if row.remaining is None else row.remaining for row in rows if row.proposers]
        self._account.expect(max(left, default=0.0))
        if not any(may_draft(row) for row in rows):
            self._round = _Round(len(rows))
            return [_NOTHING] * len(rows)
        choices = self._hold(rows)
        if choices is None:
            choices = self._decide_unless_barren(rows)
        asked = {
            row.request_id: (choice, sign_of(row, choice.proposer))
            for row, choice in zip(rows, choices, strict=True)
            if choice.kappa
        }
        self._round = _Round(len(rows), rows[0].kv_tokens, self._drafting_s, asked)
        return choices

    def _settle(self) -> None:
        """Enter the last pass into the account."""
        last, gain = self._round, 0.0
        if not last.batch:
            return
        if last.asked:
            passes = self._slots.passes(last.batch, last.context)
            plain = float(passes[0])
            spent = float(passes[min(last.drafted, len(passes) - 1)]) + last.drafting_s
            gain = 1.0 + last.accepted / last.batch - spent / plain
        self._account.settle(gain)
        if self._is_try and last.accepted and 2 * last.accepted >= last.drafted:
            self._pause = _HOPEFUL_PAUSE  # not in vain: soon enough is known to draft on
        self._is_try = False
        self._round = _Round()

    def _decide_unless_barren(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Decide, or draft nothing where that was decided and nothing was learnt since."""
        key = tuple((row.request_id, row.signs, row.max_kappa > 0) for row in rows)
        if self._is_barren(key):
            self._silent_rounds += 1
            return [_NOTHING] * len(rows)
        choices = self._decide(rows)
        if not any(choice.kappa for choice in choices) and not self._is_try:
            if len(self._barren) >= _MOST_BARREN:
                self._barren.clear()
            self._barren[key] = self._account.doubt
        return choices

    def _is_barren(self, key: tuple[object, ...]) -> bool:
        """Whether nothing paid for the same rows and signs, and no try is due.

        With every round a little more may be lost; that much does not ask for a decision.
        """
        allowed = self._barren.get(key)
        if allowed is None or self._silent_rounds + 1 >= self._pause:
            return False
        return self._account.doubt < allowed + _SURPRISE

    def _hold(self, rows: Sequence[RowState]) -> list[RowChoice] | None:
        """Return the last decision while it still fits the batch; None to decide anew."""
        held, count = self._held, len(self._held_rows)
        settled = 1 + self._decisions // 4
        is_over = (
            self._held_rounds >= min(settled, self.config.decide_every)
            or self._account.held < max(self._held_account - _SURPRISE, self._loss)
            or self._account.doubt < self._risk
            or abs(len(rows) - count) * 8 > count
        )
        if is_over:
            held.clear()
            self._typical.clear()
            self._held_rounds = 0
            return None
        choices, strangers = [], 0
        for row in rows:
            choice = _NOTHING
            if may_draft(row):
                found = held.get((row.request_id, row.signs))
                if found is None:  # of a newcomer, until the next decision
                    strangers += row.request_id not in self._held_rows
                    found = self._typical.get(row.signs)
                if found is None:
                    return None
                choice = cut(found, row)
            choices.append(choice)
        if strangers * 8 > len(rows):
            return None
        self._held_rounds += 1
        self._silent_rounds += not any(choice.kappa for choice in choices)
        return choices

    def _decide(self, rows: Sequence[RowState]) -> list[RowChoice]:
        """Price the slots of all rows with what was learnt so far."""
        limits = [
            min(row.max_kappa, self.config.max_kappa) if may_draft(row) else 0 for row in rows
        ]
        context = sum(row.kv_tokens for row in rows) / len(rows)
        names = list(dict.fromkeys(name for row in rows for name in row.proposers))
        beliefs: dict[str, Beliefs] = {}
        for name in names:
            beliefs |= dict.fromkeys(self._as.keys(name), beliefs_of(self._tracker, rows, name))
        best_gain = 1.0 + self.config.min_gain
        best, assignment = [0] * len(rows), [""] * len(rows)
        self._drafting_s = self._loss = self._risk = 0.0
        for tried in self._assignments(rows, names, beliefs, context):
            most = self._as.limits(rows, tried, limits)
            spare = Spare(self._account.held, self._doubt(rows, tried, context))
            found = self._slots.admit(tried, most, beliefs, context, spare)
            if found.gain > best_gain:
                best_gain, best, assignment = found.gain, found.kappas, tried
                self._drafting_s, self._loss, self._risk = (
                    found.drafting_s, found.loss, found.risk
                )  # fmt: skip
        newcomers = sum(row.request_id not in self._held_rows for row in rows)
        # Counts the decisions of the crowd that is here: one with new faces is young.
        self._decisions = 0 if 2 * newcomers > len(rows) else self._decisions + 1
        is_probe = False
        if not any(best):
            best, assignment = self._probe(rows, limits, context)
            is_probe = any(best)
        else:
            self._silent_rounds, self._pause = 0, self.config.probe_after
        self._held_rows = {row.request_id for row in rows}
        self._held_account = self._account.held
        choices = [
            RowChoice(kappa, self._as.drafter(key)) if kappa else _NOTHING
            for kappa, key in zip(best, assignment, strict=True)
        ]
        for row, choice in zip(rows, choices, strict=True):
            self._held[row.request_id, row.signs] = choice
            self._typical[row.signs] = choice
        # A probe is one round.
        self._held_rounds = self.config.decide_every if is_probe else self._held_rounds + 1
        return choices

    def observe(self, record: StepRecord) -> None:
        """Learn from one finished round; see `KappaPolicy.observe`.

        Parameters
        ----------
        record : StepRecord
            The round. One that was not chosen here teaches nothing.
        """
        last = self._round
        asked = last.asked.get(record.request_id)
        if asked is None or not asked[0].kappa:
            return
        choice, sign = asked
        self._barren.clear()
        # Asked once: a second report of the round is of another one.
        last.asked[record.request_id] = (_NOTHING, sign)
        drafted = min(len(record.drafted), self.config.max_kappa)
        accepted = min(record.num_accepted, self.config.max_kappa)
        last.drafted += drafted
        last.accepted += accepted
        self._tracker.note(record.request_id, choice.proposer, drafted, accepted, sign)

    def release(self, request_id: str) -> None:
        """Forget a request.

        Parameters
        ----------
        request_id : str
            Unknown names are ignored.
        """
        if request_id in self._held_rows:
            self._held_rows.discard(request_id)
            for key in [key for key in self._held if key[0] == request_id]:
                del self._held[key]
        self._tracker.release(request_id)

    def reset(self) -> None:
        """Start a new call: forget, unless memory was asked to outlive calls."""
        self._round, self._is_try = _Round(), False
        self._held.clear()
        self._typical.clear()
        self._barren.clear()
        self._held_rows = set()
        self._held_rounds = self._decisions = 0
        self._silent_rounds, self._pause = 0, _FIRST_PAUSE
        if self.config.forget_after_call:
            self._account.reset()
            self._tracker.reset()

    def survival(self, request_id: str, proposer: str, sign: int = UNTOLD) -> tuple[float, ...]:
        """Return the believed survival curve of a request.

        Parameters
        ----------
        request_id, proposer : str
            The request and a drafter.
        sign : int, default -1
            What the drafter told beforehand.

        Returns
        -------
        tuple of float, length max_kappa
            ``Pr(at least i drafts survive)`` when a draft comes.
        """
        survival, _given = self._tracker.beliefs([request_id], proposer, sign)
        return tuple(survival[0].tolist())

    def _assignments(
        self,
        rows: Sequence[RowState],
        names: Sequence[str],
        beliefs: Mapping[str, Beliefs],
        context: float,
    ) -> list[list[str]]:
        """Return who drafts for each row, as it is priced: each alone, and the best of each row.

        A row whose drafters do not include the one that is tried alone, or whose drafter
        told that nothing would come, drafts nothing.
        """
        alone = [tried for name in names for tried in self._as.assignments(rows, name)]
        if len(names) < 2:
            return alone
        # In tokens: what a full draft yields, less its first depth at the plain pace.
        pace = len(rows) / float(self._slots.passes(len(rows), context)[0])
        worth = {
            key: survival.sum(axis=1) * given
            - self._slots.price(key, len(rows), 0.0)[0].mean() * pace
            for key, (survival, given) in beliefs.items()
        }
        mixed = [
            max(
                (key for name in row.proposers if (key := self._as.key(row, name))),
                key=lambda key: worth[key][place],
                default="",
            )
            for place, row in enumerate(rows)
        ]
        return [*alone, mixed]

    def _doubt(self, rows: Sequence[RowState], assignment: Sequence[str], context: float) -> float:
        """Return what may be lost in doubt: a mere hope must cover a change of shape too."""
        if self._as.is_told(rows, assignment):
            return self._account.doubt
        return self._account.doubt - self._slots.change(len(rows), context)

    def _probe(
        self, rows: Sequence[RowState], limits: Sequence[int], context: float
    ) -> tuple[list[int], list[str]]:
        """Now and then draft although it is not believed to pay: beliefs may be stale.

        All rows try together, so that the drafter's fixed cost is paid once, and never
        where even full acceptance would not pay, nor where the account does not cover it.
        """
        nothing = [0] * len(rows)
        self._silent_rounds += 1
        if self._silent_rounds < self._pause:
            return nothing, [""] * len(rows)
        assignment = [self._as.first(row) for row in rows]
        certain = {
            key: (np.ones((len(rows), max(self.config.max_kappa, 1))), np.ones(len(rows)))
            for key in assignment
            if key
        }
        self._silent_rounds = 0
        self._pause = min(max(2 * self._pause, self.config.probe_after), self.config.probe_most)
        self._is_try = True
        most = self._as.limits(rows, assignment, limits)
        hoped = self._slots.admit(assignment, most, certain, context)
        if hoped.gain <= 1.0 + self.config.min_gain:
            return nothing, assignment
        tried = [min(kappa, 1) for kappa in hoped.kappas]
        loss, drafting = self._slots.loss_of_one(assignment, tried, context)
        if loss > min(self._account.held, self._doubt(rows, assignment, context)):
            return nothing, assignment
        self._drafting_s = drafting
        return tried, assignment
