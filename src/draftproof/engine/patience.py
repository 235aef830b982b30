"""How long a bad drafter is borne: one that stalls or fails is left alone for some rounds.

A drafter is asked inside the step that serves everybody, so one that takes its time takes
it from all requests. What its calls take is compared with plain passes, and a drafter that
fails in every round is asked in vain. After a few such rounds running it is not asked for
some rounds, then tried again; each time it has not recovered the pause doubles.

A call is timed once it has returned. One that never returns cannot be ended from here:
drafters read lists and grammars that the engine goes on to change, and share models with
it, so that to go on beside a running call would not be sound.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from draftproof.engine.step import Clock

__all__ = [
    "FIRST_PAUSE",
    "FLOOR_S",
    "LONGEST_PAUSE",
    "PLAIN_PASSES",
    "ROUNDS_RUNNING",
    "TOKENS_PER_PASS",
    "Patience",
]

_LOG = logging.getLogger("draftproof.engine")

#: What a call may take: this many plain passes for the round, as many for each token that a
#: row may draft, and for the tokens that it reads as `TOKENS_PER_PASS` says. A draft model
#: as slow as the target itself takes a fifth of it.
PLAIN_PASSES = 5.0
#: Tokens that a drafter may read in the time of a plain pass, before `PLAIN_PASSES`.
TOKENS_PER_PASS = 16
#: A call of no more seconds than this is never slow, whatever the target takes.
FLOOR_S = 0.2
#: Bad rounds running after which a drafter is given up. A first call, which compiles, is one.
ROUNDS_RUNNING = 3
#: Rounds for which it is not asked at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 16, 1024
#: Newest plain passes that weigh in what one takes.
_NUM_PASSES = 16

#: What may go wrong with a drafter; each is counted by itself.
Trouble = Literal["slow", "failed", "slow to observe", "failed to observe"]

_WORDS: dict[Trouble, str] = {
    "slow": f"took more than {PLAIN_PASSES:g} plain passes for each token and {FLOOR_S:g} s",
    "failed": "failed",
    "slow to observe": f"took more than {PLAIN_PASSES:g} plain passes and {FLOOR_S:g} s to observe",
    "failed to observe": "failed to observe",
}


@dataclass(slots=True)
class _Drafter:
    """What is known of one drafter.

    Parameters
    ----------
    bad : dict of str to int
        Bad rounds running, by trouble.
    pause : int
        Rounds of the last pause; 0 when there was none, or it has recovered.
    left : int
        Rounds of it that are left.
    num_good : int
        Good rounds since it.
    note : str
        What to tell of it.
    lengths : dict of str to int
        Tokens of each request that it was asked about last.
    """

    bad: dict[Trouble, int] = field(default_factory=dict)
    pause: int = 0
    left: int = 0
    num_good: int = 0
    note: str = ""
    lengths: dict[str, int] = field(default_factory=dict)


class Patience:
    """Decides in which rounds a drafter is asked at all.

    Parameters
    ----------
    clock : Clock
        Where pauses are counted.
    acts_on_time : bool, default True
        Whether slow calls lead to a pause. Otherwise they are told and that is all, so that
        no clock has a say in what is drafted.
    """

    def __init__(self, clock: Clock, *, acts_on_time: bool = True) -> None:
        self._clock = clock
        self._acts_on_time = acts_on_time
        self._drafters: dict[str, _Drafter] = {}
        #: Seconds of a plain pass, 0 before the first one.
        self._pass_s = 0.0
        self._num_passes = 0

    def passed(self, seconds: float) -> None:
        """Learn what a pass took in which each row had one pending token.

        Parameters
        ----------
        seconds : float
            Its seconds, drafts included, which is forgiving.
        """
        self._num_passes += 1
        self._pass_s += (seconds - self._pass_s) / min(self._num_passes, _NUM_PASSES)

    def pause_note(self, name: str) -> str:
        """Count a round in which a drafter would be asked, and say why it is not.

        Parameters
        ----------
        name : str
            The drafter.

        Returns
        -------
        str
            Empty where it is asked.
        """
        drafter = self._drafters.get(name)
        if drafter is None or not drafter.left:
            return ""
        drafter.left -= 1
        return drafter.note

    def is_paused(self, name: str) -> bool:
        """Say whether a drafter is not asked now; counts nothing."""
        drafter = self._drafters.get(name)
        return drafter is not None and drafter.left > 0

    def drafted(
        self, name: str, seconds: float, kappa: int, rows: Iterable[tuple[str, int]]
    ) -> str:
        """Judge the time of a call that drafted.

        Parameters
        ----------
        name : str
            The drafter.
        seconds : float
            What the call took.
        kappa : int
            Most tokens that a row of it might draft.
        rows : iterable of (str, int)
            The requests with their committed tokens.

        Returns
        -------
        str
            What to tell the requests; empty as a rule.
        """
        drafter = self._drafters.setdefault(name, _Drafter())
        unread = 0
        for request_id, length in rows:
            unread += length - drafter.lengths.get(request_id, 0)
            drafter.lengths[request_id] = length
        return self._judge_time(name, "slow", seconds, kappa + unread / TOKENS_PER_PASS)

    def observed(self, name: str, seconds: float, num_tokens: int) -> str:
        """Judge the time in which a drafter took the hidden states of a pass; as `drafted`."""
        return self._judge_time(name, "slow to observe", seconds, num_tokens / TOKENS_PER_PASS)

    def went(self, name: str, trouble: Trouble, *, is_bad: bool) -> str:
        """Count a round that was good or bad in one respect.

        Parameters
        ----------
        name : str
            The drafter.
        trouble : str
            The respect.
        is_bad : bool
            Whether it was bad.

        Returns
        -------
        str
            What to tell the requests; empty as a rule.
        """
        drafter = self._drafters.setdefault(name, _Drafter())
        if not is_bad:
            if drafter.bad:
                drafter.bad.pop(trouble, None)
            if trouble == "failed" and drafter.pause and not drafter.bad:
                drafter.num_good += 1
                if drafter.num_good >= drafter.pause:
                    drafter.pause = 0  # it has recovered
            return ""
        drafter.num_good = 0
        drafter.bad[trouble] = drafter.bad.get(trouble, 0) + 1
        if drafter.bad[trouble] < ROUNDS_RUNNING:
            return ""
        return self._give_up(name, drafter, trouble)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        for drafter in self._drafters.values():
            drafter.lengths.pop(request_id, None)

    def _judge_time(self, name: str, trouble: Trouble, seconds: float, passes: float) -> str:
        limit = max(FLOOR_S, PLAIN_PASSES * self._pass_s * (1.0 + passes))
        # Before the first plain pass there is nothing to compare with.
        return self.went(name, trouble, is_bad=self._num_passes > 0 and seconds > limit)

    def _give_up(self, name: str, drafter: _Drafter, trouble: Trouble) -> str:
        """Start a pause, twice as long as the last one, and tell."""
        why = f"it {_WORDS[trouble]} in {ROUNDS_RUNNING} rounds running"
        if trouble.startswith("slow") and not self._acts_on_time:
            drafter.bad[trouble] = 0
            told = f"drafter {name} is asked on, since the deterministic mode obeys no clock: {why}"
            if drafter.note != told:
                _LOG.warning("%s", told)
            drafter.note = told
            return told
        is_first = not drafter.pause
        drafter.pause = min(max(2 * drafter.pause, FIRST_PAUSE), LONGEST_PAUSE)
        drafter.left = drafter.pause
        # One more bad round when it is tried again is enough.
        drafter.bad[trouble] = ROUNDS_RUNNING - 1
        drafter.note = f"drafter {name} is not asked for {drafter.pause} rounds: {why}"
        self._clock.num_drafter_pauses += 1
        if is_first:
            _LOG.warning("%s; pauses double while it goes on", drafter.note)
        return drafter.note
